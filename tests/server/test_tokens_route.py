"""/tokenize and /detokenize, at the root and under /v1; and the routes that say what runs here."""

from importlib.metadata import version
from typing import Any

import pytest
from processes import Server


@pytest.mark.parametrize("root", ["", "/v1"])
def test_there_and_back(null_server: Server, smollm2: Any, root: str) -> None:
    text = "one two  three 👍🏽"
    made = null_server.post(f"{root}/tokenize", {"prompt": text, "return_token_strs": True}).json()
    tokenizer = smollm2.tokenizer()
    assert made["tokens"] == tokenizer.encode(text, add_special_tokens=True)
    assert made["count"] == len(made["tokens"])
    assert made["max_model_len"] == 2048
    assert made["token_strs"] == [tokenizer.id_to_token(i) for i in made["tokens"]]
    back = null_server.post(f"{root}/detokenize", {"model": "smollm2", "tokens": made["tokens"]})
    assert back.json() == {"prompt": text}


def test_special_tokens_are_shown(null_server: Server) -> None:
    assert null_server.post("/detokenize", {"tokens": [1, 5000]}).json()["prompt"].startswith("<|im_start|>")


def test_a_conversation_has_the_tokens_that_a_request_counts(null_server: Server) -> None:
    messages = [{"role": "user", "content": "What is it?"}]
    made = null_server.post("/tokenize", {"messages": messages}).json()
    body = {"model": "smollm2", "messages": messages, "max_tokens": 1}
    usage = null_server.post("/v1/chat/completions", body).json()["usage"]
    assert made["count"] == usage["prompt_tokens"]
    assert made["token_strs"] is None


def test_one_bos(null_server: Server, smollm2: Any) -> None:
    """A template that writes the first token itself: it is not put there twice."""
    made = null_server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    start = smollm2.tokenizer().token_to_id("<|im_start|>")
    assert made["tokens"][0] == start
    assert made["tokens"][1] != start


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "x", "temperature": 1}, "temperature"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, "max_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "model": "gpt-9"}, "model"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1], "skip_special_tokens": False}, "skip_special_tokens"),
    ],
)
def test_refusals(null_server: Server, path: str, body: dict[str, Any], param: str) -> None:
    answer = null_server.post(path, body)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param


def test_who_is_there(null_server: Server) -> None:
    assert null_server.get("/version").json() == {"version": version("core")}
    for path in ("/live", "/ping", "/health"):
        assert null_server.get(path).json() == {"status": "ok"}


def test_the_plan(null_server: Server) -> None:
    shown = null_server.get("/plan").json()
    rows = {row["name"]: (row["value"], row["decided_by"]) for row in shown["plan"]}
    assert rows["max_model_len"] == ("2048", "asked for")
    assert shown["model"] == "smollm2"
    assert {"attn_paged", "sample"} <= {kernel["row"] for kernel in shown["kernels"]}
    assert isinstance(shown["notes"], list)
