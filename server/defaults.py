"""What a request that leaves sampling out gets, and who decided it: a server flag, the model, or OpenAI."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from core.engine.defaults import ENTRIES, read_defaults
from core.errors import ConfigError
from core.model.source import ModelSource
from core.request import SamplingParams

FLAG = "--override-generation-config"

Mode = Literal["auto", "none"]
Row = tuple[str, str, str]


def resolve(source: ModelSource, mode: Mode, override: str) -> tuple[SamplingParams, list[Row]]:
    """The sampling of a request that says nothing, and (field, value, decided by) of what is not OpenAI's.

    mode       auto: as the model's generation_config.json says; none: that is not read
    override   a JSON object with entries of generation_config.json, which win

    Raises: ConfigError naming a wrong entry.
    """
    size = source.tokenizer().vocab_size
    model = read_defaults(source.generation_config if mode == "auto" else {}, size)
    flag = read_defaults(_entries(override), size, FLAG)
    rows = [*_rows(model, "generation_config.json", but=flag), *_rows(flag, FLAG)]
    openai = SamplingParams(max_tokens=None)
    return msgspec.structs.replace(openai, **(model | flag)), sorted(rows)


def _entries(override: str) -> Mapping[str, Any]:
    try:
        entries: dict[str, Any] = msgspec.json.decode(override, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{FLAG} is {override!r}: it must be a JSON object ({error})") from None
    for entry, value in entries.items():
        if entry not in ENTRIES or value is None:
            raise ConfigError(f"{FLAG} has {entry} {value!r}: set some of {', '.join(ENTRIES)}")
    return entries


def _rows(fields: Mapping[str, Any], decided_by: str, but: Iterable[str] = ()) -> list[Row]:
    return [(field, str(value), decided_by) for field, value in fields.items() if field not in but]
