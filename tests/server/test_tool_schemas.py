"""200 generated tools that smollm2 must call: every call that is whole is of its schema, and few are not whole.

So small a model repeats itself in strings without end, unless what it repeats becomes less likely; and what it seldom
says, such as a closing tag within a string, leads it astray: so the tail of each distribution is left out.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from processes import Server

NUM_SCHEMAS = 200
MAX_TOKENS = 1024
WORDS = ["city", "date", "unit", "limit", "name", "query", "user", "path", "colour", "email", "amount", "note"]
SENTENCES = ["Paris in spring", "a green door", "my friend Ada", "tomorrow at noon", "the old mill", "seven red apples"]


def value_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """As people write them for tools: few limits, descriptions, some nesting."""
    kinds = ["string", "string", "integer", "number", "boolean", "enum", *(["array", "object"] if depth else [])]
    match rng.choice(kinds):
        case "string":
            limits: list[dict[str, Any]] = [
                {},
                {"description": rng.choice(SENTENCES)},
                {"minLength": 1},
                {"maxLength": 30},
            ]
            return {"type": "string", **rng.choice(limits)}
        case "integer":
            return {"type": "integer", **rng.choice([{}, {"minimum": 0}, {"minimum": 1, "maximum": 100}])}
        case "enum":
            return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randint(1, 4))}
        case "array":
            size = rng.choice([{}, {"maxItems": 3}, {"minItems": 1, "maxItems": 2}])
            return {"type": "array", "items": value_schema(rng, depth - 1), **size}
        case "object":
            return object_schema(rng, depth - 1)
        case kind:
            return {"type": kind}


def object_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(1, 4))
    schema = {"type": "object", "properties": {name: value_schema(rng, depth) for name in names}}
    schema["required"] = rng.sample(names, rng.randint(0, len(names)))
    return schema | rng.choice([{}, {"additionalProperties": False}])


def tool(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    name = f"{rng.choice(['find', 'make', 'send', 'get'])}_{rng.choice(WORDS)}"
    function = {"name": name, "description": rng.choice(SENTENCES), "parameters": object_schema(rng, 2)}
    return {"type": "function", "function": function}


def call(server: Server, number: int) -> tuple[str, list[Any]]:
    asked = tool(number)
    content = f"Use {asked['function']['name']} for {random.Random(number).choice(SENTENCES)}."
    body = {
        "model": "smollm2", "messages": [{"role": "user", "content": content}], "tools": [asked],
        "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": MAX_TOKENS, "seed": number,
        "temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.2,
    }  # fmt: skip
    response = server.post("/v1/chat/completions", body, timeout=600)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return choice["finish_reason"], choice["message"].get("tool_calls", [])


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_calls_of_generated_tools(cpu_server: Server) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: call(cpu_server, number), range(NUM_SCHEMAS)))
    for number, (reason, calls) in enumerate(answers):
        assert reason in ("tool_calls", "length")
        for each in calls if reason == "tool_calls" else []:
            jsonschema.validate(json.loads(each["function"]["arguments"]), tool(number)["function"]["parameters"])
    cut_off = [number for number, (reason, _) in enumerate(answers) if reason == "length"]
    assert len(cut_off) <= NUM_SCHEMAS // 50, cut_off
