"""What travels between the scheduler and the runner: plain data, one message each way per step.

The runner keeps a copy of what it needs of each sequence under a row number, and learns of changes from the plan.
"""

import msgspec


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes over `row`.

    token_ids   every id known so far
    tables      per KV group, the page of each block-table entry (0: no longer needed)
    """

    row: int
    token_ids: list[int]
    tables: list[list[int]]
    temperature: float
    top_k: int
    top_p: float
    seed: int


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One ragged batch.

    rows, starts, counts   per item: the sequence's row, the position of its first token, how many tokens
    samples                per item: whether its last token is followed by a draw
    edits                  (row, KV group, index, page): block-table entries that changed; applied after `new`

    An id at a position that the runner was not given is the last one drawn for that row.
    """

    new: list[NewSequence]
    rows: list[int]
    starts: list[int]
    counts: list[int]
    samples: list[bool]
    edits: list[tuple[int, int, int, int]]

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
    """Ids drawn, in the order of the plan's sampling items; -1 where the logits were not numbers."""

    ids: list[int]
