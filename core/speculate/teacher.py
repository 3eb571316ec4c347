"""What the frozen model makes of texts, computed once with the device's own kernels and kept in files.

Draft heads are trained for many passes over the same texts. The model itself costs more than its heads, so each text is
run through it once. Kept are the hidden states that it multiplies by its head, the log of the sum of exponentials over
the whole vocabulary, and its likeliest token: of these and a few rows of the head, all else follows.

A file is written beside its final name and renamed when it is whole; one of the right size is used again.
Legend: R rows (texts), L tokens in a row, E hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from core.engine.build import Assembly
from core.engine.step_input import HostLengths
from core.kernels.dtypes import TORCH_DTYPES
from core.model.load import Loader
from core.model.mtp import check_family
from core.plugin.facts import Need
from core.speculate.student import Batch
from core.speculate.texts import Text

Progress = Callable[[int, int], None]
ROWS = 64  # of logits that are made wide at a time: they stay in caches


@dataclass(frozen=True)
class Traces:
    """Texts and what the model makes of them, on the host; files are mapped, not read.

    ids_RL int64, 0 past the end; lens_R, prompts_R int64; hidden_RLE; total_RL float32; best_RL int32
    """

    ids_RL: torch.Tensor
    lens_R: torch.Tensor
    prompts_R: torch.Tensor
    hidden_RLE: torch.Tensor
    total_RL: torch.Tensor
    best_RL: torch.Tensor

    def batch(self, rows: torch.Tensor, where: torch.device, dtype: torch.dtype) -> Batch:
        """Some rows on the device; hidden states in `dtype`."""
        ids, lens, prompts, total, best = (
            x[rows].to(where) for x in (self.ids_RL, self.lens_R, self.prompts_R, self.total_RL, self.best_RL)
        )
        return Batch(ids, lens, prompts, self.hidden_RLE[rows].to(where, dtype), total, best.long())


def trace(
    assembly: Assembly, texts: Sequence[Text], row_tokens: int, folder: Path, name: str, progress: Progress
) -> Traces:
    """Run `texts`, each of 2 to `row_tokens` tokens, through the model; files in `folder` begin with `name`."""
    shape = len(texts), row_tokens
    hidden_size = check_family(assembly.model).config.hidden_size
    files = (
        (f"{name}.hidden", (*shape, hidden_size), TORCH_DTYPES[assembly.plan.dtype]),
        (f"{name}.total", shape, torch.float32),
        (f"{name}.best", shape, torch.int32),
    )
    if not all(_is_whole(folder / file, size, dtype) for file, size, dtype in files):
        tensors = [_mapped(folder / f"{file}.part", size, dtype) for file, size, dtype in files]
        _fill(assembly, texts, tensors, progress)
        for file, *_ in files:
            (folder / f"{file}.part").replace(folder / file)
    ids = torch.zeros(shape, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
    lens = torch.tensor([len(text.ids) for text in texts])
    prompts = torch.tensor([max(1, text.num_prompt) for text in texts])
    return Traces(ids, lens, prompts, *(_mapped(folder / file, size, dtype) for file, size, dtype in files))


def _is_whole(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return path.is_file() and path.stat().st_size == math.prod(shape) * dtype.itemsize


def _mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype).view(shape)


@torch.inference_mode()
def _fill(assembly: Assembly, texts: Sequence[Text], tensors: Sequence[torch.Tensor], progress: Progress) -> None:
    model = _Frozen(assembly)
    most, row = assembly.plan.max_num_batched_tokens, 0
    while row < len(texts):
        end = row + 1
        while end < len(texts) and sum(len(t.ids) for t in texts[row : end + 1]) <= most:
            end += 1
        start = 0
        seen = model([text.ids for text in texts[row:end]])
        for at in range(row, end):
            length = len(texts[at].ids)
            for whole, part in zip(tensors, seen, strict=True):
                whole[at, :length] = part[start : start + length]
            start += length
        row = end
        progress(row, len(texts))


class _Step(NamedTuple):
    """A `core.model.layers.StepView` of whole sequences: logits of every token are wanted."""

    positions: torch.Tensor
    logit_rows: torch.Tensor
    slots: list[torch.Tensor]


class _Frozen:
    """The model with its weights, run on whole sequences that nothing is kept of."""

    def __init__(self, assembly: Assembly) -> None:
        a = self._assembly = assembly
        load = Loader(a.source, a.device, a.where, a.kernels, dtype=a.plan.dtype, shard=a.builder.shard)
        with a.device.loading():
            self._weights = load.load(a.builder.params)
        self._page = a.plan.page_tokens
        self._plans = [
            a.kernels.bind(
                "attn_plan",
                Need(dtype=a.plan.dtype, head_size=g.head_size, page_tokens=self._page),
                page_tokens=self._page,
                window=g.retain,
            )
            for g in a.groups
        ]

    def __call__(self, texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of every token, on the host: hidden state [T, E], log of the sum of exponentials [T], likeliest token [T]."""
        a, lens = self._assembly, np.array([len(ids) for ids in texts], np.int32)
        starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
        positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lens])
        widths = -(-lens // self._page)
        table = np.zeros((len(lens), int(widths.max())), np.int32)
        first = 1 + np.concatenate(([0], np.cumsum(widths)))  # page 0 is the null page
        for row, width in enumerate(widths):
            table[row, :width] = np.arange(first[row], first[row] + width)
        owner = np.repeat(np.arange(len(lens)), lens)
        slots = (table[owner, positions // self._page] * self._page + positions % self._page).astype(np.int32)

        def put(x: npt.NDArray[np.int32]) -> torch.Tensor:
            return torch.from_numpy(x).to(a.where)

        host = HostLengths(lens, lens, exact=True)
        tables = put(starts), put(lens), put(table)
        plans = [plan(*tables, num_tokens=len(positions), host=host) for plan in self._plans]
        rows = torch.arange(len(positions), dtype=torch.int32, device=a.where)
        step = _Step(put(positions), rows, [put(slots)] * len(a.groups))
        ids = put(np.concatenate([np.array(text, np.int32) for text in texts]))
        logits, hidden, _ = a.model(self._weights, ids, step, plans, self._planes(int(first[-1])))
        seen = [_judged(some) for some in torch.split(logits, ROWS)]
        return hidden.cpu(), torch.cat([total for total, _ in seen]).cpu(), torch.cat([best for _, best in seen]).cpu()

    def _planes(self, num_pages: int) -> list[list[tuple[torch.Tensor, ...]]]:
        a = self._assembly
        return [
            [
                tuple(
                    torch.zeros(shape, dtype=TORCH_DTYPES[plane.dtype], device=a.where)
                    for plane, shape in zip(layout.planes, layout.shapes(num_pages), strict=True)
                )
                for _ in range(group.num_layers)
            ]
            for group, layout in zip(a.groups, a.layouts, strict=True)
        ]


def _judged(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows of logits: log of the sum of exponentials, and the likeliest token."""
    wide = logits.float()
    return wide.logsumexp(-1), wide.argmax(-1).int()
