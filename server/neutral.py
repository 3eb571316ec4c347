"""Fields of the OpenAI and vLLM APIs that are known and have no effect yet.

They are accepted with the values that ask for nothing, and refused with any other: nothing is ignored.
"""

from typing import Any

import msgspec

from core.errors import RequestError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_key": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Field of a body -> the values, besides null, that ask for no effect."""

NEUTRAL_IN_CHAT: dict[str, tuple[Any, ...]] = {"echo": (False,)}
"""The same, for conversations alone."""

NEUTRAL_IN_COMPLETION: dict[str, tuple[Any, ...]] = {"top_logprobs": (0,)}
"""The same, for completions alone."""

NEUTRAL_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}
"""The same for fields of a message: clients send whole answers back as history."""


def without_neutral(value: Any, table: dict[str, tuple[Any, ...]], prefix: str = "") -> Any:
    """`value` without those fields of `table` that ask for nothing. Raises: RequestError for one that asks."""
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, asked in value.items():
        if name not in table:
            kept[name] = asked
        elif not (asked is None or any(_same(asked, neutral) for neutral in table[name])):
            allowed = " or ".join(msgspec.json.encode(v).decode() for v in (*table[name], None))
            shown = msgspec.json.encode(asked).decode()
            shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
            message = f"{prefix}{name} is {shown}: this release takes only {allowed}; leave it out"
            raise RequestError(message, (prefix + name).partition(".")[0])
    return kept


def _same(asked: Any, neutral: Any) -> bool:
    """Equality in JSON, where 1 and 1.0 are the same, and 1 and true are not."""
    return isinstance(asked, bool) == isinstance(neutral, bool) and bool(asked == neutral)
