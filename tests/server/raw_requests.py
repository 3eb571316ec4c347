"""Requests that no client library would send, made from a seed: broken bodies, odd headers, and lies about lengths."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Rng = random.Random

TEXT: dict[str, Any] = {"model": "smollm2", "prompt": "Hi", "max_tokens": 2, "user": "u", "stop": ["x"], "seed": 1}
TURN = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {**TEXT, "logit_bias": {"5": 1}, "temperature": 0.5, "cache_salt": "s", "request_id": "r"},
    "/v1/chat/completions": {"model": "smollm2", "messages": [TURN], "max_tokens": 2, "tools": [TOOL], "stream": True},
    "/v1/responses": {"model": "smollm2", "input": [TURN], "max_output_tokens": 2, "metadata": {"a": "b"}},
    "/v1/messages": {"model": "smollm2", "messages": [TURN], "max_tokens": 2, "stop_sequences": ["x"]},
    "/v1/messages/count_tokens": {"model": "smollm2", "messages": [TURN], "system": "Be good."},
    "/v1/embeddings": {"model": "smollm2", "input": ["Hi"]},
    "/tokenize": {"model": "smollm2", "prompt": "Hi"},
    "/v1/detokenize": {"model": "smollm2", "tokens": [5, 6]},
    "/v1/completions#form": {**TEXT, "guided_json": {"type": "object", "properties": {"a": {"const": 1}}}},
    "/v1/completions#text": {**TEXT, "json_schema": "{}"},
    "/v1/completions#tag": {**TEXT, "response_format": {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<"], "at_least_one": True,
        "tags": [{"begin": "<a>", "content": {"type": "json_schema", "json_schema": {"type": "null"}}, "end": "</a>"}],
    }}},
    "/v1/chat/completions#calls": {
        "model": "smollm2",
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "5"}]},
        ],
        "max_tokens": 2,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1, "a"]}}},
    },
}  # fmt: skip
NUMBERS = ("1e400", "-1e400", "1e-400", "9" * 400, "9" * 5000, "1e99999", "NaN", "Infinity", "-Infinity", "-0", "0x10",
           "1.", ".5", "+1", "01", "18446744073709551616", "-9223372036854775809", "4.0", "0.1e1", "1e308")  # fmt: skip
STRINGS = (r'"\ud800"', r'"a\udfff"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x41"', '"\x01"', '"' + "A" * 70_000 + '"',
           '"\u2028\ufeff"', '"<|im_start|>"', r'"\ud800\ud800"', '""', '"\U0010ffff"')  # fmt: skip

JSON_TEXTS = (r'{"a":"\ud800"}', '{"a":NaN}', '{"a":' + "9" * 5000 + "}", "[" * 3000, '{"a":' * 200, "{",
              '{"enum":["\\ud800"]}', '{"pattern":"("}', '{"a":1e999}', '{"$ref":"#"}', '{"a":1,"a":2}')  # fmt: skip
"""Of fields that hold JSON as text."""


@dataclass(frozen=True)
class Sent:
    """Bytes for one connection.

    cut       the client says that no more will come
    leaves    it hangs up without waiting for an answer
    is_http   there must be an answer; else the server may hang up
    """

    data: bytes
    cut: bool = False
    leaves: bool = False
    is_http: bool = True


def request(path: str, body: bytes, *headers: bytes, method: str = "POST", length: bool = True) -> bytes:
    lines = [f"{method} {path.partition('#')[0]} HTTP/1.1".encode(), b"Host: x", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def good(rng: Rng) -> tuple[str, dict[str, Any]]:
    return rng.choice([*BODIES.items()])


def plain(rng: Rng) -> tuple[str, bytes]:
    path, body = good(rng)
    return path, json.dumps(body).encode()


def bad_text(rng: Rng) -> Sent:
    """JSON that breaks off, or has bytes that are wrong, or more behind it."""
    path, raw = plain(rng)
    data = bytearray(raw)
    kind = rng.randrange(5)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        data += rng.choice([b"x", b"{}", b"\x00", b",", b"//", raw])
    elif kind == 3:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    else:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice([b"\xed\xa0\x80", b"\xc0\xaf", b"\xff", b"\xf4\x90\x80\x80", b"\x00", b"'", b"\\"])
    return Sent(request(path, bytes(data), b"Content-Type: application/json"))


def other_encoding(rng: Rng) -> Sent:
    path, raw = plain(rng)
    text = raw.decode().replace("Hi", "größer 😀")
    encoding = rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp1252", "utf-16-le"])
    return Sent(request(path, text.encode(encoding, "replace"), b"Content-Type: application/json; charset=utf-16"))


def odd_values(rng: Rng) -> Sent:
    """Numbers, texts, nesting and nulls where something else belongs."""
    path, body = good(rng)
    body = json.loads(json.dumps(body))
    texts = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        holder, key = rng.choice([*places(body)])
        texts.append(odd_value(rng, json.dumps(holder[key])))
        holder[key] = f"@{len(texts) - 1}@"
    raw = json.dumps(body)
    for number, text in enumerate(texts):
        raw = raw.replace(f'"@{number}@"', text)
    return Sent(request(path, raw.encode()))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything that stands in a list or object: what holds it, and where."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places(value[key])


def odd_value(rng: Rng, usual: str) -> str:
    depth = rng.choice([2, 120, 127, 130, 900, 1100, 50_000])
    nested = [f"[{usual}]", f'{{"a":{usual}}}', "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]
    plain = ["null", "true", "[]", "{}", "[[]]", "[null]", '[""]', "[1e5]", "[-1]", '{"":{}}', '[{"type":"text"}]']
    texts = json.dumps(rng.choice(JSON_TEXTS))
    return rng.choice([rng.choice(NUMBERS), rng.choice(STRINGS), texts, rng.choice(nested), rng.choice(plain)])


def twice(rng: Rng) -> Sent:
    """Keys that come twice."""
    path, raw = plain(rng)
    _, body = good(rng)
    name = rng.choice([*body])
    return Sent(request(path, raw[:-1] + f",{json.dumps(name)}:{odd_value(rng, '1')}}}".encode()))


def odd_headers(rng: Rng) -> Sent:
    path, raw = plain(rng)
    headers = [rng.choice(ODD_HEADERS)(rng) for _ in range(rng.randint(1, 4))]
    return Sent(request(path, raw, *headers), is_http=False)


ODD_HEADERS: list[Callable[[Rng], bytes]] = [
    lambda rng: b"Content-Type: " + rng.choice([b"text/plain", b"multipart/form-data; boundary=x", b"\xff"]),
    lambda rng: b"Content-Encoding: " + rng.choice([b"gzip", b"br", b"deflate, gzip"]),
    lambda rng: b"X-Request-Id: " + rng.choice([b"\xe4\xf6", b"a" * 5000, b"", b"\t x ", b"\xff" * 40, b"a\x7fb"]),
    lambda rng: b"Authorization: " + rng.choice([b"Bearer", b"Bearer \xff\xfe", b"Basic eDp5", b"Bearer " * 900]),
    lambda rng: b"X-Api-Key: " + rng.randbytes(20).replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b""),
    lambda rng: b"Accept: " + rng.choice([b"*/*;q=x", b"\xff", b"text/event-stream", b"application/openmetrics-text"]),
    lambda rng: b"Connection: " + rng.choice([b"close", b"upgrade", b"keep-alive, x", b"\xff"]),
    lambda rng: b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    lambda rng: b"Expect: " + rng.choice([b"100-continue", b"200-ok"]),
    lambda rng: b"\r\n".join(b"X-%d: %d" % (i, i) for i in range(rng.choice([50, 500, 3000]))),
    lambda rng: b"X: " + b"y" * rng.choice([8000, 70_000]),
    lambda rng: rng.choice([b"No colon", b" folded", b": empty", b"\xff: 1", b"A b: 1", b"X:\x00"]),
    lambda rng: b"Host: " + rng.choice([b"", b"\xff", b"a:b:c", b"[::1"]),
    lambda rng: b"Origin: null\r\nAccess-Control-Request-Method: \xff",
]  # fmt: skip


def wrong_length(rng: Rng) -> Sent:
    """A body longer or shorter than announced, or announced in a way that cannot be."""
    path, raw = plain(rng)
    announced = rng.choice(
        [len(raw) - 1, len(raw) + 5, len(raw) // 2, 0, -1, "x", "1e3", "+5", "", 10**30, "9" * 5000, "5, 6", "0x10"]
    )
    header = f"Content-Length: {announced}".encode()
    more = rng.choice([[], [], [b"Content-Length: 7"], [b"Transfer-Encoding: chunked"], [b"Transfer-Encoding: gzip"]])
    return Sent(request(path, raw, header, *more, length=False), cut=True, is_http=False)


def chunks(rng: Rng) -> Sent:
    """A body in chunks, whole or cut off, with sizes that may be lies."""
    path, raw = plain(rng)
    parts, at = [], 0
    while at < len(raw):
        size = rng.randint(1, 40)
        part = raw[at : at + size]
        told = rng.choice([b"%x" % len(part)] * 20 + [b"%x" % (len(part) + 3), b"-1", b"zz", b"f" * 20, b"", b"0"])
        parts.append(told + rng.choice([b"", b"", b";ext=1"]) + b"\r\n" + part + b"\r\n")
        at += size
    end = rng.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"0\r\n", b""])
    body = b"".join(parts[: rng.choice([len(parts), len(parts), rng.randrange(len(parts) + 1)])]) + end
    return Sent(request(path, body, b"Transfer-Encoding: chunked", length=False), cut=True, is_http=False)


def pipelined(rng: Rng) -> Sent:
    """A good request, and then garbage on the same connection."""
    path, raw = plain(rng)
    garbage = rng.choice(
        [rng.randbytes(60), b"\r\n\r\n", b"GET", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
    )
    return Sent(request(path, raw) + garbage)


def abandoned(rng: Rng) -> Sent:
    path, raw = plain(rng)
    whole = request(path, raw.replace(b'"max_tokens": 2', b'"max_tokens": 200'))
    return Sent(whole[: rng.choice([len(whole), len(whole) - 1, rng.randrange(len(whole))])], leaves=True)


def garbage(rng: Rng) -> Sent:
    lines = [b"GET /\r\n\r\n", b"get /health HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n",
             b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
             b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http://x/health HTTP/1.1\r\nHost: x\r\n\r\n",
             b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 50, b"\r\n" * 50, rng.randbytes(300),
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /v1/models HTTP/1.1\r\n\r\n"]  # fmt: skip
    return Sent(rng.choice(lines), cut=True, is_http=False)


def odd_paths(rng: Rng) -> Sent:
    path = rng.choice(
        ["/%00", "//health", "/v1/models/%ff", "/v1/models/..%2f..", "/v1/models/" + "%41" * 3000, "/v1/responses/%0a",
         "/v1/responses/..", "/kv?sequences=-1", "/kv?sequences=%d9%a3", "/kv?sequences=" + "9" * 5000, "/kv?sequences",
         "/kv?sequences=1&sequences=x", "/health?%", "/v1/models?a=%ff", "/metrics?x=1", "/%e2%80%ae", "/v1//models",
         "/v1/responses/%ed%a0%80", "/v1/responses/x/cancel/", "/openapi.json?x", "/health#x", "/v1/models/\xff"]
    )  # fmt: skip
    method = rng.choice(["GET", "GET", "POST", "HEAD", "DELETE", "PUT", "TRACE", "OPTIONS", "PATCH", "FOO"])
    return Sent(request(path, b"", method=method), is_http=False)


KINDS = (bad_text, other_encoding, odd_values, odd_values, twice, odd_headers, wrong_length, chunks, pipelined,
         abandoned, garbage, odd_paths)  # fmt: skip


def sent(seed: int) -> Sent:
    rng = random.Random(seed)
    return rng.choice(KINDS)(rng)
