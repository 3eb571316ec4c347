"""Forms of outputs over HTTP, under every name that clients have for them: kept to, or refused.

The null device draws at random among what a form allows, which tries it harder than a model does.
"""

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest
from processes import Server

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"(red|green), because [a-z ]{3,12}\."
CHOICE = ["the quick", "the quick brown"]
LARK = 'start: "yes " N\nN: /[0-9]{2,3}/'
GBNF = 'root ::= "yes " [0-9]'
PART: dict[str, Any] = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "So: "},
        {"type": "tag", "begin": "<p>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</p>"},
        {"type": "or", "elements": [{"type": "regex", "pattern": "a/b{2}"}, {"type": "grammar", "grammar": GBNF}]},
    ],
}
TAGS = {"structures": [{"begin": "<p>", "schema": PERSON, "end": "</p>"}], "triggers": ["<p"]}
ASK = {"messages": [{"role": "user", "content": "Tell me about a person."}], "max_tokens": 150, "temperature": 1.5}
PROMPT = {"prompt": "Tell me about a person.", "max_tokens": 150, "temperature": 1.5}


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


IS_REGEX, IS_LARK, IS_GBNF = (re.compile(p).fullmatch for p in (REGEX, "yes [0-9]{2,3}", "yes [0-9]"))


def is_part(text: str) -> bool:
    found = re.fullmatch(r"So: <p>(.*)</p>(a/bb|yes [0-9])", text, re.DOTALL)
    return bool(found and is_person(found[1]))


