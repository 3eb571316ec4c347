"""A layer's KV pool on the bench, in whatever layout its provider has, and what the examinations around it share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from conformance.bounds import LARGEST, ROUNDOFF, SMALLEST, eta
from conformance.case import Case, Value
from conformance.draw import Draw, exact, stored
from conformance.judge import Expected, raw
from conformance.kernels.moves import int32, numbers, same
from conformance.oracle import move
from conformance.row_exam import Outputs, RowExam
from conformance.target import Bench
from core.kernels.reference.kv import KVLayout, Planes
from core.plugin.facts import DTYPES, Need, Support

SIZES = ((16, 2, 64), (64, 1, 32), (64, 2, 16))
"""Page tokens, heads, head size: of most cases."""

SHAPES = ((8, 1, 16), (16, 3, 80), (16, 4, 96), (32, 1, 192), (64, 2, 64), (64, 1, 256), (128, 1, 64))
PAGES, MANY_PAGES = 5, 300
MAX_CLAIMED_TOKENS = 1 << 16

WRITE_TOKENS = 1024
"""Entries that a pool is filled with by one call: no more than a step has tokens."""

NORMAL_MIN = 2.0**-126
"""The smallest normal float32: what arithmetic on codes and scales loses below it is not counted."""


class PoolExam(RowExam):
    """What examinations of KV rows share."""

    def need(self, case: Case) -> Need:
        return Need(dtype=case["dtype"], page_tokens=case["page"], head_size=case["d"], max_tokens=case.get("claimed"))

    def sized(self, family: str, dtype: str, sizes: Sequence[tuple[int, int, int]], **more: Value) -> Iterator[Case]:
        for page, h, d in sizes:
            yield Case.of(self.row, family, **{"dtype": dtype, "page": page, "h": h, "d": d, "pages": PAGES, **more})

    def claims(self, support: Support) -> Iterator[Case]:
        """Every page size and head size that is claimed."""
        dtypes = sorted(support.dtypes or DTYPES)
        pages, sizes = sorted(support.page_sizes or ()), sorted(support.head_sizes or ())
        for dtype in dtypes:
            for page in pages:
                yield from self.sized("claim", dtype, [(page, 2, sizes[-1] if sizes else 64)])
            for d in sizes:
                yield from self.sized("claim", dtype, [(pages[0] if pages else 16, 1, d)])


class Pool:
    """One layer's planes, full of NaN, or of the largest integers."""

    def __init__(self, case: Case, bench: Bench, name: str = "plane") -> None:
        self.layout = layout_of(case, bench)
        self._case, self._bench, self._name = case, bench, name
        self.planes: Planes = bench.planes(self.layout, case["pages"], name)

    def write(self, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """All on the device."""
        kernel = self._bench.bind("kv_write", page_tokens=self._case["page"])
        self.planes = kernel(k, v, self.planes, slots)

    def fill(self, content: torch.Tensor, keep_out: Sequence[int] = ()) -> None:
        """Write content [2, pages - 1, page, H, D] to all pages but page 0, except for some slots."""
        page = self._case["page"]
        slots = np.setdiff1d(np.arange(page, self._case["pages"] * page), np.asarray(keep_out, np.int64))
        rows = content.flatten(1, 2)
        if len(slots) < rows.shape[1]:
            rows = rows[:, torch.from_numpy(slots - page)]
        for first in range(0, max(1, len(slots)), WRITE_TOKENS):
            part = slice(first, first + WRITE_TOKENS)
            k, v = (self._bench.put(f"{self._name}_{of}", x[part]) for of, x in zip("kv", rows, strict=True))
            self.write(k, v, self._bench.put(f"{self._name}_slots", int32(slots[part])))

    def read(self, name: str = "") -> Outputs:
        """Keys and values of every page but page 0."""
        pages = self._bench.put(f"{self._name}_pages", int32(range(1, self._case["pages"])))
        k, v = self._bench.bind("kv_gather")(self.planes, pages)
        return {f"{name}k": self._bench.get(k), f"{name}v": self._bench.get(v)}

    def raw(self, suffix: str = "") -> Outputs:
        """The bytes of every page but page 0, plane by plane."""
        found: Outputs = {}
        for i, (plane, x) in enumerate(zip(self.layout.planes, self.planes, strict=True)):
            axis = plane.page_axis
            found[f"{self._name}{i}{suffix}"] = self._bench.get(x).narrow(axis, 1, x.shape[axis] - 1).clone()
            found[f"{self._name}{i}.axis"] = torch.tensor([axis])
        return found

    @property
    def error(self) -> Outputs:
        return {"kv_error": torch.tensor([self.layout.kv_error], dtype=torch.float64)}


def layout_of(case: Case, bench: Bench) -> KVLayout:
    sizes = {"num_kv_heads": case["h"], "head_size": case["d"], "page_tokens": case["page"]}
    made = bench.bind("kv_layout", **sizes, dtype=case["dtype"])()
    assert isinstance(made, KVLayout)
    return made


def kept(x: torch.Tensor, outputs: Outputs, dtype: str) -> Expected | None:
    """What comes back for x [..., D]: the same bits, or within the error that the layout declares.

    None where nothing can be said: a layout of narrower codes need not hold what is not finite.
    """
    error = float(outputs["kv_error"])
    if error == 0:
        return Expected(bits=x)
    value = exact(x)
    if not np.isfinite(value).all():
        return None
    most = error * np.abs(value).max(-1, keepdims=True, initial=0)
    bound = most + ROUNDOFF[dtype] * (np.abs(value) + most) + eta(dtype) + NORMAL_MIN
    return Expected(value=value, bound=bound, dtype=dtype, rms=False, bias=False)


def kept_all(expected: dict[str, torch.Tensor], outputs: Outputs, dtype: str) -> dict[str, Expected]:
    found = {name: kept(x, outputs, dtype) for name, x in expected.items()}
    return {name: e for name, e in found.items() if e is not None}


def untouched(outputs: Outputs, touched: Sequence[int]) -> dict[str, Expected]:
    """Of planes fetched by `Pool.raw` before and after: pages that are not touched have the same bytes."""
    expected = {}
    for name, before in outputs.items():
        if not name.endswith(".before"):
            continue
        plane = name.removesuffix(".before")
        axis, after = int(outputs[f"{plane}.axis"]), outputs[plane]
        others = [page for page in range(before.shape[axis]) if page + 1 not in touched]
        expected[plane] = same(move.copy_pages(raw(after), raw(before), others, others, axis), before.dtype)
    return expected


def content(draw: Draw, case: Case, *shape: int) -> torch.Tensor:
    """Numbers [..., H, D] to keep: between -1 and 1; by the case's family any bits, or the hardest for narrow codes."""
    dtype, size = case["dtype"], (*shape, case["h"], case["d"])
    if case.family == "payload":
        return numbers(draw, dtype, *size, any_bits=True)
    if case.family == "worst":
        return magnitudes(draw, dtype, *size)
    return stored(2 * draw.uniform(*size) - 1, dtype)


def magnitudes(draw: Draw, dtype: str, *shape: int) -> torch.Tensor:
    """Rows [..., D] of extreme kinds, drawn for each: what narrow codes with one scale a row keep worst."""
    sign = 1.0 - 2.0 * draw.integers(0, 2, *shape)
    only = np.arange(shape[-1]) == shape[-1] // 2
    tie = (draw.integers(0, 127, *shape) + 0.5) / 127
    some = 2 * draw.uniform(*shape) - 1
    kinds: list[Any] = [
        sign,  # equal magnitudes
        sign * only,  # one outlier, zeros
        sign * np.where(only, 1.0, 2.0**-9),  # one outlier, small numbers
        sign * 0.0,
        sign * SMALLEST[dtype] * draw.integers(0, 9, *shape),  # subnormal
        sign * LARGEST[dtype],
        np.where(only, 1.0, sign * tie),  # between two codes
        some * 2.0**-12,
        some * 2.0**8,
    ]
    chosen = draw.integers(0, len(kinds), *shape[:-1], 1)
    return stored(np.asarray(np.choose(chosen, np.broadcast_arrays(*kinds))), dtype)
