"""Everything about an engine that was decided: plain data, shown by `core plan` and by the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from core.plugin.facts import ShapePolicy


class Binding(NamedTuple):
    """Which kernel serves one row, and why. `uses` counts the places in the model."""

    row: str
    provider: str
    reason: str
    uses: int


@dataclass(frozen=True)
class Plan:
    """Everything resolved. `decided_by` says for each field whose word it was."""

    model: str
    device: str
    arch: str
    dtype: str
    weights: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_tokens: int
    memory_utilization: float
    prefix_caching: bool
    tensor_parallel_size: int
    pipeline_depth: int
    batch_invariant: bool
    fallback: str
    seed: int
    shapes: ShapePolicy
    replayed_tokens: int = 0
    speculative: str | None = None
    max_num_logits: int = 0
    num_kv_blocks: tuple[int, ...] = ()
    num_swap_blocks: tuple[int, ...] = ()
    bindings: tuple[Binding, ...] = ()
    notes: tuple[str, ...] = ()
    certificate: str = ""
    decided_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens_in_flight(self) -> int:
        """Tokens of the steps that are under way at a time, at most."""
        return self.max_num_batched_tokens * (self.pipeline_depth + 1)

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, decided by) of every setting, for people."""
        hidden = {"bindings", "notes", "decided_by"}
        names = [name for name in self.__dataclass_fields__ if name not in hidden]
        return [(name, _show(getattr(self, name)), self.decided_by.get(name, "")) for name in names]


def _with_padding(buckets: tuple[int, ...]) -> str:
    """Bucket sizes, and which part of a step is padding if each size up to the largest is as likely."""
    if not buckets:
        return "any"
    shares = [1 - size / next(b for b in buckets if size <= b) for size in range(1, buckets[-1] + 1)]
    mean, most = sum(shares) / len(shares), max(shares)
    return f"{', '.join(map(str, buckets))} (padding {mean:.0%} on average, {most:.0%} at most)"


def _show(value: object) -> str:
    if isinstance(value, ShapePolicy):
        if value.dynamic:
            return "any"
        sizes = (("tokens", value.tokens), ("sequences", value.seqs), ("blocks", value.blocks))
        return "; ".join(f"{what} {_with_padding(buckets)}" for what, buckets in sizes)
    if value is None:
        return "off"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "not known before weights are loaded"
    return str(value)