SCHEMA = {"name": "person", "strict": True, "schema": PERSON}
FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, is_person),
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_person),
    ({"structured_outputs": {"regex": REGEX}}, IS_REGEX),
    ({"structured_outputs": {"choice": CHOICE}}, CHOICE.__contains__),
    ({"structured_outputs": {"grammar": LARK}}, IS_LARK),
    ({"guided_json": PERSON}, is_person),
    ({"guided_regex": REGEX}, IS_REGEX),
    ({"guided_choice": CHOICE}, CHOICE.__contains__),
    ({"guided_grammar": GBNF}, IS_GBNF),
    ({"json_schema": json.dumps(PERSON)}, is_person),
    ({"regex": REGEX}, IS_REGEX),
    ({"ebnf": GBNF}, IS_GBNF),
    ({"response_format": {"type": "structural_tag", "format": PART}}, is_part),
    ({"structured_outputs": {"structural_tag": json.dumps({"format": PART})}}, is_part),
]

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is missing"),
    ({"response_format": {"type": "json_object", "json_schema": SCHEMA}}, "response_format", "no field of"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "any"}}}, "response_format", "'any'"),
    ({"response_format": {"type": "structural_tag", "format": PART, **TAGS}}, "response_format", "either format"),
    ({"response_format": {"type": "structural_tag", "triggers": ["a"]}}, "response_format", "either format"),
    ({"response_format": {"type": "text", "format": PART}}, "response_format", "no field of type text"),
    ({"response_format": {"type": "structural_tag", **TAGS, "triggers": ["<q"]}}, "response_format", "triggers"),
    ({"response_format": {"type": "structural_tag", **TAGS, "triggers": [""]}}, "response_format", "triggers"),
    ({"response_format": {"type": "json_object", "colour": 1}}, "response_format", "colour"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "cannot be enforced"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "one at least"),
    ({"structured_outputs": {"choice": ["a", "a"]}}, "structured_outputs", "different"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs", "cannot be enforced"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "not JSON"),
    ({"structured_outputs": {"json": PERSON, "regex": "a"}}, "structured_outputs", "2 forms"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs", "whitespace_pattern"),
    ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs", "not JSON"),
    ({"guided_json": {"type": "string", "not": {"const": "a"}}}, "guided_json", "cannot be enforced"),
    ({"guided_json": {"type": "wizard"}}, "guided_json", "cannot be enforced"),
    ({"guided_json": False}, "guided_json", "cannot be enforced"),
    ({"guided_regex": "a" * (1 << 18 | 1)}, "guided_regex", "262144"),
    ({"guided_regex": ""}, "guided_regex", "empty"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "2 forms"),
    ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", "llguidance"),
]


def text_of(answer: Any) -> str:
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize(
    ("asked", "check"), FORMS, ids=lambda value: str(value)[:40] if isinstance(value, dict) else ""
)
def test_a_form_is_kept_to(null_server: Server, asked: dict[str, Any], check: Any) -> None:
    response = null_server.post("/v1/chat/completions", {"model": "smollm2", **ASK, **asked})
    assert response.status_code == 200, response.text
    assert check(text_of(response.json())), response.text


def test_a_completion_too(null_server: Server) -> None:
    body = {"model": "smollm2", **PROMPT, "n": 2, "guided_json": PERSON}
    choices = null_server.post("/v1/completions", body).json()["choices"]
    assert all(is_person(choice["text"]) for choice in choices)
    assert len(choices) == 2


def test_any_object(null_server: Server, smollm2: Any) -> None:
    """A bias towards quotes and brackets that close: without, an object of random parts seldom ends."""
    ids = [str(smollm2.tokenizer().token_to_id(token)) for token in ('"', "}", '"}', "]", '":')]
    body = {"model": "smollm2", **ASK, "logit_bias": dict.fromkeys(ids, 14)}
    for asked in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        answer = null_server.post("/v1/chat/completions", body | asked).json()
        assert isinstance(json.loads(text_of(answer)), dict)


@pytest.mark.parametrize("asked", [{"response_format": {"type": "structural_tag", **TAGS}},
                                   {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}])  # fmt: skip
def test_what_starts_like_a_structure_is_one(null_server: Server, smollm2: Any, asked: dict[str, Any]) -> None:
    """The text is made of the letters that begin one."""
    bias = {str(smollm2.tokenizer().token_to_id(token)): 30 for token in "<p"}
    body = {"model": "smollm2", **PROMPT, **asked, "logit_bias": bias}
    text = null_server.post("/v1/completions", body).json()["choices"][0]["text"]
    structures = re.findall(r"<p>(.*?)</p>", text, re.DOTALL)
    assert structures
    assert all(is_person(structure) for structure in structures)


def test_whitespace_is_bounded(null_server: Server, smollm2: Any) -> None:
    """Source: https://github.com/jundot/omlx/issues/2990 and https://github.com/mlc-ai/xgrammar/issues/412, where
    whitespace ran to max_tokens."""
    tokenizer = smollm2.tokenizer()
    blank = [i for i in range(49152) if (b := tokenizer.token_bytes(i)) and not b.strip()]
    body = {"model": "smollm2", **ASK, "guided_json": PERSON, "logit_bias": {str(i): 20 for i in blank[:1000]}}
    text = text_of(null_server.post("/v1/chat/completions", body).json())
    assert is_person(text)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    assert max(len(run) for run in re.findall(r"\s+", outside)) == 8


def test_stream_equals_whole(null_server: Server) -> None:
    body = {"model": "smollm2", **ASK, "temperature": 0, "guided_json": PERSON}
    whole = text_of(null_server.post("/v1/chat/completions", body).json())
    events = null_server.post("/v1/chat/completions", body | {"stream": True}).text.split("\n\n")[:-2]
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(c["delta"].get("content") or "" for c in chunks) == whole
    assert chunks[-1]["finish_reason"] == "stop"


def refused(response: httpx.Response, param: str, words: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert "structured " not in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("asked", "param", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_refusals(null_server: Server, stream: bool, asked: dict[str, Any], param: str, words: str) -> None:
    """A real status, even where a stream was asked for."""
    body = {"model": "smollm2", **ASK, **asked, "stream": stream}
    refused(null_server.post("/v1/chat/completions", body), param, words)


def test_openai_client_parses_into_pydantic(cpu_server: Server) -> None:
    from pydantic import BaseModel

    class Colour(BaseModel):
        name: str
        is_warm: bool

    answer = cpu_server.openai.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": 'Describe red, such as {"name": "blue", "is_warm": false}.'}],
        response_format=Colour,
        temperature=0,
        max_tokens=60,
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Colour)
    assert parsed.name
