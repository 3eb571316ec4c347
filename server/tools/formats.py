"""The formats that are known, by the names that vLLM has for them, and which of them a template speaks."""

from server.tools.format import ToolFormat

HERMES = ToolFormat(
    name="hermes",
    open="<tool_call>",
    begins=("\n",),
    head='{"name": "',
    middle='", "arguments": ',
    close="}",
    end="\n</tool_call>",
)
"""Hermes, Qwen 2.5 and 3, SmolLM, and every model that was taught no format."""

LLAMA3 = ToolFormat(
    name="llama3_json",
    head='{"name": "',
    middle='", "parameters": ',
    close="}",
    separator="; ",
)
"""Llama 3.1 to 3.3."""

MISTRAL = ToolFormat(
    name="mistral",
    open="[TOOL_CALLS]",
    begins=(" [", "["),
    head='{"name": "',
    middle='", "arguments": ',
    close="}",
    separator=", ",
    end="]",
    id_chars=9,
)
"""Mistral before its eleventh tokenizer. Its templates refuse ids of calls of another length."""

DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    open="<｜tool▁calls▁begin｜>",
    head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    close="\n```<｜tool▁call▁end｜>",
    separator="\n",
    end="<｜tool▁calls▁end｜>",
    arguments_as_text=True,
)
"""DeepSeek V3 and R1."""

FORMATS = {each.name: each for each in (HERMES, LLAMA3, MISTRAL, DEEPSEEK_V3)}

_SIGNS = [
    ("<tool_call>", HERMES),
    ("[TOOL_CALLS]", MISTRAL),
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_V3),
    ("<|python_tag|>", LLAMA3),
]


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template writes; Hermes where it writes none."""
    return next((each for sign, each in _SIGNS if sign in (template or "")), HERMES)
