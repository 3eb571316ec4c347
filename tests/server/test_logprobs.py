"""Log-probabilities of a real server on the null device, whose logits are known: 5 for the next token, else 0."""

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from processes import Server

Counting = Callable[[int, int], str]
LAST = 5000
VOCAB = 49152
NEXT = 5 - math.log(math.exp(5) + VOCAB - 1)
OTHER = -math.log(math.exp(5) + VOCAB - 1)
TEXT = {"model": "smollm2", "prompt": [LAST], "max_tokens": 6, "temperature": 0}
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0}
EMOJI = "🦜"


@pytest.fixture(scope="session")
def tokenizer(smollm2: Any) -> Any:
    return smollm2.tokenizer()


def completion(server: Server, **more: Any) -> Any:
    response = server.post("/v1/completions", TEXT | more)
    assert response.status_code == 200, response.text
    return response.json()


def chat(server: Server, **more: Any) -> Any:
    response = server.post("/v1/chat/completions", CHAT | more)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    events = server.post(path, body | {"stream": True}).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def spell_emoji(tokenizer: Any) -> dict[str, Any]:
    """Parameters that make the model write one emoji, token by token."""
    ids = tokenizer.encode(EMOJI, add_special_tokens=False)
    assert len(set(ids)) == len(ids) > 1
    # Each is likelier than the next one, and less likely than it once it was drawn.
    bias = {str(token_id): 100 - i for i, token_id in enumerate(ids)}
    return {"logit_bias": bias, "presence_penalty": 2, "frequency_penalty": 2, "max_tokens": len(ids)}


def joined(content: list[Any]) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in content).decode()


def test_chat(null_server: Server, tokenizer: Any) -> None:
    choice = chat(null_server, logprobs=True, top_logprobs=2)["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert joined(content) == choice["message"]["content"]
    assert len(content) == 6
    for entry in content:
        assert entry["logprob"] == pytest.approx(NEXT, abs=1e-4)
        assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx([NEXT, OTHER], abs=1e-4)
        assert {k: entry[k] for k in ("token", "logprob", "bytes")} == entry["top_logprobs"][0]
        assert entry["top_logprobs"][1]["token"] == tokenizer.id_to_token(0)
        assert entry["top_logprobs"][1]["bytes"] == []
    assert [
        entry["top_logprobs"] for entry in chat(null_server, logprobs=True)["choices"][0]["logprobs"]["content"]
    ] == [[]] * 6
    assert chat(null_server)["choices"][0]["logprobs"] is None


def test_openai_client_reads_them(null_server: Server) -> None:
    answer = null_server.openai.chat.completions.create(**CHAT, logprobs=True, top_logprobs=1)
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    text = null_server.openai.completions.create(**TEXT, logprobs=1).choices[0]
    assert "".join(text.logprobs.tokens) == text.text


def test_completion(null_server: Server, counting: Counting, tokenizer: Any) -> None:
    choice = completion(null_server, logprobs=2)["choices"][0]
    found = choice["logprobs"]
    assert found.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert "".join(found["tokens"]) == choice["text"] == counting(LAST, 6)
    assert found["token_logprobs"] == pytest.approx([NEXT] * 6, abs=1e-4)
    assert found["text_offset"] == [len(counting(LAST, i)) if i else 0 for i in range(6)]
    for token, top in zip(found["tokens"], found["top_logprobs"], strict=True):
        assert list(top) == [token, tokenizer.id_to_token(0)]
    assert completion(null_server)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_asked_for_by_id(null_server: Server, tokenizer: Any, stream: bool) -> None:
    """Beside the likeliest, and each once; not for the prompt."""

    def spell(token_id: int) -> str:
        return str(tokenizer.token_bytes(token_id).decode())

    ids = [300, LAST + 2, 0, 400]
    asked = {"logprob_token_ids": ids, "prompt": [7, LAST], "prompt_logprobs": 1, "max_tokens": 2}
    if stream:
        [first, second, *_] = chunks(null_server, "/v1/completions", TEXT | asked | {"logprobs": 1})
        first, second = (c["choices"][0]["logprobs"]["top_logprobs"][0] for c in (first, second))
    else:
        choice = completion(null_server, **asked, logprobs=1)["choices"][0]
        first, second = choice["logprobs"]["top_logprobs"]
        assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [2]
    assert list(first) == [spell(i) for i in (LAST + 1, *ids)]
    assert list(second) == [spell(i) for i in (LAST + 2, 300, 0, 400)]
    assert list(first.values()) == pytest.approx([NEXT] + [OTHER] * 4, abs=1e-4)
    assert list(second.values()) == pytest.approx([NEXT] + [OTHER] * 3, abs=1e-4)
    content = chat(null_server, logprobs=True, logprob_token_ids=ids[:1], max_tokens=1)["choices"][0]["logprobs"]
    [entry] = content["content"][0]["top_logprobs"]
    assert (entry["token"], entry["logprob"]) == (spell(300), pytest.approx(OTHER, abs=1e-4))


def test_requests_beside_one_that_asks_by_id(null_server: Server) -> None:
    """In one batch, each gets its own."""
    bodies = [TEXT | {"logprobs": 0, "max_tokens": 30, "logprob_token_ids": [300 + i] * (i % 3)} for i in range(9)]
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda body: null_server.post("/v1/completions", body).json(), bodies))
    for i, answer in enumerate(answers):
        for top in answer["choices"][0]["logprobs"]["top_logprobs"]:
            assert len(top) == 1 + bool(i % 3)


