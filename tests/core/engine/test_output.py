"""Text of outputs with several ids at once, as drafts give them: the same as one by one."""

from __future__ import annotations

import pytest

from core import SamplingParams
from core.engine.output import Delta, TextOutput
from core.model.tokenizer import Tokenizer
from core.request import Logprobs, SequenceOutput

END = 2


def pushed(tokenizer: Tokenizer, params: SamplingParams, parts: list[list[int]], reason: str) -> list[Delta]:
    """Deltas up to the one that ends; the last part comes with `reason`."""
    output, deltas = TextOutput(tokenizer, params, [5]), []
    for i, ids in enumerate(parts):
        last = i == len(parts) - 1
        stop_id = END if last and reason == "stop" else None
        logprobs = [Logprobs(-float(token_id), 1, [], []) for token_id in ids]
        deltas.append(output.push(SequenceOutput("1", ids, reason if last else None, stop_id, logprobs=logprobs)))
        if deltas[-1].finish_reason:
            break
    return deltas


def together(deltas: list[Delta]) -> tuple[object, ...]:
    text = "".join(delta.text for delta in deltas)
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    logprobs = [each.logprob for delta in deltas for each in delta.logprobs]
    return text, ids, logprobs, deltas[-1].finish_reason, deltas[-1].stop_reason


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("stop", [(), ("c",), ("bcd", "e"), ("ab",), ("fgz", "g"), ("é",)])
@pytest.mark.parametrize("included", [False, True])
def test_several_ids_are_as_one_by_one(
    tokenizer: Tokenizer, stop: tuple[str, ...], reason: str, included: bool
) -> None:
    ids = tokenizer.encode("abcdefgé", add_special_tokens=False) + [END] * (reason == "stop")
    assert len(ids) >= 7
    params = SamplingParams(stop=stop, include_stop_str_in_output=included)
    wanted = together(pushed(tokenizer, params, [[token_id] for token_id in ids], reason))
    for size in range(2, len(ids) + 1):
        parts = [ids[start : start + size] for start in range(0, len(ids), size)]
        assert together(pushed(tokenizer, params, parts, reason)) == wanted


def test_an_end_without_ids(tokenizer: Tokenizer) -> None:
    deltas = pushed(
        tokenizer, SamplingParams(stop=("zz",)), [tokenizer.encode("az", add_special_tokens=False), []], "abort"
    )
    assert together(deltas)[0] == "az"
    assert deltas[-1].finish_reason == "abort"
