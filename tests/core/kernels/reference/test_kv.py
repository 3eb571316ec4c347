"""The KV pool in its reference layout, against dictionaries of rows."""

from functools import partial

import pytest
import torch

from core.kernels.reference import copy, kv
from core.kernels.reference.kv import KVLayout, Plane

PAGE, HEADS, SIZE, PAGES = 4, 2, 8, 6


def pool(fill=float("nan"), dtype=torch.float32):
    layout = kv.kv_layout(num_kv_heads=HEADS, head_size=SIZE, page_tokens=PAGE, dtype="float32")
    return layout, tuple(torch.full(shape, fill, dtype=dtype) for shape in layout.shapes(PAGES))


def rows(n, seed=0):
    return torch.randn((n, HEADS, SIZE), generator=torch.Generator().manual_seed(seed))


def test_layout_says_what_a_page_takes():
    layout = kv.kv_layout(num_kv_heads=3, head_size=64, page_tokens=16, dtype="bfloat16")
    assert layout.shapes(7) == [(7, 16, 3, 64)] * 2
    assert layout.bytes_per_page == 2 * 16 * 3 * 64 * 2
    assert layout.format_id == "kv-NHD-bfloat16"


def test_shapes_put_pages_where_the_plane_says():
    layout = KVLayout((Plane("int8", (2, 0, 5), 1), Plane("float32", (3, 0), 1)), 1, "x")
    assert layout.shapes(9) == [(2, 9, 5), (3, 9)]


def test_write_touches_its_slots_and_the_null_page_only():
    _, planes = pool()
    k, v = rows(4), rows(4, 1)
    slots = torch.tensor([23, -1, 4, 11], dtype=torch.int32)
    written = kv.kv_write(k, v, planes, slots, page_tokens=PAGE)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(written, planes, strict=True))
    for plane, x in zip(planes, (k, v), strict=True):
        for slot in range(PAGE, PAGES * PAGE):
            stored = plane[slot // PAGE, slot % PAGE]
            where = slots.tolist().index(slot) if slot in slots.tolist() else None
            assert stored.isnan().all() if where is None else stored.equal(x[where])


def test_gather_takes_pages_of_any_shape():
    _, planes = pool()
    every = torch.arange(PAGE, PAGES * PAGE, dtype=torch.int32)
    kv.kv_write(rows(len(every)), rows(len(every), 1), planes, every, page_tokens=PAGE)
    pages = torch.tensor([[5, 1, 2], [3, 3, 1]], dtype=torch.int32)
    k, v = kv.kv_gather(planes, pages)
    assert k.shape == v.shape == (2, 3, PAGE, HEADS, SIZE)
    for i in range(2):
        for j in range(3):
            assert k[i, j].equal(planes[0][pages[i, j]])
            assert v[i, j].equal(planes[1][pages[i, j]])


def test_export_and_import_carry_pages_between_pools():
    sources = [pool()[1] for _ in range(3)]
    every = torch.arange(PAGE, PAGES * PAGE, dtype=torch.int32)
    for i, planes in enumerate(sources):
        kv.kv_write(rows(len(every), i), rows(len(every), i + 9), planes, every, page_tokens=PAGE)
    pages = torch.tensor([4, 1], dtype=torch.int32)
    canonical = kv.kv_export(sources, pages, kv_gather=kv.kv_gather)
    assert canonical.shape == (3, 2, 2, PAGE, HEADS, SIZE)

    targets = [pool()[1] for _ in range(3)]
    landed = torch.tensor([2, 5], dtype=torch.int32)
    imported = kv.kv_import(targets, landed, canonical, kv_write=partial(kv.kv_write))
    for source, target, planes in zip(sources, targets, imported, strict=True):
        for i in range(2):
            assert planes[i] is target[i]
            assert target[i][landed].equal(source[i][pages])
            assert target[i][torch.tensor([1, 3, 4])].isnan().all()


@pytest.mark.parametrize("pages_axis", [0, 1])
def test_copies_read_before_they_write(pages_axis):
    shape = (0, 5) if pages_axis == 0 else (5, 0)
    layout = KVLayout((Plane("float32", shape, pages_axis),), 1, "x")
    plane = torch.arange(30.0).view(layout.shapes(6)[0])
    before = plane.clone()
    source, target = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([2, 1, 5], dtype=torch.int32)
    (copied,) = copy.kv_copy((plane,), source, target, layout=layout)
    assert copied is plane
    for page in range(6):
        from_page = dict(zip(target.tolist(), source.tolist(), strict=True)).get(page, page)
        assert plane.select(pages_axis, page).equal(before.select(pages_axis, from_page))


def test_swap_writes_the_other_pool():
    layout, device = pool(0.0)
    _, host = pool(7.0)
    out = copy.kv_swap(
        host, device, torch.tensor([3], dtype=torch.int32), torch.tensor([1], dtype=torch.int32), layout=layout
    )
    assert all(x is y for x, y in zip(out, host, strict=True))
    assert all(x[3].eq(0).all() and x[[0, 1, 2, 4, 5]].eq(7).all() for x in host)
    assert all(x.eq(0).all() for x in device)


@pytest.mark.parametrize("chosen", [[2, 0, 5], [-1, 0, -1, 3], [-1, -1], [0], [-1, 4], []])
def test_copy_rows_skips_minus_one(chosen):
    target = torch.arange(18.0).view(6, 3)
    values = -torch.arange(1.0, 3 * len(chosen) + 1).view(-1, 3)
    want = target.clone()
    for row, value in zip(chosen, values, strict=True):
        if row >= 0:
            want[row] = value
    out = copy.copy_rows(target, torch.tensor(chosen, dtype=torch.int32), values)
    assert out is target
    assert target.equal(want)
