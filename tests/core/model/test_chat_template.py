"""Templates render as transformers renders them, and cannot reach out."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from core.errors import RequestError
from core.model.chat_template import render
from core.model.gguf_reader import GgufFile

CHATML = """{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('system must come first') }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "[INST] {{ message['content'] }} [/INST]{% else %} {{ message['content'] }} {{ eos_token }}{% endif %}{% endfor %}"
)
TOOLS = """{% if tools %}
<tools>
{% for tool in tools %}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
{% endfor %}
</tools>
{% endif %}
{% for message in messages %}
{% if message.tool_calls is defined %}
{% for call in message.tool_calls %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{% else %}
{{ message.role }}: {{ message.content }}
{% endif %}
{% endfor %}"""
REASONING = """{% for message in messages %}{% if message.role == 'skip' %}{% continue %}{% endif %}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
{% generation %}{{ message.content }}{% endgeneration %}
{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}{{ enable_thinking }}{{ documents is none }}
{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ strftime_now('%Y') }}"""

CHAT = [
    {"role": "system", "content": " You are <b>terse</b>. "},
    {"role": "user", "content": "Größe & 'quotes' \"here\"?"},
    {"role": "assistant", "content": "42", "reasoning": "six by nine", "name": None},
    {"role": "skip", "content": "nothing"},
    {"role": "user", "content": "so?"},
]
CALLS = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "<é>", "n": 1}}}]}, CHAT[1]]
TOOL = {"type": "function", "function": {"name": "f", "description": "it's <f>", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    ("template", "messages", "more"),
    [
        (CHATML, CHAT, {}),
        (LLAMA2, CHAT[1:3], {}),
        (TOOLS, CALLS, {"tools": [TOOL]}),
        (TOOLS, CHAT, {}),
        (REASONING, CHAT, {"enable_thinking": False}),
        ("smollm2", CHAT, {}),
        ("smollm2", CHAT[1:], {}),
    ],
)
def test_same_as_transformers(
    template: str,
    messages: list[dict[str, Any]],
    more: dict[str, Any],
    add_generation_prompt: bool,
    tiny_llama_dir: Path,
    smollm2_path: Path,
) -> None:
    if template == "smollm2":
        template = GgufFile(smollm2_path).require("tokenizer.chat_template")
    oracle = AutoTokenizer.from_pretrained(tiny_llama_dir)
    expected = oracle.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt, **more
    )
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert render(template, messages, add_generation_prompt, special, **more) == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for x in %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(a=1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ raise_exception.__globals__.os }}", "unsafe"),
        ("{{ namespace(__call__=range) }}", "'__call__' begins with an underscore"),
        ("{% set ns = namespace() %}{% set ns.__html__ = range %}", "'__html__' begins with an underscore"),
        ("{{ dict.mro() }}", "no attribute 'mro'"),
        ("{{ '{0.__class__.__mro__}'.format(1).x }}", "unsafe"),
        ("{{ (messages | attr('__class__')).x }}", "unsafe"),
        ("{{ range(10000000) | list }}", "Range too big"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_refused(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match="the chat template cannot render these messages") as caught:
        render(template, [{"role": "user", "content": "hi"}])
    assert reason in str(caught.value)
    assert caught.value.param == "messages"


def test_messages_are_data() -> None:
    with pytest.raises(RequestError, match="not JSON serializable"):
        render("", [{"role": "user", "content": object()}])
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% raw %}"}]
    assert render("{{ messages[0].content }}", messages) == messages[0]["content"]
    before = json.dumps(CHAT)
    render(REASONING, CHAT)
    assert json.dumps(CHAT) == before
