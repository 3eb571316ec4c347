"""Parsers of calls and of reasoning by themselves: the same result for every chunking, and for what was cut off."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.model.chat_template import render
from server.reasoning import DEEPSEEK_R1, QWEN3, ReasoningParser, Start
from server.tools.format import Argued, Called, CallParser, Event, Said, ToolFormat, overlap
from server.tools.formats import FORMATS, HERMES, LLAMA3, MISTRAL, format_of

HARD = st.sampled_from(['"', "\\", "</tool_call>", "}{", "; "])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | HARD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["get", "get_weather", "a.b:0"]), ARGUMENTS), min_size=1, max_size=3)
TEXTS = st.text(max_size=12) | st.sampled_from(["<tool", "Sure {", "[TOOL_CALLS", " \n", '{"name": '])


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def read(spec: ToolFormat, pieces: list[str]) -> tuple[list[Event], bool]:
    """Events of all pieces, those of one kind in a row put together; and whether calls are whole."""
    parser = CallParser(spec)
    events: list[Event] = []
    for event in [e for piece in pieces for e in parser.push(piece)] + parser.finish():
        if events and type(events[-1]) is type(event) and not isinstance(event, Called):
            events[-1] = type(event)(events[-1][0] + event[0])
        else:
            events.append(event)
    return events, parser.is_complete


@pytest.mark.parametrize("spec", FORMATS.values(), ids=FORMATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), calls=CALLS, before=TEXTS)
def test_what_is_written_is_read(spec: ToolFormat, data: Any, calls: list[Any], before: str) -> None:
    """Two calls in one piece included. Source: https://github.com/vllm-project/vllm/issues/39584."""
    texts = [(name, json.dumps(arguments)) for name, arguments in calls]
    before = before if spec.open else ""
    pieces = data.draw(cuts(before + spec.write(texts)))
    expected = [event for name, text in texts for event in (Called(name), Argued(text))]
    events, is_complete = read(spec, pieces)
    assert events == ([Said(before)] if before else []) + expected
    assert is_complete


@pytest.mark.parametrize("spec", FORMATS.values(), ids=FORMATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), calls=CALLS, before=TEXTS, after=TEXTS)
def test_every_chunking_of_a_part_gives_the_same(
    spec: ToolFormat, data: Any, calls: list[Any], before: str, after: str
) -> None:
    """Also where an output is cut off anywhere, or holds what no grammar would have let through."""
    text = before + spec.write([(name, json.dumps(arguments)) for name, arguments in calls]) + after
    text = text[: data.draw(st.integers(0, len(text)))]
    assert read(spec, data.draw(cuts(text))) == read(spec, [text]) == read(spec, list(text))


@pytest.mark.parametrize("spec", FORMATS.values(), ids=FORMATS)
def test_what_was_cut_off(spec: ToolFormat) -> None:
    """A call counts once its name is known; it is whole when its arguments are."""
    text = spec.write([("get_weather", '{"city": "Paris"}')])
    named = text.index(spec.middle) + len(spec.middle)
    for size in range(len(text)):
        events, is_complete = read(spec, [text[:size]])
        if size < named:
            assert events == ([Said(text[:size])] if size else [])
        else:
            assert events[0] == Called("get_weather")
            assert "".join(e.text for e in events if isinstance(e, Argued)) == text[named:size][:17]
            assert not any(isinstance(e, Said) for e in events)
        assert is_complete == (size >= named + 17 + len(spec.close))


def test_whitespace_after_a_call_is_left_out() -> None:
    text = "One.\n" + HERMES.write([("a", "{}")]) + " \n\n" + HERMES.write([("b", "{}")]) + "\n Two. "
    assert read(HERMES, [text])[0] == [
        Said("One.\n"), Called("a"), Argued("{}"), Called("b"), Argued("{}"), Said("Two. "),
    ]  # fmt: skip


def test_llama_calls_from_the_first_character_or_not_at_all() -> None:
    call = LLAMA3.write([("a", "{}")])
    assert read(LLAMA3, ["So: " + call]) == ([Said("So: " + call)], False)
    assert read(LLAMA3, ['{"answer": 5}']) == ([Said('{"answer": 5}')], False)


