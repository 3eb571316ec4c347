"""What the layers of a model keep of past tokens.

Core branches on these properties, never on a kind's name.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class KVGroup:
    """Attention layers that cache alike and share one block table.

    num_layers         layers in the group
    num_kv_heads       of the whole model, before it is split over ranks
    head_size          D
    retain             None: every token is kept; W: a token sees itself and the W - 1 before it
    tokens_per_entry   tokens that one cache entry stands for
    lookahead          entries near the end that depend on tokens not known yet (draft layers)
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    retain: int | None = None
    tokens_per_entry: int = 1
    lookahead: int = 0
