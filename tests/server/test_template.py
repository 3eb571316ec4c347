"""Chats to prompts, behind templates written as published ones are: tools, calls, answers and reasoning in them."""

from typing import Any

import pytest

from core.errors import RequestError
from core.model.chat_template import variables
from server.conversation import ChatBody
from server.dialect import Dialect
from server.reasoning import QWEN3, Start
from server.strict import checked
from server.template import prompt_of
from server.tools.formats import DEEPSEEK_V3, HERMES

QWEN = """{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
DEEPSEEK = """{%- for m in messages %}[{{ m.role }}]
{%- for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}{{ m.content }}{% endfor %}"""
SMOL = (
    "{% if xml_tools %}{% for t in xml_tools %}<{{ t.function.name }}>{% endfor %}{% endif %}{{ messages[0].content }}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
HI = [{"role": "user", "content": "Hi"}]
CALLED = [*HI, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "ok"}]


def render(template: str | None, dialect: dict[str, Any] | None = None, **body: Any) -> str:
    made = {"template": template, "tools": HERMES, "reasoning": None, "request_templates": False, **(dialect or {})}
    chat = checked({"model": "m", "messages": HI, **body}, ChatBody)
    return prompt_of(chat, Dialect(model="m", special_tokens={}, auto_tool_choice=True, **made)).text


def test_a_template_that_knows_tools_is_given_them() -> None:
    found = render(QWEN, tools=[TOOL])
    assert found.startswith('<tools>{"type": "function", "function": {"name": "f", "parameters"')
    assert found.endswith("[user]Hi[assistant]")
    assert render(QWEN, tools=[TOOL], tool_choice="none") == render(QWEN) == "[user]Hi[assistant]"
    assert render(SMOL, tools=[TOOL]) == "<f>Hi"


def test_earlier_calls_have_their_arguments_as_an_object_or_as_text() -> None:
    assert render(QWEN, messages=CALLED) == '[user]Hi[assistant]<tool_call>f:{"a": 1}[tool]ok[assistant]'
    assert render(DEEPSEEK, {"tools": DEEPSEEK_V3}, messages=CALLED, tools=[TOOL]).endswith(
        '[user]Hi[assistant]f{"a": 1}[tool]ok'
    )


def test_a_template_without_tools_gets_them_as_text() -> None:
    found = render(PLAIN, messages=CALLED, tools=[TOOL])
    assert found.startswith("[system]You may call")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert found.endswith(f"[user]Hi[assistant]{call}[user]<tool_response>\nok\n</tool_response>")
    assert (
        "<tools>\n" + '{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}' + "\n</tools>" in found
    )


def test_a_named_function_is_the_only_one_that_is_described() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    found = render(PLAIN, tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "g"}})
    assert '{"name": "g"}' in found
    assert '{"name": "f"' not in found


def test_reasoning_of_earlier_turns() -> None:
    turn = {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}
    assert "[assistant]Yes.<think>Hm.</think>" in render(QWEN, messages=[*HI, turn, *HI])
    with pytest.raises(RequestError, match="renders no reasoning"):
        render(PLAIN, messages=[*HI, turn, *HI])
    # Models that reason may have templates that drop what they reasoned before: that is theirs to say.
    assert render(PLAIN, {"reasoning": QWEN3}, messages=[*HI, turn, *HI]) == "[user]Hi[assistant]Yes.[user]Hi"


def test_no_template() -> None:
    with pytest.raises(RequestError, match="use /v1/completions"):
        render(None)


def test_what_a_template_looks_at() -> None:
    assert variables(QWEN) == {"messages", "tools", "add_generation_prompt"}
    assert variables("{{ strftime_now('%Y') }}{% set x = 1 %}{{ x + namespace(y=z).y }}") == {"z"}
    with pytest.raises(RequestError, match="template is wrong"):
        variables("{% if %}")


@pytest.mark.parametrize(
    ("content", "start"),
    [("<think>\nHm", Start.INSIDE), ("<think>Hm</think> Yes", Start.ANSWER), ("Yes", Start.ANSWER)],
)
def test_where_the_answer_goes_on(content: str, start: Start) -> None:
    messages = [*HI, {"role": "assistant", "content": content}]
    chat = checked({"model": "m", "messages": messages, "continue_final_message": True}, ChatBody)
    dialect = Dialect("m", PLAIN, {}, HERMES, QWEN3, True, False)
    assert prompt_of(chat, dialect).parsers.start is start
