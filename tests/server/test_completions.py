"""/v1/completions of a real server on the null device, whose output can be computed: each id plus 1."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from processes import Server

Counting = Callable[[int, int], str]
START = 5000


def ask(server: Server, **body: Any) -> Any:
    return server.openai.completions.create(**{"model": "smollm2", "temperature": 0, **body})


def streamed(server: Server, **body: Any) -> list[Any]:
    return list(ask(server, stream=True, **body))


def test_ids_in_text_out(null_server: Server, counting: Counting) -> None:
    answer = ask(null_server, prompt=[7, START], max_tokens=20)
    assert answer.choices[0].text == counting(START, 20)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 20, 22)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "smollm2"


def test_text_prompt_is_encoded_with_special_tokens(null_server: Server, counting: Counting, smollm2: Any) -> None:
    ids = smollm2.tokenizer().encode("The quick brown fox", add_special_tokens=True)
    answer = ask(null_server, prompt="The quick brown fox", max_tokens=5)
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.choices[0].text == counting(ids[-1], 5)


def test_max_tokens_is_16_where_not_given(null_server: Server) -> None:
    assert ask(null_server, prompt=[START]).usage.completion_tokens == 16


@pytest.mark.parametrize("more", [{}, {"stop": "zzzz never"}], ids=["plain", "with a stop string"])
def test_stream_equals_whole(null_server: Server, more: dict[str, Any]) -> None:
    whole = ask(null_server, prompt=[START], max_tokens=200, **more)
    chunks = streamed(null_server, prompt=[START], max_tokens=200, **more)
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 20
    assert len({c.id for c in chunks}) == 1


def test_several_prompts_are_choices_by_index(null_server: Server, counting: Counting) -> None:
    starts = [START, 9000, 12000]
    answer = ask(null_server, prompt=[[s] for s in starts], max_tokens=8)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.text for c in answer.choices] == [counting(s, 8) for s in starts]
    assert answer.usage.completion_tokens == 24
    texts = ["", "", ""]
    for chunk in streamed(null_server, prompt=[[s] for s in starts], max_tokens=8):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [counting(s, 8) for s in starts]


def test_several_texts(null_server: Server) -> None:
    answer = ask(null_server, prompt=["one", "two"], max_tokens=3)
    alone = [ask(null_server, prompt=text, max_tokens=3).choices[0].text for text in ("one", "two")]
    assert [c.text for c in answer.choices] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_across_tokens(null_server: Server, counting: Counting, smollm2: Any, stream: bool) -> None:
    """The stop string begins inside one token and ends inside the next but one."""
    tokenizer = smollm2.tokenizer()
    text = counting(START, 40)
    cut = len(tokenizer.decode(list(range(START + 1, START + 11)))) - 1
    stop = text[cut : cut + len(tokenizer.decode([START + 11])) + 2]
    expected = text[: text.index(stop)]
    body = {"prompt": [START], "max_tokens": 40, "stop": [stop, "not there"]}
    answers = streamed(null_server, **body) if stream else [ask(null_server, **body)]
    choices = [answer.choices[0] for answer in answers]
    assert "".join(c.text for c in choices) == expected
    assert choices[-1].finish_reason == "stop"
    assert choices[-1].stop_reason == stop


def test_stop_string_may_be_a_plain_string(null_server: Server, counting: Counting) -> None:
    text = counting(START, 40)
    assert (
        ask(null_server, prompt=[START], max_tokens=40, stop=text[30:34]).choices[0].text
        == text[: text.index(text[30:34])]
    )


def test_stop_token_ids(null_server: Server, counting: Counting) -> None:
    choice = ask(null_server, prompt=[START], max_tokens=40, extra_body={"stop_token_ids": [START + 10]}).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == START + 10
    assert choice.text == counting(START, 9)


def test_end_of_sequence_and_ignore_eos(null_server: Server, smollm2: Any) -> None:
    eos = smollm2.eos_ids[0]
    prompt = [(eos - 2) % 49152]
    stopped = ask(null_server, prompt=prompt, max_tokens=10)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens == 2
    ignored = ask(null_server, prompt=prompt, max_tokens=10, extra_body={"ignore_eos": True})
    assert ignored.choices[0].finish_reason == "length"
    assert ignored.usage.completion_tokens == 10


def test_usage_in_streams(null_server: Server) -> None:
    body = {"prompt": [START], "max_tokens": 5}
    assert all(c.usage is None and c.choices for c in streamed(null_server, **body))
    *chunks, last = streamed(null_server, **body, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (1, 5)
    assert all(c.usage is None and c.choices for c in chunks)


def test_continuous_usage(null_server: Server) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(null_server, prompt=[START], max_tokens=5, stream_options=options)
    counts = [c.usage.completion_tokens for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_cached_tokens_are_reported_and_salted(null_server: Server) -> None:
    prompt = [20000 + i for i in range(100)]

    def cached(**extra: Any) -> int:
        return ask(null_server, prompt=prompt, max_tokens=1, extra_body=extra).usage.prompt_tokens_details.cached_tokens

    assert cached() == 0
    again = cached()
    assert 0 < again < 100
    assert cached(cache_salt="someone else") == 0
    assert cached(cache_salt="someone else") == again
    *_, last = streamed(null_server, prompt=prompt, max_tokens=1, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == again


def test_stream_format(null_server: Server) -> None:
    body = {"model": "smollm2", "prompt": [START], "max_tokens": 3, "stream": True}
    response = null_server.post("/v1/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events)


def test_neutral_values_of_later_fields_are_taken(null_server: Server, counting: Counting) -> None:
    """The body that vLLM's benchmark sends, with everything else that asks for nothing."""
    body = {
        "model": "smollm2", "prompt": [START], "max_tokens": 4, "temperature": 0.0, "repetition_penalty": 1.0,
        "logprobs": None, "ignore_eos": True, "n": 1, "best_of": 1, "echo": False, "presence_penalty": 0,
        "frequency_penalty": 0.0, "logit_bias": {}, "suffix": None, "user": "me", "stop": None, "seed": 3,
        "top_k": -1, "top_p": 1, "priority": 1, "stream": False, "stream_options": None, "min_p": 0,
        "bad_words": [], "allowed_token_ids": None, "min_tokens": 0, "prompt_logprobs": None, "top_logprobs": 0,
    }  # fmt: skip
    response = null_server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == counting(START, 4)


def test_unknown_model_is_404(null_server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        null_server.openai.completions.create(model="gpt-9", prompt="x")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "smollm2" in caught.value.message
