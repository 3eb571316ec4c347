"""Fields of the OpenAI and vLLM APIs that are known and have no effect yet.

They are accepted with the values that ask for nothing, and refused with any other: nothing is ignored.
"""

from typing import Any

import msgspec

from core.errors import RequestError

Neutral = dict[str, tuple[Any, ...]]

MAX_SHOWN = 60

NEUTRAL: Neutral = {
    "audio": (),
    "best_of": (1,),
    "data_parallel_rank": (),
    "early_stopping": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_decoding_backend": ("auto", "llguidance", "guidance"),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "metadata": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_cache_key": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "session_id": (),
    "store": (False,),
    "suffix": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Field of a body -> the values, besides null, that ask for no effect."""

NEUTRAL_IN_COMPLETION: Neutral = {
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "include_reasoning": (True,),
    "parallel_tool_calls": (True,),
    "reasoning_effort": (),
    "separate_reasoning": (True,),
    "thinking_token_budget": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""The same, for completions alone."""

NEUTRAL_IN_MESSAGE: Neutral = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}
"""The same for fields of a message: clients send whole answers back as history."""


def without_neutral(value: Any, table: Neutral, prefix: str = "") -> Any:
    """`value` without those fields of `table` that ask for nothing. Raises: RequestError for one that asks."""
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, asked in value.items():
        if name not in table:
            kept[name] = asked
        elif not (asked is None or any(_same(asked, neutral) for neutral in table[name])):
            allowed = " or ".join(msgspec.json.encode(v).decode() for v in (*table[name], None))
            message = f"{prefix}{name} is {shown(asked)}: this release takes only {allowed}; leave it out"
            raise RequestError(message, (prefix + name).partition(".")[0])
    return kept


def shown(value: Any) -> str:
    """A value of a body, for messages: the begin of it where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _same(asked: Any, neutral: Any) -> bool:
    """Equality in JSON, where 1 and 1.0 are the same, and 1 and true are not."""
    return isinstance(asked, bool) == isinstance(neutral, bool) and bool(asked == neutral)
