"""Rows by number, ids and the likeliest token, by the library's kernels: with them a step of decoding is nothing else.

Legend: T tokens, R and K rows, V vocabulary, E hidden size, L logit rows. Ids and rows are int32.
"""

import math

import torch

from devices.cpu import sampling
from devices.cpu.native import calls, jobs, library


class SelectKernels:
    """Of one variant."""

    def __init__(self, variant: str) -> None:
        kernels = library.load(variant)
        self._gather, self._greedy = kernels.gather, kernels.greedy
        self._take_ids, self._put_ids = kernels.take_ids, kernels.put_ids
        self._spec_verify = kernels.spec_verify

    def embed(self, ids: torch.Tensor, table: torch.Tensor, *, first: int) -> torch.Tensor:
        """Rows of `table` [V, E], which holds the ids from `first` on: [T, E]. Ids held elsewhere give zeros."""
        return self._rows(table, ids, first)

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """x [R, ...] and rows [K] -> [K, ...]; a row that x does not have gives zeros."""
        return self._rows(x, rows, 0)

    def _rows(self, x: torch.Tensor, rows: torch.Tensor, first: int) -> torch.Tensor:
        x = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous()
        y = calls.empty((*rows.shape, *x.shape[1:]), x.dtype)
        size = x.element_size()
        row_bytes = math.prod(x.shape[1:]) * size
        rows = rows.contiguous()
        calls.call(
            self._gather,
            jobs.Gather(
                x.data_ptr(), x.shape[0], row_bytes, x.stride(0) * size, rows.data_ptr(), first, len(rows), y.data_ptr()
            ),
        )
        return y

    def take_ids(self, ids: torch.Tensor, source_rows: torch.Tensor, last_ids: torch.Tensor) -> torch.Tensor:
        """ids [T], replaced by last_ids[source_rows] where the source row is not 0, the null row."""
        given = [ids, source_rows.contiguous(), last_ids.contiguous()]
        out = calls.empty(ids.shape, torch.int32)
        sizes = ids.stride(0), len(ids), len(last_ids)
        calls.call(self._take_ids, jobs.TakeIds(*(x.data_ptr() for x in given), *sizes, out.data_ptr()))
        return out

    def put_ids(self, last_ids: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Write ids [L] into last_ids [R] in place. Rows are distinct, except for row 0, which holds anything."""
        rows, ids = rows.contiguous(), ids.contiguous()
        sizes = len(rows), len(last_ids)
        calls.call(self._put_ids, jobs.PutIds(last_ids.data_ptr(), rows.data_ptr(), ids.data_ptr(), *sizes))
        return last_ids

    def spec_verify(
        self, draft_ids: torch.Tensor, sampled_ids: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How many drafts are right, and the row of what follows them: as in core.kernels.reference.sampling."""
        given = [x.contiguous() for x in (draft_ids, sampled_ids, rows)]
        num, row = (calls.empty(draft_ids.shape[:1], torch.int32) for _ in range(2))
        calls.call(
            self._spec_verify,
            jobs.SpecVerify(*(x.data_ptr() for x in given), *draft_ids.shape, num.data_ptr(), row.data_ptr()),
        )
        return num, row

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        seed: torch.Tensor,
        counter: torch.Tensor,
        *,
        greedy: bool,
        top_k_max: int,
    ) -> torch.Tensor:
        """An id for every row: [L] int32. Arguments as in core.kernels.reference.sampling.sample.

        What was shaped is float32, and what is drawn among several needs more than a maximum: these are torch's.
        """
        if not greedy or logits.dtype != torch.bfloat16:
            limits = temperature, top_k, top_p, seed, counter
            return sampling.sample(logits, *limits, greedy=greedy, top_k_max=top_k_max)
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        ids = calls.empty(logits.shape[:1], torch.int32)
        calls.call(self._greedy, jobs.Greedy(logits.data_ptr(), *logits.shape, logits.stride(0), ids.data_ptr()))
        return ids
