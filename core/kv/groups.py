"""What the layers of a model keep of past tokens.

Core branches on these properties, never on a kind's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class KVGroup:
    """Attention layers that cache alike and share one block table.

    num_layers         layers in the group
    num_kv_heads       of the whole model, before it is split over ranks
    head_size          D
    retain             None: every token is kept; W: a token sees itself and the W - 1 before it
    tokens_per_entry   tokens that one cache entry stands for
    lookahead          entries near the end that depend on tokens not known yet (draft layers and draft models)
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    retain: int | None = None
    tokens_per_entry: int = 1
    lookahead: int = 0

    def pages_held(self, page_tokens: int, step_tokens: int, num_seqs: int = 1) -> int | None:
        """Pages that `num_seqs` sequences hold at a time, at most, however long they are; None: no limit.

        step_tokens   tokens in flight, of all sequences together
        """
        if self.retain is None:
            return None
        # A window that does not start with a page lies in one more, and so does the part of a step that follows it.
        return num_seqs * (-(-self.retain // page_tokens) + 2) + -(-step_tokens // page_tokens)


class Place(NamedTuple):
    """Where a layer's cache is: its group, and which of the group's layers it is."""

    group: int
    layer: int


def group_layers(
    windows: Sequence[int | None], num_kv_heads: int, head_size: int, max_len: int
) -> tuple[tuple[KVGroup, ...], tuple[Place, ...]]:
    """Groups of layers that keep the same, and the place of each layer.

    windows   per layer: tokens that a token sees, itself included; None: all before it. A window of `max_len`
              tokens or more is none.

    Layers that keep every token come first; windows follow in ascending order.
    """
    kept = [window if window is not None and window < max_len else None for window in windows]
    kinds = sorted(set(kept), key=lambda window: (window is not None, window or 0))
    groups = tuple(KVGroup(kept.count(kind), num_kv_heads, head_size, retain=kind) for kind in kinds)
    places = tuple(Place(kinds.index(window), kept[:i].count(window)) for i, window in enumerate(kept))
    return groups, places
