"""The columns of one plan, as numpy arrays: whole columns at a time; only sequences with new prompt tokens are visited.

Legend: T tokens, S sequences, L logit rows, B pages in a block table, g KV group.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from core.engine.rows import Ints, Rows
from core.engine.step import StepPlan

FULL_SORT = 0


class Columns:
    """Of one plan."""

    def __init__(self, plan: StepPlan, rows: Rows, page_tokens: int) -> None:
        self._of, self._page = rows, page_tokens
        self.rows = np.array(plan.rows, np.int32)
        self.starts = np.array(plan.starts, np.int32)
        self.counts = np.array(plan.counts, np.int32)
        self.samples = np.array(plan.samples, bool)
        self.kv_lens = self.starts + self.counts
        self.query_starts = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)
        self.num_tokens = int(self.query_starts[-1])
        self.num_blocks = -(-int(self.kv_lens.max(initial=0)) // page_tokens)
        self.drafts = plan.drafts
        self.num_drafts = np.array(plan.num_drafts, np.int32)
        # Logit rows: first those that are drawn from, one for each draft beside the item's own; then those that score a
        # prompt, with row 0's parameters.
        num_draws = self.samples + self.num_drafts
        self.items = np.repeat(np.arange(len(self.rows)), num_draws)
        self.places = np.arange(len(self.items)) - np.repeat(np.cumsum(num_draws) - num_draws, num_draws)
        left = (self.num_drafts[self.items] - self.places).astype(np.int32)  # drafts after the one drawn from
        self.logit_tokens = self.query_starts[1:][self.items] - 1 - left
        self.logit_rows = self.rows[self.items]
        self.counters = self.kv_lens[self.items] - left
        # What is drawn beside drafts goes to rows past those of sequences: which of it counts is not known yet.
        beside = self.num_drafts[self.items] > 0
        self.output_rows = np.where(beside, rows.num_rows + np.arange(len(beside)), self.logit_rows).astype(np.int32)
        self.targets = np.zeros(len(self.items), np.int32)
        if any(plan.scores):
            self._add_scores([i for i, scores in enumerate(plan.scores) if scores])
        self.greedy = not bool(rows.temperature[self.logit_rows].any())

    def _add_scores(self, items: list[int]) -> None:
        """Logit rows for prompt tokens: what follows each, as far as that is the prompt."""
        for i in items:
            num = self.counts[i] - self.samples[i]
            tokens = np.arange(num, dtype=np.int32) + self.query_starts[i]
            zeros = np.zeros(num, np.int32)
            following = self._of.ids[self.rows[i]][self.starts[i] + 1 : self.starts[i] + 1 + num]
            self.logit_tokens = np.concatenate([self.logit_tokens, tokens])
            self.logit_rows = np.concatenate([self.logit_rows, zeros])
            self.output_rows = np.concatenate([self.output_rows, zeros])
            self.counters = np.concatenate([self.counters, zeros])
            self.targets = np.concatenate([self.targets, following])

    @property
    def top_k_max(self) -> int:
        """Bound on top_k of the rows that draw among several; FULL_SORT where one limits them by top_p alone."""
        rows = self.logit_rows[self._of.temperature[self.logit_rows] > 0]
        top_k = self._of.top_k[rows]
        by_p_alone = (self._of.top_p[rows] < 1) & (top_k == 0)
        if by_p_alone.any():
            return FULL_SORT
        return 1 << max(0, int(top_k.max(initial=1)) - 1).bit_length()

    def fill(self, out: dict[str, Ints], num_seqs: int, num_blocks: int, num_ahead: int, keeps_first: bool) -> None:
        """Write every field, padding included; block tables are [num_seqs, num_blocks]."""
        rows, num, page = self._of, self.num_tokens, self._page
        spread = np.repeat(self.starts - self.query_starts[:-1], self.counts)
        positions = np.arange(num, dtype=np.int32) + spread
        row_T = np.repeat(self.rows, self.counts)
        _put(out["positions"], positions)
        is_draft = positions >= np.repeat(self.kv_lens - self.num_drafts, self.counts)
        _put(out["source_rows"], np.where((positions >= rows.num_given[row_T]) & ~is_draft, row_T, 0))
        self._fill_ids(out["token_ids"])
        if num_ahead:
            self._fill_ahead(out, num_ahead)
            if keeps_first:
                self._keep_first(out, num_ahead)
        _put(out["query_starts"], self.query_starts, pad=num)
        _put(out["kv_lens"], self.kv_lens)
        _put(out["logit_rows"], self.logit_tokens)
        _put(out["output_rows"], self.output_rows)
        _put(out["counter"], self.counters)
        _put(out["top_k"], rows.top_k[self.logit_rows])
        _put(out["seed"], rows.seed[self.logit_rows].reshape(-1))
        _put(out["temperature"].view(np.float32), rows.temperature[self.logit_rows])
        _put(out["top_p"].view(np.float32), rows.top_p[self.logit_rows], pad=1)
        for g, table in enumerate(rows.tables):
            _put(out[f"slots{g}"], table[row_T, positions // page] * page + positions % page, pad=-1)
            blocks = out[f"block_table{g}"].reshape(num_seqs, num_blocks)
            width = min(num_blocks, table.shape[1])  # a bucket may be wider than the longest sequence
            blocks[: len(self.rows), :width] = table[self.rows, :width]
            blocks[: len(self.rows), width:] = 0
            blocks[len(self.rows) :] = 0

    def fill_verify(self, out: dict[str, Ints], num_drafts: int) -> None:
        """Write what tells which drafts were right, padding included. See `core.engine.step_input.VerifyInput`."""
        drawing = np.flatnonzero(self.samples)
        draft_ids = out["draft_ids"].reshape(-1, num_drafts)
        draft_ids[:] = -1
        for place in np.flatnonzero(self.num_drafts[drawing]):
            ids = self.drafts[drawing[place]]
            draft_ids[place, : len(ids)] = ids
        drawn_rows = out["drawn_rows"].reshape(-1, num_drafts + 1)
        drawn_rows[:] = 0
        of_item = np.cumsum(self.samples) - 1
        drawn_rows[of_item[self.items], self.places] = self.output_rows[: len(self.items)]
        _put(out["kept_rows"], self.rows[drawing])

    def _fill_ids(self, out: Ints) -> None:
        out[:] = 0
        for i in np.flatnonzero(self.starts < self._of.num_given[self.rows]):
            ids = self._of.ids[self.rows[i]][self.starts[i] : self.kv_lens[i]]
            out[self.query_starts[i] : self.query_starts[i] + len(ids)] = ids
        for i in np.flatnonzero(self.num_drafts):
            end = self.query_starts[i + 1]
            out[end - self.num_drafts[i] : end] = self.drafts[i]

    def _fill_ahead(self, out: dict[str, Ints], num_ahead: int) -> None:
        """Where ids that follow each token are from. See `core.engine.step_input.AheadInput`."""
        draws = self.logit_tokens[: len(self.items)]
        out["ahead_rows"][:] = 0
        out["ahead_rows"][draws] = self.output_rows[: len(self.items)]
        out["shift_rows"][:] = 0
        out["shift_rows"][: self.num_tokens] = np.arange(1, self.num_tokens + 1)
        out["shift_rows"][self.query_starts[1:] - 1] = 0
        out["shift_rows"][draws] = 0
        for k in range(num_ahead):
            out[f"known{k}"][:] = 0
        for i in np.flatnonzero(~self.samples):
            row, last = self.rows[i], self.query_starts[i + 1] - 1
            following = self._of.ids[row][self.kv_lens[i] : self.kv_lens[i] + num_ahead]
            for k, token_id in enumerate(following):
                out[f"known{k}"][last] = token_id
            if not len(following):
                out["ahead_rows"][last] = row  # the id drawn last

    def _keep_first(self, out: dict[str, Ints], num_ahead: int) -> None:
        """The first token of a text stays in its place, but where something is drawn right after it."""
        for i in np.flatnonzero((self.starts == 0) & ~(self.samples & (self.counts == 1))):
            first = self.query_starts[i]
            out["ahead_rows"][first] = out["shift_rows"][first] = 0
            for k in range(num_ahead):
                out[f"known{k}"][first] = self._of.ids[self.rows[i]][0]

    def seen(self, logit: int) -> Ints:
        """Ids on the host before the one that logit row `logit` draws: all of them, where that depends on them."""
        ids: Ints = self._of.ids[self.logit_rows[logit]]
        if logit >= len(self.items) or not self.places[logit]:
            return ids
        drafts = np.array(self.drafts[self.items[logit]][: self.places[logit]], np.int32)
        return np.concatenate([ids, drafts])


def _put(out: npt.NDArray[np.generic], values: npt.NDArray[np.generic], pad: int = 0) -> None:
    out[: len(values)] = values
    out[len(values) :] = pad
