"""What else a request may ask: which text is shown, which part of a prompt counts, how a template is given what.

On the null device the token after the last one has a logit of 5, and all others of 0, before parameters change them.
"""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import Server

from core.errors import ConfigError, RequestError
from core.request import SamplingParams
from server.chat import Desk
from server.conversation import ChatBody
from server.dialect import Wishes, read_template, resolve
from server.reasoning import DEEPSEEK_R1, QWEN3
from server.strict import checked

Counting = Callable[[int, int], str]
LAST = 5000
BOS = "<|im_start|>"
TEXT = {"model": "smollm2", "prompt": [LAST], "max_tokens": 4, "temperature": 0}
HI = [{"role": "user", "content": "Hi"}]
CHAT = {"model": "smollm2", "messages": HI, "max_tokens": 4, "temperature": 0}


def choice(server: Server, body: dict[str, Any], path: str = "/v1/completions") -> Any:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def prompt(server: Server, **more: Any) -> str:
    """The prompt of a chat, as the server made it."""
    body = CHAT | {"max_tokens": 1, "return_token_ids": True} | more
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    return tokenizer().decode(response.json()["prompt_token_ids"], skip_special_tokens=False)


def tokenizer() -> Any:
    from server.models import open_model

    return open_model("smollm2").tokenizer()


