"""Every sampling parameter takes effect over HTTP, on both endpoints, and is refused out of range with its limit.

On the null device the token after the last one has a logit of 5, and all others of 0, before parameters change them.
"""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from processes import Server

Ids = list[int]
Case = tuple[dict[str, Any], Callable[[int], Ids]]

PAIR = {"allowed_token_ids": [300, 350]}
LAST = 5000
HI = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/completions": {"model": "smollm2", "prompt": [LAST], "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": {"model": "smollm2", "messages": HI, "max_tokens": 4, "temperature": 0},
}

# Parameter -> what is sent, and the ids drawn after the prompt's last one.
CASES: dict[str, Case] = {
    "logit_bias": ({"logit_bias": {"300": 100}}, lambda _: [300] * 4),
    "allowed_token_ids": ({"allowed_token_ids": [340, 330]}, lambda _: [330] * 4),
    "min_p": ({"temperature": 2.0, "seed": 3, "min_p": 1.0}, lambda last: [last + i for i in range(1, 5)]),
    "repetition_penalty": (
        {**PAIR, "logit_bias": {"300": 30, "350": 20}, "repetition_penalty": 50.0},
        lambda _: [300, 350, 300, 300],
    ),
    "frequency_penalty": (
        {**PAIR, "logit_bias": {"300": 1.5}, "frequency_penalty": 2.0},
        lambda _: [300, 350, 300, 350],
    ),
    "presence_penalty": ({**PAIR, "logit_bias": {"300": 1.5}, "presence_penalty": 2.0}, lambda _: [300, 350, 300, 300]),
    "min_tokens": (
        {"logit_bias": {"300": 1}, "stop_token_ids": [300], "min_tokens": 4, "allowed_token_ids": [300, 309]},
        lambda _: [309] * 4,
    ),
}

WRONG = [
    ("n", 0, "between 1 and 128"),
    ("n", 129, "between 1 and 128"),
    ("min_p", 1.5, "between 0 and 1"),
    ("repetition_penalty", 0, "between 0.01 and 100"),
    ("repetition_penalty", 5e-324, "between 0.01 and 100"),
    ("frequency_penalty", 2.5, "between -2 and 2"),
    ("presence_penalty", -2.5, "between -2 and 2"),
    ("logit_bias", {"49152": 1}, "between 0 and 49151"),
    ("logit_bias", {"-1": 1}, "between 0 and 49151"),
    ("logit_bias", {"5": 100.5}, "between -100 and 100"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "at most 1024"),
    ("logit_bias", {"five": 1}, "keys must be integers"),
    ("logit_bias", {"1.5": 1}, "keys must be integers"),
    ("logit_bias", {"007": 1}, "keys must be integers"),
    ("logit_bias", [5], "logit_bias"),
    ("allowed_token_ids", [49152], "between 0 and 49151"),
    ("bad_words", [""], "not empty"),
    ("bad_words", ["x"] * 17, "at most 16"),
    ("bad_words", "x", "bad_words"),
    ("min_tokens", 5, "at most max_tokens, 4"),
    ("min_tokens", -1, "at least 0"),
    ("logprob_token_ids", [5], "needs logprobs"),
    ("prompt_logprobs", 21, "between 0 and 20"),
    ("prompt_logprobs", -1, "between 0 and 20"),
]


@pytest.fixture(scope="session")
def tokenizer(smollm2: Any) -> Any:
    return smollm2.tokenizer()


def texts(response: httpx.Response) -> list[str]:
    """Of every choice."""
    assert response.status_code == 200, response.text
    return [c["text"] if "text" in c else c["message"]["content"] for c in response.json()["choices"]]


def last_id(path: str, tokenizer: Any) -> int:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    return LAST if path == "/v1/completions" else tokenizer.encode(prompt, add_special_tokens=False)[-1]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", CASES)
def test_effect(null_server: Server, tokenizer: Any, path: str, name: str) -> None:
    """With the parameter the ids expected, without it others."""
    asked, expected = CASES[name]
    text = tokenizer.decode(expected(last_id(path, tokenizer)))
    assert texts(null_server.post(path, BODIES[path] | asked)) == [text]
    without = {field: value for field, value in asked.items() if field != name}
    assert texts(null_server.post(path, BODIES[path] | without)) != [text]


@pytest.mark.parametrize("path", BODIES)
def test_bad_words(null_server: Server, tokenizer: Any, path: str) -> None:
    [the] = tokenizer.encode(" the", add_special_tokens=False)
    body = BODIES[path] | {"logit_bias": {str(the): 8, "300": 7}}
    assert texts(null_server.post(path, body)) == [" the" * 4]
    assert texts(null_server.post(path, body | {"bad_words": ["the"]})) == [tokenizer.decode([300] * 4)]


@pytest.mark.parametrize("path", BODIES)
def test_n(null_server: Server, path: str) -> None:
    """Choices by index that draw independently; the prompt counts once, and a seed repeats them all."""
    body = BODIES[path] | {"n": 3, "temperature": 2.0, "seed": 8}
    response = null_server.post(path, body)
    assert len(set(texts(response))) == 3
    assert [c["index"] for c in response.json()["choices"]] == [0, 1, 2]
    usage = response.json()["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens"] == null_server.post(path, BODIES[path]).json()["usage"]["prompt_tokens"]
    assert texts(null_server.post(path, body)) == texts(response)
    assert texts(null_server.post(path, body | {"n": 1})) == texts(response)[:1]


def test_n_of_several_prompts(null_server: Server, counting: Callable[[int, int], str]) -> None:
    body = BODIES["/v1/completions"] | {"prompt": [[LAST], [9000]], "n": 2}
    response = null_server.post("/v1/completions", body)
    assert texts(response) == [counting(LAST, 4)] * 2 + [counting(9000, 4)] * 2
    assert [c["index"] for c in response.json()["choices"]] == [0, 1, 2, 3]
    assert response.json()["usage"]["prompt_tokens"] == 2


def refused(response: httpx.Response, param: str, words: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("field", "value", "limit"), WRONG)
def test_out_of_range(null_server: Server, path: str, field: str, value: Any, limit: str) -> None:
    refused(null_server.post(path, BODIES[path] | {field: value}), field, limit)


@pytest.mark.parametrize(
    ("path", "more", "param", "words"),
    [
        ("/v1/completions", {"logprobs": 21}, "logprobs", "between 0 and 20"),
        ("/v1/completions", {"logprobs": True}, "logprobs", "integer"),
        ("/v1/completions", {"top_logprobs": 2}, "top_logprobs", "leave it out"),
        ("/v1/completions", {"max_tokens": 0}, "max_tokens", "at least 1"),
        ("/v1/completions", {"prompt": [[5]] * 11, "n": 100}, "n", "1024"),
        ("/v1/chat/completions", {"logprobs": 2}, "logprobs", "boolean"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs", "when logprobs is true"),
        ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 2}, "top_logprobs", "when logprobs is true"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        ("/v1/chat/completions", {"echo": True}, "echo", "continue_final_message"),
        ("/v1/chat/completions", {"max_tokens": 0}, "max_tokens", "at least 1"),
        (
            "/v1/chat/completions",
            {"max_completion_tokens": 3, "min_tokens": 4},
            "min_tokens",
            "at most max_completion_tokens, 3",
        ),
    ],
)
def test_refusals_of_one_endpoint(null_server: Server, path: str, more: Any, param: str, words: str) -> None:
    refused(null_server.post(path, BODIES[path] | more), param, words)