def test_the_token_drawn_is_among_the_likeliest(null_server: Server) -> None:
    found = completion(null_server, logprobs=1, logit_bias={"300": 100}, max_tokens=1)["choices"][0]["logprobs"]
    assert found["token_logprobs"] == pytest.approx([OTHER], abs=1e-4)
    assert list(found["top_logprobs"][0].values()) == pytest.approx([NEXT, OTHER], abs=1e-4)
    none = completion(null_server, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    assert list(none["top_logprobs"][0]) == none["tokens"]


def test_the_end_is_reported_and_adds_no_bytes(null_server: Server, smollm2: Any) -> None:
    """lm-eval takes the last entry away, whatever it is."""
    end = {"logit_bias": {str(smollm2.eos_ids[0]): 100}}
    choice = chat(null_server, logprobs=True, **end)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [[]]
    own = chat(null_server, logprobs=True, logit_bias={"300": 100}, stop_token_ids=[300])["choices"][0]
    assert joined(own["logprobs"]["content"]) == own["message"]["content"] == ""
    assert len(completion(null_server, logprobs=1, **end)["choices"][0]["logprobs"]["tokens"]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_an_emoji_over_several_tokens(null_server: Server, tokenizer: Any, stream: bool) -> None:
    """Source: https://github.com/ollama/ollama/issues/13497, where each part was written as U+FFFD."""
    asked = spell_emoji(tokenizer) | {"logprobs": True}
    if stream:
        choices = [c["choices"][0] for c in chunks(null_server, "/v1/chat/completions", CHAT | asked)]
        text = "".join(c["delta"].get("content") or "" for c in choices)
        content = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    else:
        choice = chat(null_server, **asked)["choices"][0]
        text, content = choice["message"]["content"], choice["logprobs"]["content"]
    assert text == EMOJI
    assert len(content) == asked["max_tokens"]
    assert joined(content) == EMOJI
    assert all(entry["token"].startswith("bytes:\\x") for entry in content)
    assert len({entry["token"] for entry in content}) == len(content)


def test_offsets_of_an_emoji(null_server: Server, tokenizer: Any) -> None:
    asked = spell_emoji(tokenizer)
    choice = completion(null_server, **asked, logprobs=0)["choices"][0]
    assert choice["text"] == EMOJI
    assert choice["logprobs"]["text_offset"] == [0] * asked["max_tokens"]


def test_stream_of_a_chat_equals_whole(null_server: Server) -> None:
    body = CHAT | {"n": 3, "temperature": 3.0, "seed": 4, "logprobs": True, "top_logprobs": 2, "max_tokens": 40}
    body |= {"prompt_logprobs": 1}
    whole = null_server.post("/v1/chat/completions", body).json()
    coming = chunks(null_server, "/v1/chat/completions", body)
    order = [c["choices"][0]["index"] for c in coming]
    assert sorted(set(order)) == [0, 1, 2]
    assert order != sorted(order)
    assert [c["prompt_logprobs"] for c in coming if "prompt_logprobs" in c] == [whole["prompt_logprobs"]]
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in coming if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["delta"].get("content") or "" for c in own) == choice["message"]["content"]
        entries = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
        assert len(entries) == 40
        assert joined_lossy(entries) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def joined_lossy(content: list[Any]) -> str:
    """Tokens drawn at random are not always UTF-8."""
    return b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"echo": True, "stop": "zzzz never"}])
