"""Outputs, id by id, to what answers show: marks that are special tokens, stop strings, counts of reasoning."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from core.request import SamplingParams, SequenceOutput
from server.reader import Parsers, Read, Reader
from server.reasoning import QWEN3, Start
from server.tools.format import ToolFormat
from server.tools.formats import HERMES, MISTRAL

SPECIAL = replace(MISTRAL, name="special", open="<|im_start|>")
CALLS = [("get", '{"a": "é🦜"}'), ("add", "{}")]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Any) -> Any:
    return smollm2.tokenizer()


def reads(reader: Reader, ids: list[int], ends: str, size: int = 1) -> list[Read]:
    """What each step gives; the last id ends the output with this reason."""
    found = []
    for at in range(0, len(ids), size):
        is_last = at + size >= len(ids)
        stop_id = ids[-1] if is_last and ends == "stop" else None
        read = reader.push(SequenceOutput("r", ids[at : at + size], ends if is_last else None, stop_id))
        found.append(read)
        if read.finish_reason is not None:
            break
    return found


def whole(found: Iterable[Read]) -> tuple[str, str, list[tuple[str, str]], str | None, int]:
    content = reasoning = ""
    calls: dict[int, list[str]] = {}
    tokens, reason = 0, None
    for read in found:
        content, reasoning, tokens = content + read.content, reasoning + read.reasoning, tokens + read.num_reasoning
        reason = read.finish_reason
        for number, name, _, arguments in read.calls:
            calls.setdefault(number, [name, ""])[1] += arguments
    return content, reasoning, [(name, arguments) for name, arguments in calls.values()], reason, tokens


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("spec", [HERMES, MISTRAL, SPECIAL], ids=lambda spec: spec.name)
def test_calls(tokenizer: Any, smollm2: Any, spec: ToolFormat, size: int) -> None:
    ids = tokenizer.encode("Let me see. " + spec.write(CALLS), add_special_tokens=False) + smollm2.eos_ids[:1]
    found = reads(Parsers(tools=spec).open(tokenizer, SamplingParams(), []), ids, "stop", size)
    assert whole(found) == ("Let me see. ", "", CALLS, "tool_calls", 0)
    begun = [part for read in found for part in read.calls if part.name]
    assert [part.number for part in begun] == [0, 1]
    assert len({part.call_id for part in begun}) == 2


def test_a_special_token_is_no_text_where_it_is_no_mark(tokenizer: Any) -> None:
    ids = tokenizer.encode("a<|im_start|>b", add_special_tokens=False)
    assert whole(reads(Parsers(tools=HERMES).open(tokenizer, SamplingParams(), []), ids, "length"))[0] == "ab"
    shown = SamplingParams(skip_special_tokens=False)
    assert whole(reads(Parsers(tools=HERMES).open(tokenizer, shown, []), ids, "length"))[0] == "a<|im_start|>b"


def test_stop_strings_end_content_alone(tokenizer: Any) -> None:
    text = "<think>\nSTOP\n</think>\n\nSo " + HERMES.write([("f", '{"a": "STOP"}')]) + "\nThen STOP here"
    ids = tokenizer.encode(text, add_special_tokens=False)
    parsers = Parsers(QWEN3, Start.MARK, HERMES)
    for included, content in ((False, "So Then "), (True, "So Then STOP")):
        sampling = SamplingParams(stop=("STOP",), include_stop_str_in_output=included)
        found = reads(parsers.open(tokenizer, sampling, []), ids, "length")
        assert whole(found)[:4] == (content, "STOP", [("f", '{"a": "STOP"}')], "stop")
        assert found[-1].stop_reason == "STOP"
        assert len(found) < len(ids)


def test_what_may_become_a_stop_string_is_not_lost(tokenizer: Any) -> None:
    ids = tokenizer.encode("So ST", add_special_tokens=False)
    reader = Parsers(tools=HERMES).open(tokenizer, SamplingParams(stop=("STOP",)), [])
    assert whole(reads(reader, ids, "length"))[::3] == ("So ST", "length")


@pytest.mark.parametrize(
    ("start", "text", "num_in"),
    [
        (Start.MARK, "<think>\nHm.\n</think>\n\nYes", "<think>\nHm.\n</think>"),
        (Start.INSIDE, "Hm.\n</think>\n\nYes", "Hm.\n</think>"),
        (Start.MAYBE, "Yes indeed", ""),
        (Start.ANSWER, "<think>Yes", ""),
    ],
)
def test_tokens_of_reasoning(tokenizer: Any, start: Start, text: str, num_in: str) -> None:
    """From the begin mark to the end mark, each with both."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = whole(reads(Parsers(QWEN3, start).open(tokenizer, SamplingParams(), []), ids, "length"))
    inside = tokenizer.encode(num_in, add_special_tokens=False)
    assert abs(found[4] - len(inside)) <= 1  # the mark may share its last token with what follows
    assert (found[4] == 0) == (not num_in)


def test_nothing_to_parse_is_read_plainly(tokenizer: Any) -> None:
    reader = Parsers().open(tokenizer, SamplingParams(), [])
    assert type(reader) is Reader
    assert Parsers().kept_ids(tokenizer) == []