def test_mistral_with_and_without_a_space() -> None:
    for text in ('[TOOL_CALLS] [{"name": "a", "arguments": {}}]', '[TOOL_CALLS][{"name": "a", "arguments": {}}]'):
        assert read(MISTRAL, [text])[0] == [Called("a"), Argued("{}")]
    assert re.fullmatch("[0-9a-f]{9}", MISTRAL.new_id())
    assert HERMES.new_id() != HERMES.new_id()


@given(st.text("<tol_ca>", max_size=12))
def test_overlap(text: str) -> None:
    marker = "<tool_call>"
    sizes = [size for size in range(1, len(marker)) if text.endswith(marker[:size])]
    assert overlap(text, marker) == max(sizes, default=0)


def test_the_format_is_read_off_the_template() -> None:
    for sign, name in (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3_json"),
                       ("<｜tool▁calls▁begin｜>", "deepseek_v3"), ("", "hermes")):  # fmt: skip
        assert format_of(f"{{{{ x }}}}{sign}").name == name
    assert format_of(None) is HERMES


def thoughts(start: Start, pieces: list[str]) -> tuple[str, str]:
    parser = ReasoningParser(QWEN3, start)
    found = [*map(parser.push, pieces), parser.finish()]
    return "".join(t.reasoning for t in found), "".join(t.answer for t in found)


@pytest.mark.parametrize(
    ("start", "text", "expected"),
    [
        (Start.INSIDE, "\nHm.\n\nYes\n</think>\n\nParis", ("Hm.\n\nYes", "Paris")),
        (Start.INSIDE, "Hm</think>Paris", ("Hm", "Paris")),
        (Start.INSIDE, "Hm</think>\n\n\nParis\n", ("Hm", "\nParis\n")),
        (Start.INSIDE, "Hm. </thin", ("Hm. </thin", "")),
        (Start.INSIDE, "Hm\n", ("Hm\n", "")),
        (Start.MARK, "<think>\nHm\n</think>\n\n{}", ("Hm", "{}")),
        (Start.MAYBE, "\n<think>\nHm\n</think>\n\n<think>", ("Hm", "<think>")),
        (Start.MAYBE, " Paris <think>", ("", " Paris <think>")),
        (Start.MAYBE, "<thin", ("", "<thin")),
        (Start.ANSWER, "<think>a</think>", ("", "<think>a</think>")),
    ],
)
def test_reasoning(start: Start, text: str, expected: tuple[str, str]) -> None:
    assert thoughts(start, [text]) == thoughts(start, list(text)) == expected


@settings(max_examples=300, deadline=None)
@given(data=st.data(), start=st.sampled_from(Start))
def test_every_chunking_of_reasoning_gives_the_same(data: Any, start: Start) -> None:
    parts = st.sampled_from(["<think>", "</think>", "</thi", "\n", "a", "<", "b "])
    text = "".join(data.draw(st.lists(parts, max_size=10)))
    assert thoughts(start, data.draw(cuts(text))) == thoughts(start, [text])


HYBRID = (
    "{{ messages[0].content }}A:"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "more", "start"),
    [
        ("{{ messages[0].content }}A:<think>\n", {}, Start.INSIDE),
        (HYBRID, {}, Start.MARK),
        (HYBRID, {"enable_thinking": True}, Start.MARK),
        (HYBRID, {"enable_thinking": False}, Start.ANSWER),
        ("{{ messages[0].content }}A:", {}, Start.MAYBE),
    ],
)
def test_where_an_output_begins(template: str, more: dict[str, Any], start: Start) -> None:
    """Whatever the user says."""
    prompt = render(template, [{"role": "user", "content": "<think> or </think>?"}], **more)
    assert QWEN3.start(prompt, template) is start
    assert DEEPSEEK_R1.start(prompt, template) is (Start.ANSWER if start is Start.ANSWER else Start.INSIDE)
