"""Sampling on the command line: flags, then what the model's generation_config.json says, then the command's own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from core.engine.llm import LLM
    from core.request import SamplingParams


def sampling_for(llm: "LLM", prompt_ids: Sequence[int], flags: Mapping[str, Any], **otherwise: Any) -> "SamplingParams":
    """The sampling of one prompt.

    flags       fields of SamplingParams; None where the flag is absent
    otherwise   fields that neither a flag nor the model decides

    Raises: ConfigError for a model whose generation_config.json is wrong.
    """
    from core.engine.defaults import fit

    given = {field: value for field, value in flags.items() if value is not None}
    sampling = llm.default_sampling(**otherwise)
    if "max_tokens" not in given:
        sampling = fit(sampling, len(prompt_ids), llm.engine.info().max_model_len)
    return msgspec.structs.replace(sampling, **given)
