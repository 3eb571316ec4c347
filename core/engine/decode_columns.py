"""The columns of a plan in which every sequence has one token and draws: most plans, packed with few calls of numpy.

As `Columns`, whose results they have; what is the same for all such plans is kept. Legend as there.
"""

from __future__ import annotations

import numpy as np

from core.engine.columns import Columns
from core.engine.rows import Ints, Rows
from core.engine.step import StepPlan

_MOST = 4096
_UP = np.arange(_MOST + 1, dtype=np.int32)
_ONES, _ZEROS = np.ones(_MOST, np.int32), np.zeros(_MOST, np.int32)
_TRUE = np.ones(_MOST, bool)
_ITEMS, _PLACES = np.arange(_MOST), np.zeros(_MOST, np.int64)


class DecodeColumns(Columns):
    """Of one plan that `fits`; there is no padding."""

    def __init__(self, plan: StepPlan, rows: Rows, page_tokens: int) -> None:
        num = len(plan.rows)
        self._of, self._page = rows, page_tokens
        self.rows = np.array(plan.rows, np.int32)
        self.starts = np.array(plan.starts, np.int32)
        self.kv_lens = self.starts + 1
        self.counts, self.samples, self.query_starts = _ONES[:num], _TRUE[:num], _UP[: num + 1]
        self.num_tokens = num
        self.num_blocks = max(plan.starts) // page_tokens + 1
        self.drafts = plan.drafts
        self.items, self.places = _ITEMS[:num], _PLACES[:num]
        self.logit_tokens = _UP[:num]
        self.num_drafts = self.targets = _ZEROS[:num]
        self.logit_rows = self.output_rows = self.rows
        self.counters = self.kv_lens
        # Of one row, a slice is a view.
        self._take = slice(plan.rows[0], plan.rows[0] + 1) if num == 1 else self.rows
        self.greedy = not rows.temperature[self._take].any()

    @staticmethod
    def fits(plan: StepPlan) -> bool:
        num = len(plan.rows)
        one_each = 0 < num == sum(plan.counts) == sum(plan.samples) and num <= _MOST
        return one_each and not any(plan.scores) and not any(plan.drafts)

    def fill(self, out: dict[str, Ints], num_seqs: int, num_blocks: int, num_ahead: int, keeps_first: bool) -> None:
        """As `Columns.fill`, without what foretells."""
        assert num_seqs == self.num_tokens, "there is no padding"
        assert not num_ahead
        rows, page, take = self._of, self._page, self._take
        out["output_rows"][:] = self.rows
        out["counter"][:] = out["kv_lens"][:] = self.kv_lens
        out["top_k"][:] = rows.top_k[take]
        out["seed"][:] = rows.seed[take].reshape(-1)
        out["temperature"].view(np.float32)[:] = rows.temperature[take]
        out["top_p"].view(np.float32)[:] = rows.top_p[take]
        out["logit_rows"][:] = self.logit_tokens
        out["query_starts"][:] = self.query_starts
        out["positions"][:] = self.starts
        given = self.starts < rows.num_given[take]
        out["source_rows"][:] = np.where(given, 0, self.rows)
        out["token_ids"][:] = 0
        if given.any():
            for i in np.flatnonzero(given):
                out["token_ids"][i] = rows.ids[self.rows[i]][self.starts[i]]
        blocks, places = self.starts // page, self.starts % page
        for g, table in enumerate(rows.tables):
            out[f"slots{g}"][:] = table[self.rows, blocks] * page + places
            wide = out[f"block_table{g}"].reshape(num_seqs, num_blocks)
            width = min(num_blocks, table.shape[1])
            wide[:, :width] = table[take, :width]
            wide[:, width:] = 0