def test_stream_of_completions_equals_whole(null_server: Server, more: dict[str, Any]) -> None:
    body = TEXT | {"prompt": ["The quick", "brown fox"], "n": 2, "temperature": 3.0, "seed": 4, "max_tokens": 30}
    body |= {"logprobs": 2, "prompt_logprobs": 1} | more
    whole = null_server.post("/v1/completions", body).json()
    coming = [c["choices"][0] for c in chunks(null_server, "/v1/completions", body)]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    for choice in whole["choices"]:
        own = [c for c in coming if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        for field, values in choice["logprobs"].items():
            assert [v for c in own if c["logprobs"] for v in c["logprobs"][field]] == values
        assert [c["prompt_logprobs"] for c in own if "prompt_logprobs" in c] == [choice["prompt_logprobs"]]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def test_prompt_logprobs(null_server: Server, tokenizer: Any) -> None:
    prompt = [LAST, LAST + 1, 9000]
    body = {"prompt": prompt, "prompt_logprobs": 2, "max_tokens": 1}
    first, second, third = completion(null_server, **body)["choices"][0]["prompt_logprobs"]
    assert first is None
    assert list(second) == [str(LAST + 1), "0"]
    assert second[str(LAST + 1)] == {
        "logprob": pytest.approx(NEXT, abs=1e-4),
        "rank": 1,
        "decoded_token": tokenizer.decode([LAST + 1]),
    }
    assert third.keys() == {str(LAST + 2), "0", "9000"}
    assert third["9000"]["rank"] == 2
    whole = chat(null_server, prompt_logprobs=0, n=2)
    assert len(whole["prompt_logprobs"]) == whole["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in chat(null_server)


def test_echo_of_text(null_server: Server, counting: Counting, tokenizer: Any) -> None:
    prompt = "The quick <|im_start|> fox"
    ids = tokenizer.encode(prompt)
    plain = completion(null_server, prompt=prompt)["choices"][0]["text"]
    answer = completion(null_server, prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == prompt + plain == prompt + counting(ids[-1], 6)
    assert answer["usage"]["completion_tokens"] == 6
    found = completion(null_server, prompt=prompt, echo=True, logprobs=0)["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == prompt + plain
    ends = [*found["text_offset"][1:], len(prompt + plain)]
    assert [(prompt + plain)[a:b] for a, b in zip(found["text_offset"], ends, strict=True)] == found["tokens"]


def test_echo_of_ids_that_end_inside_a_character(null_server: Server, tokenizer: Any) -> None:
    ids = tokenizer.encode(EMOJI, add_special_tokens=False)
    body = {"prompt": ids[:-1], "echo": True, "logit_bias": {str(ids[-1]): 100}, "max_tokens": 1}
    assert completion(null_server, **body)["choices"][0]["text"] == EMOJI
    assert completion(null_server, **body | {"max_tokens": 0})["choices"][0]["text"] == "�"


@pytest.mark.parametrize("stream", [False, True])
def test_loglikelihood_of_a_prompt(null_server: Server, counting: Counting, stream: bool) -> None:
    """What lm-eval sends. Source: https://github.com/vllm-project/vllm/issues/6521, where it crashed the server."""
    prompt = [LAST, LAST + 1, LAST + 2, 9000]
    body = TEXT | {"prompt": [prompt, prompt[:2]], "echo": True, "max_tokens": 0, "logprobs": 1}
    if stream:
        choices = [c["choices"][0] for c in chunks(null_server, "/v1/completions", body)]
    else:
        answer = null_server.post("/v1/completions", body).json()
        choices = answer["choices"]
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens"] == 6
    choice, short = sorted(choices, key=lambda c: c["index"])
    assert choice["text"] == counting(LAST - 1, 3) + counting(8999, 1)
    assert choice["finish_reason"] == short["finish_reason"] == "length"
    first, *rest = choice["logprobs"]["token_logprobs"]
    assert first is choice["logprobs"]["top_logprobs"][0] is None
    assert rest == pytest.approx([NEXT, NEXT, OTHER], abs=1e-4)
    greedy = [p == max(top.values()) for p, top in zip(rest, choice["logprobs"]["top_logprobs"][1:], strict=True)]
    assert greedy == [True, True, False]
    assert short["logprobs"]["token_logprobs"] == [None, pytest.approx(NEXT, abs=1e-4)]
    assert completion(null_server)["choices"][0]["text"] == counting(LAST, 6)


def test_loglikelihood_with_one_token(null_server: Server, smollm2: Any) -> None:
    """As lm-eval sends it today, also where the one token is the end."""
    prompt = [LAST, LAST + 1, smollm2.eos_ids[0] - 1]
    answer = completion(null_server, prompt=prompt, echo=True, max_tokens=1, logprobs=1)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 4
    assert answer["usage"]["completion_tokens"] == 1


def test_echo_alone(null_server: Server) -> None:
    """Also where a stop or an end would be drawn."""
    answer = completion(null_server, prompt="Hi there", echo=True, max_tokens=0, stop=["e"])
    assert answer["choices"][0] == {
        "index": 0,
        "text": "Hi there",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
