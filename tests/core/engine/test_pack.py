"""Packing against a twin of plain loops: every field of every step, padding included."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.columns import Columns
from core.engine.decode_columns import DecodeColumns
from core.engine.pack import LEAST_BLOCKS, Packer, _fields, _views
from core.engine.rows import Rows
from core.engine.step import NewSequence, StepPlan
from core.engine.step_input import ShapeKey, StepInput
from core.errors import DeviceError
from core.plugin import Device, DeviceFacts, Event, Memory, ShapePolicy
from core.request import Request

PAGE = 4
NUM_ROWS = 7
NUM_DRAFTS = NUM_ROWS - 1
BUCKETS = ShapePolicy(tokens=(4, 16, 48), seqs=(1, 3, 8), blocks=(2, 8))
POLICIES = [ShapePolicy(), BUCKETS, ShapePolicy(tokens=(48,)), ShapePolicy(seqs=(8,), blocks=(8,))]


class Late(Event):
    def __init__(self, copy: Any) -> None:
        self._copy: Any = copy

    def wait(self) -> None:
        if self._copy:
            self._copy()
            self._copy = None

    synchronize = wait


class Dirty(Device):
    """Fresh memory is full of rubbish, and copies land when they are waited for."""

    def probe(self) -> DeviceFacts:
        raise NotImplementedError

    def open(self, index: int) -> torch.device:
        raise NotImplementedError

    def memory(self) -> Memory:
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full(shape, torch.iinfo(dtype).max, dtype=dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, torch.iinfo(dtype).max, dtype=dtype)

    def h2d(self, dst: torch.Tensor, src: torch.Tensor) -> Event:
        return Late(lambda: dst.copy_(src))


def make(rows: Rows, shapes: ShapePolicy = BUCKETS, sets: int = 2, max_blocks: int = 8, **limits: int) -> Packer:
    sizes = {"max_tokens": 48, "max_seqs": NUM_ROWS, "max_blocks": max_blocks, "vocab_size": 1000, **limits}
    sizes = {"max_logits": sizes["max_seqs"], "num_drafts": NUM_DRAFTS, **sizes}
    return Packer(Dirty(), torch.device("cpu"), rows, page_tokens=PAGE, shapes=shapes, sets=sets, **sizes)


def bucket(size: int, buckets: tuple[int, ...]) -> int:
    return min(b for b in buckets if b >= size) if buckets else size


class Twin:
    """What the packer must know and fill, one entry at a time."""

    def __init__(self, num_groups: int, shapes: ShapePolicy, replayed: int = 0) -> None:
        self.num_groups, self.shapes, self.replayed = num_groups, shapes, replayed
        self.new: dict[int, NewSequence] = {}
        self.tables: dict[int, list[dict[int, int]]] = {}
        self.given: dict[int, list[int]] = {}

    def apply(self, plan: StepPlan) -> None:
        for new in plan.new:
            self.new[new.row] = new
            self.tables[new.row] = [dict(enumerate(table)) for table in new.tables]
            self.given[new.row] = list(new.token_ids)
        for row, token_id in plan.drawn:
            self.given[row].append(token_id)
        for row, group, index, page in plan.edits:
            self.tables[row][group][index] = page

    def key(self, plan: StepPlan) -> ShapeKey:
        shapes = self.shapes
        longest = max(start + count for start, count in zip(plan.starts, plan.counts, strict=True))
        drawing = [self.new[row] for row, samples in zip(plan.rows, plan.samples, strict=True) if samples]
        num_draws = len(drawing) + sum(map(len, plan.drafts))
        greedy = all(new.request.temperature == 0 for new in drawing)
        top_k_max = 1
        among = [new for new in drawing if new.request.temperature > 0]
        while top_k_max < max([1, *(new.request.top_k for new in among)]):
            top_k_max *= 2
        if any(new.request.top_p < 1 and new.request.top_k <= 0 for new in among):
            top_k_max = 0
        num_seqs, num_logits, num_blocks = len(plan.rows), max(1, num_draws), -(-longest // PAGE)
        if shapes == ShapePolicy() and sum(plan.counts) == num_logits <= self.replayed:
            num_seqs, num_blocks = num_logits, 8
        if shapes.seqs:
            num_seqs = num_logits = max(num_seqs, num_logits)
        return ShapeKey(
            bucket(sum(plan.counts), shapes.tokens),
            bucket(num_seqs, shapes.seqs),
            bucket(num_blocks, shapes.blocks),
            bucket(num_logits, shapes.seqs),
            greedy,
            1 if greedy else top_k_max if shapes == ShapePolicy() else 0,
        )

    def fields(self, plan: StepPlan) -> dict[str, Any]:
        key = self.key(plan)
        out: dict[str, list[Any]] = {name: [] for name in (
            "token_ids", "positions", "source_rows", "kv_lens", "logit_rows", "output_rows", "counter", "top_k",
            "seed", "temperature", "top_p",
        )}  # fmt: skip
        out["query_starts"] = [0]
        slots: list[list[int]] = [[] for _ in range(self.num_groups)]
        tables: list[list[list[int]]] = [[] for _ in range(self.num_groups)]
        for i, (row, start, count, samples) in enumerate(
            zip(plan.rows, plan.starts, plan.counts, plan.samples, strict=True)
        ):
            new, held = self.new[row], self.tables[row]
            drafts = plan.drafts[i] if plan.drafts else []
            ids = self.given[row]
            known = dict(enumerate(ids[: start + count - len(drafts)]))
            known.update(enumerate(drafts, start + count - len(drafts)))
            for position in range(start, start + count):
                out["token_ids"].append(known.get(position, 0))
                out["source_rows"].append(0 if position in known else row)
                out["positions"].append(position)
                for g in range(self.num_groups):
                    slots[g].append(held[g][position // PAGE] * PAGE + position % PAGE)
            out["query_starts"].append(out["query_starts"][-1] + count)
            out["kv_lens"].append(start + count)
            for g in range(self.num_groups):
                tables[g].append([held[g].get(i, 0) for i in range(key.blocks)])
            for left in range(len(drafts), -1, -1) if samples else ():
                out["logit_rows"].append(out["query_starts"][-1] - 1 - left)
                out["output_rows"].append(NUM_ROWS + 1 + len(out["output_rows"]) if drafts else row)
                out["counter"].append(start + count - left)
                out["top_k"].append(max(0, new.request.top_k))
                out["seed"].append([new.request.seed & 0xFFFFFFFF, new.request.seed >> 32])
                out["temperature"].append(new.request.temperature)
                out["top_p"].append(new.request.top_p)
        self.pad(out, key)
        for g in range(self.num_groups):
            slots[g] += [-1] * (key.tokens - len(slots[g]))
            tables[g] += [[0] * key.blocks] * (key.seqs - len(tables[g]))
        return {**out, "slots": slots, "block_tables": tables}

    def pad(self, out: dict[str, list[Any]], key: ShapeKey) -> None:
        sizes = {"token_ids": key.tokens, "positions": key.tokens, "source_rows": key.tokens, "kv_lens": key.seqs}
        for name, values in out.items():
            if name != "query_starts":
                pad = {"seed": [0, 0], "top_p": 1}.get(name, 0)
                out[name] = values + [pad] * (sizes.get(name, key.logits) - len(values))
        out["query_starts"] += [out["query_starts"][-1]] * (key.seqs + 1 - len(out["query_starts"]))

    def verify(self, plan: StepPlan) -> dict[str, Any]:
        """One row for each item that draws: its drafts, where its draws go, and where the last of them that counts."""
        num, rows = self.key(plan).logits, self.fields(plan)["output_rows"]
        out: dict[str, Any] = {"draft_ids": [], "drawn_rows": [], "kept_rows": []}
        for i, row in enumerate(plan.rows):
            drafts = plan.drafts[i] if plan.drafts else []
            if plan.samples[i]:
                own, rows = rows[: len(drafts) + 1], rows[len(drafts) + 1 :]
                out["draft_ids"].append(drafts + [-1] * (NUM_DRAFTS - len(drafts)))
                out["drawn_rows"].append(own + [0] * (NUM_DRAFTS - len(drafts)))
                out["kept_rows"].append(row)
        left = num - len(out["kept_rows"])
        out["draft_ids"] += [[-1] * NUM_DRAFTS] * left
        out["drawn_rows"] += [[0] * (NUM_DRAFTS + 1)] * left
        out["kept_rows"] += [0] * left
        return out


def check(x: StepInput, plan: StepPlan, twin: Twin) -> None:
    assert x.key == twin.key(plan)
    assert (x.verify is not None) == bool(plan.drafts or twin.shapes != ShapePolicy())
    for name, values in twin.verify(plan).items() if x.verify else ():
        assert torch.equal(getattr(x.verify, name), torch.tensor(values, dtype=torch.int32)), name
    wanted = twin.fields(plan)
    wanted["seed"] = [[word - 2**32 * (word >= 2**31) for word in pair] for pair in wanted["seed"]]
    for name, values in wanted.items():
        field = getattr(x, name)
        kind = torch.float32 if name in ("temperature", "top_p") else torch.int32
        for tensor, expected in zip(field, values, strict=True) if isinstance(field, tuple) else [(field, values)]:
            assert tensor.dtype == kind, name
            assert torch.equal(tensor, torch.tensor(expected, dtype=kind).view(tensor.shape)), name
    queries = [*plan.counts, *[0] * (x.key.seqs - len(plan.counts))]
    assert x.host.exact
    assert x.host.query_lens.tolist() == queries
    assert x.host.kv_lens.tolist() == wanted["kv_lens"]


def new_sequence(row: int, ids: list[int], tables: list[list[int]], **sampling: Any) -> NewSequence:
    request = Request(request_id=str(row), prompt_ids=[], max_tokens=8, stop_ids=[], **sampling)
    return NewSequence(row, ids, tables, request, len(ids))


class Workload:
    """Plans as a scheduler would make them: rows are taken, go on step by step, and are taken over by others."""

    def __init__(self, seed: int, num_groups: int) -> None:
        self.rng = random.Random(seed)
        self.num_groups = num_groups
        self.known: dict[int, int] = {}  # row -> tokens
        self.done: dict[int, int] = {}
        self.pages: dict[int, int] = {}
        self.given: dict[int, int] = {}

    def plan(self) -> StepPlan:
        plan = StepPlan([], [], [], [], [], [], [], [])
        for row in self.rng.sample(range(1, NUM_ROWS + 1), self.rng.randint(1, NUM_ROWS)):
            if row not in self.known or self.rng.random() < 0.25:
                plan.new.append(self.take_over(row))
            todo = self.known[row] - self.done[row]
            count = self.rng.randint(1, min(todo, 6)) if todo else 0
            if count:
                self.add(plan, row, count)
        self.draft(plan)
        return plan if plan.rows else self.plan()

    def take_over(self, row: int) -> NewSequence:
        rng = self.rng
        self.known[row] = self.given[row] = rng.randint(1, 20)
        # Perhaps found in the prefix cache up to a page.
        self.done[row] = rng.randrange(0, self.known[row], PAGE)
        self.pages[row] = -(-(self.done[row] + 1) // PAGE)
        tables = [[rng.randint(1, 99) for _ in range(self.pages[row])] for _ in range(self.num_groups)]
        temperature, top_k = rng.choice([0.0, 0.0, 0.5, 1.3]), rng.choice([-1, 0, 1, 2, 3, 40, 64, 65])
        top_p = rng.choice([1.0, 1.0, 0.25])
        ids = [rng.randrange(1000) for _ in range(self.known[row])]
        return new_sequence(
            row, ids, tables, temperature=temperature, top_k=top_k, top_p=top_p, seed=rng.getrandbits(64)
        )

    def draft(self, plan: StepPlan) -> None:
        """Perhaps drafts for items that draw, as far as there are rows of logits and pages; none of them is right."""
        left, drafts = NUM_ROWS - sum(plan.samples), []
        for i, (row, samples) in enumerate(zip(plan.rows, plan.samples, strict=True)):
            room = min(left, self.pages[row] * PAGE - self.done[row])
            num = self.rng.randint(0, room) if samples and self.rng.random() < 0.5 else 0
            drafts.append([self.rng.randrange(1000) for _ in range(num)])
            left -= num
            if num:
                plan.counts[i] += num
        if any(drafts):
            plan.drafts.extend(drafts)

    def add(self, plan: StepPlan, row: int, count: int) -> None:
        start = self.done[row]
        while self.pages[row] * PAGE < start + count:
            plan.edits.extend((row, g, self.pages[row], self.rng.randint(1, 99)) for g in range(self.num_groups))
            self.pages[row] += 1
        if self.rng.random() < 0.2:  # a page that another sequence had first
            plan.edits.append((row, self.rng.randrange(self.num_groups), 0, self.rng.randint(1, 99)))
        samples = start + count == self.known[row] < 8 * PAGE
        plan.rows.append(row)
        plan.starts.append(start)
        plan.counts.append(count)
        plan.samples.append(samples)
        self.done[row] += count
        self.known[row] += samples


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    num_groups=st.sampled_from([1, 1, 2, 3]),
    shapes=st.sampled_from(POLICIES),
    sets=st.sampled_from([1, 2]),
    replayed=st.sampled_from([0, 4, 8]),
)
def test_every_field_of_every_step(seed: int, num_groups: int, shapes: ShapePolicy, sets: int, replayed: int) -> None:
    workload, twin = Workload(seed, num_groups), Twin(num_groups, shapes, replayed)
    rows = Rows(NUM_ROWS + 1, 8, num_groups)
    packer = make(rows, shapes, sets, replayed_tokens=replayed)
    for _ in range(12):
        plan = workload.plan()
        twin.apply(plan)
        rows.apply(plan)
        check(packer.pack(plan), plan, twin)


def decode(rng: random.Random, num: int, num_groups: int) -> tuple[Rows, StepPlan]:
    """Sequences with one token each, which is known to the host of some of them."""
    rows = Rows(NUM_ROWS + 1, 8, num_groups)
    plan = StepPlan([], [], [], [1] * num, [True] * num, [], [False] * num, [])
    for row in rng.sample(range(1, NUM_ROWS + 1), num):
        known = rng.randint(1, 8 * PAGE - 1)
        tables = [[rng.randint(1, 99) for _ in range(8)] for _ in range(num_groups)]
        sampling = {"temperature": rng.choice([0.0, 0.7]), "top_k": rng.randint(-1, 9), "top_p": rng.choice([0.5, 1.0])}
        ids = [rng.randrange(1000) for _ in range(known)]
        plan.new.append(new_sequence(row, ids, tables, seed=rng.getrandbits(64), **sampling))
        plan.rows.append(row)
        plan.starts.append(known - rng.randint(0, 1))
    rows.apply(plan)
    return rows, plan


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_decoding_are_the_columns(seed: int) -> None:
    """Made with fewer calls."""
    rng = random.Random(seed)
    rows, plan = decode(rng, rng.randint(1, NUM_ROWS), 1 + seed % 2)
    assert DecodeColumns.fits(plan)
    few, usual = DecodeColumns(plan, rows, PAGE), Columns(plan, rows, PAGE)
    names = {name for name in vars(usual) if not name.startswith("_")}
    assert names <= set(vars(few))
    for name in names:
        assert np.array_equal(getattr(few, name), getattr(usual, name)), name
    assert few.top_k_max == usual.top_k_max
    filled = []
    for columns in (few, usual):
        fields = _fields(ShapeKey(*[len(plan.rows)] * 2, 8, len(plan.rows), True, 1), len(rows.tables), 0, 0)
        words = np.full(sum(size for _, size in fields), 77, np.int32)
        columns.fill(_views(words, fields), len(plan.rows), 8, 0, False)
        filled.append(words)
    assert np.array_equal(*filled)


@pytest.mark.parametrize(
    "change", [{"counts": [2, 1]}, {"samples": [True, False]}, {"scores": [True, False]}, {"drafts": [[], [5]]}]
)
def test_other_plans_do_not_fit(change: dict[str, Any]) -> None:
    _, plan = decode(random.Random(1), 2, 1)
    assert DecodeColumns.fits(plan)
    assert not DecodeColumns.fits(msgspec.structs.replace(plan, **change))
    assert not DecodeColumns.fits(msgspec.structs.replace(plan, rows=[], starts=[], counts=[], samples=[], scores=[]))


def test_tables_of_steps_that_are_replayed_have_few_widths() -> None:
    for num, replayed in ((1, 4), (4, 4), (5, 4), (1, 0)):
        _, plan = decode(random.Random(num), num, 1)
        wide = Rows(NUM_ROWS + 1, 40, 1)
        wide.apply(plan)
        x = make(wide, ShapePolicy(), max_blocks=40, replayed_tokens=replayed).pack(plan)
        used = max(plan.starts) // PAGE + 1
        assert x.key.blocks == (LEAST_BLOCKS if num <= replayed else used)
        assert x.block_tables[0][:, :used].tolist() == wide.tables[0][plan.rows, :used].tolist()
    packer = make(wide, ShapePolicy(), max_blocks=40, replayed_tokens=4)
    keys = [packer.replayed_key(ShapeKey(1, 1, blocks, 1, True, 1)).blocks for blocks in (1, 16, 17, 32, 33, 40)]
    assert keys == [16, 16, 32, 32, 40, 40]


def one(row: int = 1, ids: int = 6, pages: int = 2, **sampling: Any) -> NewSequence:
    settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, **sampling}
    return new_sequence(row, list(range(ids)), [[5, 6, 7, 8, 9][:pages]], **settings)


def pack(new: list[NewSequence], samples: list[bool], shapes: ShapePolicy = BUCKETS, **limits: int) -> StepInput:
    rows = Rows(NUM_ROWS + 1, 8, 1)
    plan = StepPlan(new, [n.row for n in new], [0] * len(new), [len(n.token_ids) for n in new], samples, [], [], [])
    rows.apply(plan)
    return make(rows, shapes, **limits).pack(plan)


@pytest.mark.parametrize(
    ("params", "greedy", "top_k_max"),
    [
        ([{}], True, 1),
        ([{"top_k": 50, "top_p": 0.5}], True, 1),
        ([{"temperature": 1.0}], False, 1),
        ([{"temperature": 1.0, "top_k": 1}], False, 1),
        ([{"temperature": 1.0, "top_k": 5}, {}], False, 8),
        ([{"temperature": 1.0, "top_k": 8}, {"temperature": 1.0}], False, 8),
        ([{"temperature": 1.0, "top_k": 9, "top_p": 0.5}], False, 16),
        ([{"temperature": 1.0, "top_k": 9}, {"temperature": 1.0, "top_p": 0.5}], False, 0),
        ([{"temperature": 1.0, "top_k": -1, "top_p": 0.5}], False, 0),
        ([{"temperature": 1.0, "top_k": 5}, {"top_p": 0.5}, {"top_k": 40}], False, 8),
    ],
)
def test_greedy_and_top_k_max(params: list[dict[str, Any]], greedy: bool, top_k_max: int) -> None:
    new = [one(row, **p) for row, p in enumerate(params, 1)]
    key = pack(new, [True] * len(new), ShapePolicy()).key
    assert (key.greedy, key.top_k_max) == (greedy, top_k_max)
    compiled = pack(new, [True] * len(new)).key
    assert (compiled.greedy, compiled.top_k_max) == (greedy, 1 if greedy else 0)


def test_rows_that_draw_nothing_do_not_count() -> None:
    key = pack([one(1, temperature=1.0, top_k=40), one(2)], [False, True], ShapePolicy()).key
    assert (key.greedy, key.top_k_max, key.logits) == (True, 1, 1)


def test_a_step_without_draws_has_one_row_of_padding() -> None:
    x = pack([one()], [False], ShapePolicy())
    assert x.key.logits == 1
    assert (x.logit_rows.tolist(), x.output_rows.tolist(), x.counter.tolist()) == ([0], [0], [0])


def test_a_row_taken_over_forgets_the_longer_table_before() -> None:
    rows = Rows(NUM_ROWS + 1, 8, 1)
    packer = make(rows)
    for new in (one(1, ids=20, pages=5), one(1, ids=3, pages=1)):
        plan = StepPlan([new], [1], [0], [len(new.token_ids)], [True], [], [], [])
        rows.apply(plan)
        x = packer.pack(plan)
    assert x.block_tables[0].tolist() == [[5, 0]]


def test_tables_narrower_than_the_bucket_are_padded() -> None:
    """Five pages at most, and the device takes two or eight."""
    rows = Rows(NUM_ROWS + 1, 5, 1)
    plan = StepPlan([one(1, ids=18, pages=5)], [1], [0], [18], [True], [], [], [])
    rows.apply(plan)
    x = make(rows, max_blocks=5).pack(plan)
    assert x.block_tables[0].tolist() == [[5, 6, 7, 8, 9, 0, 0, 0]]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tokens": 49}, "49 tokens in a step: the device takes at most 48"),
        ({"max_seqs": 9}, "9 sequences in a step: the device takes at most 8"),
        ({"max_blocks": 9}, "9 blocks in a step: the device takes at most 8"),
    ],
)
def test_limits_beyond_the_largest_bucket_are_refused_at_once(limits: dict[str, int], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        make(Rows(NUM_ROWS + 1, 8, 1), **limits)


def test_a_step_beyond_the_largest_bucket_is_refused() -> None:
    new = [one(row, ids=16, pages=4) for row in range(1, 5)]
    with pytest.raises(DeviceError, match="64 tokens in a step: the device takes at most 48"):
        pack(new, [True] * 4)


def test_inputs_of_one_shape_stay_where_they_are() -> None:
    rows = Rows(NUM_ROWS + 1, 8, 1)
    packer = make(rows)
    plan = StepPlan([one()], [1], [0], [6], [True], [], [], [])
    rows.apply(plan)
    first, second = packer.pack(plan), packer.pack(plan)
    assert first.key == second.key
    assert first.top_p.data_ptr() == second.top_p.data_ptr()
    assert first.block_tables[0].data_ptr() == second.block_tables[0].data_ptr()
