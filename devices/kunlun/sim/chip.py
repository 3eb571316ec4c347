"""What is simulated: numbers of a chip, and how its tasks are scheduled.

The environment variable KUNLUN_SIM gives them as text: "count=2,memory_mib=512,schedule=seed:3"; "1" is the default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from core.errors import ConfigError

_MIB = 1 << 20


@dataclass(frozen=True)
class Chip:
    """One machine of simulated chips.

    count              devices of this process
    memory_bytes       of each device
    pinned_bytes       host memory that may be pinned, in all
    copy_align_bytes   where asynchronous copies between host and device may begin
    flops_per_s, bytes_per_s           of the compute engine, and of the device's memory
    pcie_bytes_per_s, link_bytes_per_s between host and device, each way; and between devices
    schedule           "eager", "lazy" or "seed:N": see engine/streams.h
    strict             a race raises RaceError where it is made; else `races` lists it

    Raises: ConfigError naming the field, its value and its limit.
    """

    count: int = 1
    memory_bytes: int = 2048 * _MIB
    pinned_bytes: int = 4096 * _MIB
    copy_align_bytes: int = 4
    flops_per_s: float = 100e12
    bytes_per_s: float = 1000e9
    pcie_bytes_per_s: float = 32e9
    link_bytes_per_s: float = 100e9
    schedule: str = "eager"
    strict: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("schedule", "strict") and not value > 0:
                raise ConfigError(f"{field.name} of the simulated chip is {value}: it must be above 0")
        if not 1 <= self.count <= 64:
            raise ConfigError(f"count of simulated chips is {self.count}: it must be between 1 and 64")
        for name in ("memory_bytes", "pinned_bytes"):
            if getattr(self, name) % 4096:
                raise ConfigError(f"{name} of the simulated chip is {getattr(self, name)}: use a multiple of 4096")
        parse_schedule(self.schedule)

    @staticmethod
    def parse(text: str) -> Chip:
        """The chip that KUNLUN_SIM describes: fields above, and memory_mib, pinned_mib for MiB.

        Raises: ConfigError naming an unknown key, or a value that its field does not take.
        """
        values: dict[str, int | float | str | bool] = {}
        for entry in text.split(",") if text not in ("", "1") else []:
            key, equals, value = (part.strip() for part in entry.partition("="))
            if not equals:
                raise ConfigError(f"KUNLUN_SIM has {entry!r}: write key=value, separated by commas")
            name, unit = (f"{key[:-4]}_bytes", _MIB) if key in ("memory_mib", "pinned_mib") else (key, 1)
            if name not in _KINDS:
                known = ", ".join([*_KINDS, "memory_mib", "pinned_mib"])
                raise ConfigError(f"KUNLUN_SIM has {key!r}, which is not known: choose among {known}")
            if name in values:
                raise ConfigError(f"KUNLUN_SIM gives {name} twice: leave one out")
            values[name] = _value(key, name, value, unit)
        return Chip(**values)  # type: ignore[arg-type]


_KINDS: dict[str, type] = {field.name: type(getattr(Chip, field.name)) for field in fields(Chip)}


def _value(key: str, name: str, text: str, unit: int) -> int | float | str | bool:
    kind = _KINDS[name]
    if kind is bool:
        if text not in ("0", "1"):
            raise ConfigError(f"KUNLUN_SIM has {key}={text}: write 0 or 1")
        return text == "1"
    if kind is str:
        return text
    try:
        return int(text) * unit if kind is int else float(text)
    except ValueError as error:
        raise ConfigError(f"KUNLUN_SIM has {key}={text}: write {'a whole' if kind is int else 'a'} number") from error


def parse_schedule(text: str) -> tuple[str, int]:
    """Its kind and its seed. Raises: ConfigError for another schedule."""
    if text in ("eager", "lazy"):
        return text, 0
    seed = re.fullmatch(r"seed:(\d{1,18})", text)
    if seed is None:
        raise ConfigError(f"schedule {text!r} is not known: use eager, lazy, or seed: and a number, such as seed:7")
    return "seed", int(seed[1])