def refused(server: Server, param: str, words: str, **more: Any) -> None:
    response = server.post("/v1/chat/completions", CHAT | more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


def chunks(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    events = server.post(path, body | {"stream": True}).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@pytest.mark.parametrize("field", ["include_stop_str_in_output", "no_stop_trim"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_string_may_be_shown(null_server: Server, counting: Counting, field: str, stream: bool) -> None:
    text = counting(LAST, 40)
    stop = text[30:34]
    body = TEXT | {"max_tokens": 40, "stop": stop, field: True}
    if stream:
        shown = "".join(c["choices"][0]["text"] for c in chunks(null_server, "/v1/completions", body))
    else:
        shown = choice(null_server, body)["text"]
    assert shown == text[: text.index(stop) + 4]


def test_the_stop_id_may_be_shown(null_server: Server, counting: Counting) -> None:
    body = TEXT | {"max_tokens": 40, "stop_token_ids": [LAST + 10], "logprobs": 0}
    assert choice(null_server, body)["text"] == counting(LAST, 9)
    shown = choice(null_server, body | {"include_stop_str_in_output": True})
    assert shown["text"] == counting(LAST, 10)
    assert shown["finish_reason"] == "stop"
    chat = CHAT | {"logit_bias": {"300": 100}, "stop_token_ids": [300], "logprobs": True}
    chat |= {"include_stop_str_in_output": True}
    shown = choice(null_server, chat, "/v1/chat/completions")
    assert bytes(shown["logprobs"]["content"][0]["bytes"]).decode() == shown["message"]["content"] == counting(299, 1)


def test_special_tokens_may_be_shown(null_server: Server) -> None:
    bias = {"logit_bias": {"3": 100}, "logprobs": True}
    assert choice(null_server, CHAT | bias, "/v1/chat/completions")["message"]["content"] == ""
    shown = choice(null_server, CHAT | bias | {"skip_special_tokens": False}, "/v1/chat/completions")
    content = shown["message"]["content"]
    assert content == tokenizer().id_to_token(3) * 4
    assert b"".join(bytes(e["bytes"]) for e in shown["logprobs"]["content"]).decode() == content
    refused(null_server, "spaces_between_special_tokens", "without spaces", skip_special_tokens=False,
            spaces_between_special_tokens=True)  # fmt: skip
    assert prompt(null_server, spaces_between_special_tokens=True)


def test_token_ids(null_server: Server) -> None:
    body = TEXT | {"prompt": [[7, LAST], [9]], "return_token_ids": True, "n": 2}
    whole = null_server.post("/v1/completions", body).json()["choices"]
    assert [c["token_ids"] for c in whole] == [[LAST + i for i in range(1, 5)]] * 2 + [[10, 11, 12, 13]] * 2
    assert [c["prompt_token_ids"] for c in whole] == [[7, LAST]] * 2 + [[9]] * 2
    ids: list[list[int]] = [[], [], [], []]
    for chunk in chunks(null_server, "/v1/completions", body):
        ids[chunk["choices"][0]["index"]] += chunk["choices"][0]["token_ids"]
    assert ids == [c["token_ids"] for c in whole]
    assert "token_ids" not in choice(null_server, TEXT)


def test_token_ids_of_a_chat(null_server: Server) -> None:
    body = CHAT | {"return_token_ids": True, "n": 2}
    whole = null_server.post("/v1/chat/completions", body).json()
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert [len(c["token_ids"]) for c in whole["choices"]] == [4, 4]
    coming = chunks(null_server, "/v1/chat/completions", body)
    assert [c["prompt_token_ids"] for c in coming if "prompt_token_ids" in c] == [whole["prompt_token_ids"]]
    first = [c["choices"][0] for c in coming if c["choices"][0]["index"] == 0]
    assert [i for c in first for i in c.get("token_ids", [])] == whole["choices"][0]["token_ids"]


def test_tokens_as_ids(null_server: Server) -> None:
    more = {"return_tokens_as_token_ids": True}
    found = choice(null_server, TEXT | more | {"logprobs": 1})["logprobs"]
    assert found["tokens"] == [f"token_id:{LAST + i}" for i in range(1, 5)]
    assert list(found["top_logprobs"][0]) == [f"token_id:{LAST + 1}"]
    chat = choice(null_server, CHAT | more | {"logprobs": True, "top_logprobs": 1}, "/v1/chat/completions")
    for entry in chat["logprobs"]["content"]:
        assert entry["token"] == entry["top_logprobs"][0]["token"]
        assert entry["token"].startswith("token_id:")


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, [9, 10]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [9, 10]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [7, 8]),
        ({"truncate_prompt_tokens": 50}, [7, 8, 9, 10]),
        ({"truncate_prompt_tokens": -1}, [7, 8, 9, 10]),
    ],
)
def test_truncation(null_server: Server, asked: dict[str, Any], kept: list[int]) -> None:
    body = TEXT | {"prompt": [7, 8, 9, 10], "return_token_ids": True, "echo": True} | asked
    answer = choice(null_server, body)
    assert answer["prompt_token_ids"] == kept
    assert answer["text"] == tokenizer().decode([*kept, *range(kept[-1] + 1, kept[-1] + 5)])


def test_truncation_to_what_has_room(null_server: Server) -> None:
    limit = null_server.get("/v1/models").json()["data"][0]["max_model_len"]
    body = TEXT | {"prompt": [LAST] * (limit + 5), "truncate_prompt_tokens": -1}
    usage = null_server.post("/v1/completions", body).json()["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (limit - 4, limit)


def test_truncation_of_a_text_that_is_echoed(null_server: Server) -> None:
    body = TEXT | {"prompt": "one two three", "truncate_prompt_tokens": 1, "echo": True, "max_tokens": 0}
    assert choice(null_server, body)["text"] == " three"


def test_request_id(null_server: Server) -> None:
    """It may be used twice at once: the engine's own ids stay different."""
    body = TEXT | {"request_id": "mine-1", "n": 2, "stream": True}
    coming = [chunks(null_server, "/v1/completions", body) for _ in range(2)]
    assert {c["id"] for each in coming for c in each} == {"cmpl-mine-1"}
    assert null_server.post("/v1/chat/completions", CHAT | {"request_id": "a"}).json()["id"] == "chatcmpl-a"


def test_priority(narrow_server: Server) -> None:
    """What waits runs by it, the lowest first, and not by who came first."""
    done: list[int] = []

    def ask(priority: int) -> None:
        assert narrow_server.post("/v1/completions", TEXT | {"priority": priority}).status_code == 200
        done.append(priority)

    holding = TEXT | {"max_tokens": 8000, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor() as pool:
        with narrow_server.client.stream("POST", "/v1/completions", json=holding) as response:
            lines = response.iter_lines()  # once nobody holds it, the connection is closed
            next(lines)
            waiting = [pool.submit(ask, priority) for priority in (3, 1, 2, -1)]
            deadline_s = time.monotonic() + 10
            while narrow_server.metrics()["num_requests_waiting"] < 4:
                assert time.monotonic() < deadline_s
        for each in waiting:
            each.result()
    assert done == [-1, 1, 2, 3]


@pytest.mark.parametrize(("interval", "num_chunks"), [(1, 20), (4, 6), (100, 2)])
def test_stream_interval(null_server: Server, interval: int, num_chunks: int) -> None:
    """The first token does not wait, and nothing is held back at the end."""
    body = TEXT | {"max_tokens": 20, "stream_interval": interval, "logprobs": 0}
    coming = [c["choices"][0] for c in chunks(null_server, "/v1/completions", body)]
    whole = choice(null_server, {k: v for k, v in body.items() if k != "stream_interval"})
    assert len(coming) == num_chunks
    assert len(coming[0]["logprobs"]["tokens"]) == 1
    assert "".join(c["text"] for c in coming) == whole["text"]
    assert [t for c in coming for t in c["logprobs"]["tokens"]] == whole["logprobs"]["tokens"]
    assert coming[-1]["finish_reason"] == "length"


def test_special_tokens_around_a_prompt(curious_server: Server) -> None:
    """A template that writes BOS gets no second one, unless it is asked for.

    Source: https://github.com/vllm-project/vllm/issues/9519.
    """
    assert prompt(curious_server) == f"{BOS}user:Hi|assistant:"
    assert prompt(curious_server, add_special_tokens=False) == f"{BOS}user:Hi|assistant:"
    assert prompt(curious_server, add_special_tokens=True) == f"{BOS}{BOS}user:Hi|assistant:"
    tokens = curious_server.post("/tokenize", {"model": "smollm2", "messages": HI}).json()["tokens"]
    assert tokens.count(1) == 1

    def of_text(**more: Any) -> Any:
        return choice(curious_server, TEXT | {"prompt": "Hi", "return_token_ids": True} | more)["prompt_token_ids"]

    assert of_text() == [1, *of_text(add_special_tokens=False)]
    assert of_text(add_special_tokens=True) == of_text()


def test_what_a_template_is_given(curious_server: Server) -> None:
    assert "[one;two;]" in prompt(curious_server, documents=[{"text": "one"}, {"text": "two"}])
    assert "(glad)" in prompt(curious_server, chat_template_kwargs={"mood": "glad"})
    assert "<low>" in prompt(curious_server, reasoning_effort="low")
    assert prompt(curious_server, add_generation_prompt=False).endswith("user:Hi|")
    own = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    assert prompt(curious_server, chat_template=own) == "Hi!"


def test_what_a_template_does_not_look_at(null_server: Server, curious_server: Server) -> None:
    refused(curious_server, "chat_template_kwargs", "colour", chat_template_kwargs={"colour": 1})
    refused(curious_server, "chat_template_kwargs", "only the server", chat_template_kwargs={"documents": []})
    own = {"chat_template": "{{ template }}", "chat_template_kwargs": {"template": "x"}}
    refused(curious_server, "chat_template_kwargs", "only the server", **own)
    refused(null_server, "chat_template_kwargs", "mood", chat_template_kwargs={"mood": "glad"})
    refused(null_server, "documents", "does not look at documents", documents=[{"text": "one"}])
    refused(null_server, "reasoning_effort", "knows no effort", reasoning_effort="low")
    refused(null_server, "chat_template", "--trust-request-chat-template", chat_template="{{ messages }}")
    refused(curious_server, "chat_template", "template is wrong", chat_template="{% if %}")
    refused(curious_server, "messages", "cannot render", chat_template="{{ raise_exception('no') }}")


@pytest.mark.parametrize("content", ["The capital", " The capital "])
def test_an_answer_goes_on_where_a_message_ends(curious_server: Server, content: str) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    asked = {"messages": messages, "continue_final_message": True}
    assert prompt(curious_server, **asked).endswith("assistant:The capital")
    plain = choice(curious_server, CHAT | asked, "/v1/chat/completions")["message"]["content"]
    echoed = CHAT | asked | {"echo": True}
    assert choice(curious_server, echoed, "/v1/chat/completions")["message"]["content"] == content + plain
    coming = chunks(curious_server, "/v1/chat/completions", echoed)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in coming) == content + plain


def test_what_cannot_be_continued(null_server: Server) -> None:
    refused(null_server, "continue_final_message", "assistant's", continue_final_message=True)
    refused(null_server, "echo", "continue_final_message", echo=True)
    messages = [*HI, {"role": "assistant", "content": "Yes"}]
    refused(null_server, "continue_final_message", "only one", messages=messages, continue_final_message=True,
            add_generation_prompt=True)  # fmt: skip


def test_a_template_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("{% if %}")
    for name, words in (("missing", "cannot be read"), ("wrong", "template is wrong")):
        with pytest.raises(ConfigError, match=words):
            read_template(str(tmp_path / name))


def test_a_dialect(smollm2: Any) -> None:
    """What the operator says goes before what the template shows, and is checked."""
    made, rows = resolve(smollm2, Wishes(tool_call_parser="mistral", reasoning_parser="qwen3"))
    assert (made.tools.name, made.reasoning and made.reasoning.name) == ("mistral", "qwen3")
    assert [row[2] for row in rows] == ["--tool-call-parser", "--reasoning-parser"]
    made, rows = resolve(smollm2, Wishes(chat_template="{{ messages[0].content }}<think>\n[TOOL_CALLS]"))
    assert (made.tools.name, made.reasoning) == ("mistral", QWEN3)
    made, rows = resolve(smollm2, Wishes(chat_template="[TOOL_CALLS]{{ messages[0].content }}<think>\n"))
    assert (made.tools.name, made.reasoning) == ("mistral", DEEPSEEK_R1)
    assert {row[2] for row in rows} == {"the chat template"}
    for wishes, words in (
        (Wishes(tool_call_parser="x"), "--tool-call-parser is 'x': choose among hermes"),
        (Wishes(reasoning_parser="x"), "--reasoning-parser is 'x': choose among deepseek_r1, qwen3, none"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve(smollm2, wishes)
    assert resolve(smollm2, Wishes(reasoning_parser="none", chat_template="<think>"))[0].reasoning is None


async def refuse_auto(smollm2: Any) -> None:
    dialect, _ = resolve(smollm2, Wishes(auto_tool_choice=False))
    desk = Desk(smollm2, front=None, max_model_len=64, dialect=dialect)  # type: ignore[arg-type]  # it comes not so far
    tool = {"type": "function", "function": {"name": "f"}}
    await desk.chat(checked(CHAT | {"tools": [tool]}, ChatBody), SamplingParams())


def test_calls_that_a_model_may_not_choose(smollm2: Any) -> None:
    with pytest.raises(RequestError, match="--no-enable-auto-tool-choice"):
        asyncio.run(refuse_auto(smollm2))
