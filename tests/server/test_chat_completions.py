"""/v1/chat/completions of a real server: on the null device its shape, on the cpu its sense."""

from typing import Any

import pytest
from processes import Server

CAPITAL = [{"role": "user", "content": "Name the capital of France."}]


def ask(server: Server, **body: Any) -> Any:
    return server.openai.chat.completions.create(**{"model": "smollm2", "messages": CAPITAL, "temperature": 0, **body})


def test_shape(null_server: Server) -> None:
    answer = ask(null_server, max_tokens=5)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_template_is_rendered_and_not_doubled(null_server: Server, smollm2: Any) -> None:
    """The prompt has the tokens of the rendered template, encoded without adding special tokens again."""
    transformers_prompt = (
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = smollm2.tokenizer().encode(transformers_prompt, add_special_tokens=False)
    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hi"}]
    assert ask(null_server, messages=messages, max_tokens=1).usage.prompt_tokens == len(ids)


def test_max_completion_tokens_wins(null_server: Server) -> None:
    assert ask(null_server, max_tokens=9, max_completion_tokens=4).usage.completion_tokens == 4


def test_without_limit_the_rest_of_the_context_is_used(null_server: Server) -> None:
    limit = null_server.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = ask(null_server, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == limit
    assert answer.choices[0].finish_reason == "length"


def test_parts_equal_a_string(null_server: Server) -> None:
    parts = [{"type": "text", "text": "Name the capital"}, {"type": "text", "text": " of France."}]
    answer = ask(null_server, messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert answer.usage.prompt_tokens == ask(null_server, max_tokens=1).usage.prompt_tokens


def test_developer_means_system(null_server: Server) -> None:
    first, second = (
        ask(null_server, messages=[{"role": role, "content": "Be brief."}, *CAPITAL], max_tokens=3)
        for role in ("system", "developer")
    )
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage.prompt_tokens == second.usage.prompt_tokens


def test_an_answer_may_be_sent_back_whole(null_server: Server) -> None:
    message = ask(null_server, max_tokens=3).choices[0].message
    history = [*CAPITAL, message.model_dump(), {"role": "user", "content": "And of Spain?"}]
    assert ask(null_server, messages=history, max_tokens=2).usage.completion_tokens == 2


def test_stream(null_server: Server) -> None:
    whole = ask(null_server, max_tokens=50)
    chunks = list(ask(null_server, max_tokens=50, stream=True, stream_options={"include_usage": True}))
    first, *middle, last = chunks
    assert first.choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in middle)
    assert "".join(c.choices[0].delta.content or "" for c in (first, *middle)) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in middle if c.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage.model_dump() | {"prompt_tokens_details": None} == whole.usage.model_dump() | {
        "prompt_tokens_details": None
    }
    assert {c.object for c in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize("name", ["smollm2", "other-name"])
def test_every_served_name_is_listed_and_answers(null_server: Server, name: str) -> None:
    assert name in [m.id for m in null_server.openai.models.list()]
    assert null_server.openai.models.retrieve(name).id == name
    assert ask(null_server, model=name, max_tokens=1).model == name


def test_smollm2_knows_the_capital_of_france(cpu_server: Server) -> None:
    whole = ask(cpu_server, temperature=0, max_tokens=24)
    assert "Paris" in whole.choices[0].message.content
    chunks = list(ask(cpu_server, temperature=0, max_tokens=24, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_seed_repeats_its_draws(cpu_server: Server) -> None:
    texts = [
        ask(cpu_server, temperature=1.5, seed=seed, max_tokens=6).choices[0].message.content for seed in (11, 11, 12)
    ]
    assert texts[0] == texts[1] != texts[2]
