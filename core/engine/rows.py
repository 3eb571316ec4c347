"""What the runner remembers of each row: ids, block tables, sampling parameters. Row 0 is nobody's: all neutral."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.engine.step import NewSequence, StepPlan
from core.request import Request

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Wishes:
    """What a sequence asks of its draws beside temperature, top_k, top_p and seed.

    plain       it asks nothing of this kind
    penalizes   its draws depend on the ids before
    """

    request: Request | None = None
    num_prompt: int = 0
    plain: bool = True
    penalizes: bool = False
    bias_ids: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    bias: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    @classmethod
    def of(cls, new: NewSequence) -> Wishes:
        r = new.request
        penalizes = r.repetition_penalty != 1 or bool(r.frequency_penalty or r.presence_penalty)
        masks = bool(r.allowed_ids or r.bad_ids or r.min_tokens)
        reports = r.logprobs >= 0 or r.prompt_logprobs >= 0
        return cls(
            r,
            new.num_prompt,
            plain=not (penalizes or masks or reports or r.logit_bias or r.min_p),
            penalizes=penalizes,
            bias_ids=np.array(list(r.logit_bias), np.int32),
            bias=np.array(list(r.logit_bias.values()), np.float32),
        )


class Rows:
    """Columns over rows 0 .. num_rows - 1."""

    def __init__(self, num_rows: int, max_blocks: int, num_groups: int) -> None:
        self.num_rows = num_rows
        self.ids: list[Ints] = [np.zeros(0, np.int32)] * num_rows
        self.num_given = np.zeros(num_rows, np.int32)
        self.tables = [np.zeros((num_rows, max_blocks), np.int32) for _ in range(num_groups)]
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_p = np.ones(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int32)
        self.seed = np.zeros((num_rows, 2), np.int32)
        self.plain = np.ones(num_rows, bool)
        self.wishes = [Wishes()] * num_rows

    def apply(self, plan: StepPlan) -> None:
        """Take in what the plan says is new."""
        for new in plan.new:
            self._take_over(new)
        for row, token_id in plan.drawn:
            self.ids[row] = np.append(self.ids[row], np.int32(token_id))
            self.num_given[row] += 1
        if plan.edits:
            rows, groups, positions, pages = np.array(plan.edits, np.int32).T
            for g, table in enumerate(self.tables):
                mine = groups == g
                table[rows[mine], positions[mine]] = pages[mine]

    def _take_over(self, new: NewSequence) -> None:
        row, r = new.row, new.request
        self.ids[row] = np.array(new.token_ids, np.int32)
        self.num_given[row] = len(new.token_ids)
        self.temperature[row], self.top_p[row] = r.temperature, r.top_p
        self.top_k[row] = max(0, r.top_k)
        self.seed[row] = np.array([r.seed], np.uint64).view(np.int32)
        self.wishes[row] = Wishes.of(new)
        self.plain[row] = self.wishes[row].plain
        for table, pages in zip(self.tables, new.tables, strict=True):
            table[row, : len(pages)] = pages
            table[row, len(pages) :] = 0
