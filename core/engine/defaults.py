"""What a model's authors say of drawing from it: its generation_config.json.

Owns which entries count: those that are fields of `SamplingParams`. Others (do_sample, num_beams, max_length) steer
loops of other libraries. Refuses values that no request could have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import ConfigError, RequestError
from core.request import SamplingParams

# Entry -> its field in SamplingParams, and its type.
ENTRIES: Mapping[str, tuple[str, type]] = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "repetition_penalty": ("repetition_penalty", float),
    "max_new_tokens": ("max_tokens", int),
}


def read_defaults(
    entries: Mapping[str, Any], vocab_size: int, origin: str = "generation_config.json"
) -> dict[str, Any]:
    """Fields of `SamplingParams` that `entries` set; null sets nothing. `origin` is for messages.

    Raises: ConfigError naming the entry, its value and its limit.
    """
    found: dict[str, Any] = {}
    for entry, (field, kind) in ENTRIES.items():
        value = entries.get(entry)
        if value is None:
            continue
        try:
            found[field] = msgspec.convert(value, kind)
            SamplingParams(**{field: found[field]}).check(vocab_size)
        except (msgspec.ValidationError, RequestError) as error:
            reason = str(error) if isinstance(error, RequestError) else f"it must be of type {kind.__name__}"
            raise ConfigError(f"{origin} has {entry} {value!r}: {reason}; correct it, or do without it") from None
    return found


def fit(sampling: SamplingParams, num_prompt: int, max_model_len: int) -> SamplingParams:
    """`sampling` with a limit that leaves room for the prompt: for a limit that the client did not ask for."""
    if sampling.max_tokens is None:
        return sampling
    room = max(1, max_model_len - num_prompt)
    return msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, room))
