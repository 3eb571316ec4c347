"""The examination of attn_plan and attn_paged: scenes, what is expected of them, and kernels that pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.case import Case
from conformance.draw import Draw
from conformance.exam import examine, pairs
from conformance.judge import Expected, judge
from conformance.kernels.attention import AttnPagedExam, AttnPlanExam
from conformance.kernels.attention_cases import cases
from conformance.kernels.attention_expect import attend, expected
from conformance.kernels.attention_inputs import make_scene, sizes_of
from conformance.kernels.attention_relations import same_shapes
from conformance.kernels.attention_scene import EXTRA_PAGES, Scene, lay_pages
from conformance.target import Bench, Target, host_target, open_target
from core.kernels.bind import REFERENCE
from core.plugin.facts import Need, Support
from tests.conformance.examined import SEED, failures
from tests.plugins import install_hostile

SMALL = {"dtype": "float32", "heads": (4, 2), "d": 16, "page": 4, "queries": (1, 5, 3), "lens": (9, 5, 12)}


def scene_of(family: str = "normal", **more: object) -> Scene:
    return make_scene(Case("attn_paged", family, {**SMALL, **more}), Draw(b"scene"))


def bench_of(scene: Scene, target: Target, provider: str = REFERENCE) -> Bench:
    return Bench(target, "attn_paged", provider, Need(page_tokens=scene.page))


# Scenes


def test_sequences_have_pages_of_their_own() -> None:
    pages = lay_pages(Draw(b"pages"), (1, 5, 0), (9, 5, 0), 4)
    held = pages.table[pages.table > 0].tolist()
    assert sorted(held) == sorted(set(held))
    assert (pages.table > 0).sum(1).tolist() == [3, 2, 0]
    assert pages.table.shape == (3, 3 + EXTRA_PAGES)
    assert pages.slots.tolist() == [
        pages.table[s, at // 4] * 4 + at % 4 for s, at in zip(pages.owner, pages.position, strict=True)
    ]
    assert max(held) < pages.num_pages


def test_what_lies_before_a_window_is_given_back() -> None:
    pages = lay_pages(Draw(b"pages"), (1, 5), (30, 30), 4, window=6)
    assert (pages.table > 0).argmax(1).tolist() == [24 // 4, 20 // 4]
    assert pages.position[pages.owner == 1].tolist() == list(range(20, 30))


def test_shared_and_aliased_pages() -> None:
    shared = lay_pages(Draw(b"pages"), (1, 5, 1), (13, 12, 3), 4, shared=2)
    assert shared.table[0, :2].tolist() != [0, 0]
    assert shared.table[1, :1].tolist() == shared.table[0, :1].tolist()
    assert shared.table[1, 1] != shared.table[0, 1]  # its own tokens begin there
    assert len(set(shared.slots.tolist())) == len(shared.slots)
    aliased = lay_pages(Draw(b"pages"), (1,), (12,), 4, aliased=True)
    assert aliased.table[0, 0] == aliased.table[0, 1] != aliased.table[0, 2]
    assert len(aliased.slots) == 8


def test_padding_and_host_lengths() -> None:
    scene = scene_of(pads=(3, 2))
    assert (len(scene.q), scene.table.shape[0], scene.starts) == (12, 5, (0, 1, 6, 9, 9, 9))
    assert scene.host().kv_lens.tolist() == [9, 5, 12, 0, 0]
    bounds = scene.host(exact=False)
    assert not bounds.exact
    assert (bounds.kv_lens[:3] > [9, 5, 12]).all()
    assert bounds.query_lens[3:].tolist() == [0, 0]


def test_random_sizes_are_within_what_is_needed() -> None:
    case = next(case for case in cases() if case.family == "random")
    need = AttnPagedExam().need(case)
    drawn = [sizes_of(case, Draw(bytes([i]))) for i in range(60)]
    assert len({sizes.num_tokens for sizes in drawn}) > 30
    assert need.max_tokens is not None
    assert need.max_seqs is not None
    assert max(sizes.num_tokens + sizes.pads[0] for sizes in drawn) <= need.max_tokens
    assert max(len(sizes.kv_lens) + sizes.pads[1] for sizes in drawn) <= need.max_seqs


def test_names_are_unique() -> None:
    names = [case.name for exam in (AttnPagedExam(), AttnPlanExam()) for case in exam.cases()]
    assert len(names) == len(set(names)) > 300


# What is expected


@pytest.mark.parametrize("window", [None, 4])
def test_a_selector_gives_halves_of_two_values(window: int | None) -> None:
    scene = scene_of("selector", dtype="bfloat16", window=window)
    got = attend(scene, bench_of(scene, host_target()))
    o, _ = expected(scene, got["stored_k"], got["stored_v"], exactly=True)
    assert o.bits is not None
    assert o.bits.equal(got["o"])
    assert ((o.bits >= 16) & (o.bits < 32)).all()
    last = next(i for i in range(len(scene.slots)) if scene.slots[i] == scene.table[0, 8 // 4] * 4)
    own, halves = scene.v[last].repeat_interleave(2, 0), o.bits[0]
    assert (2 * halves - own).round().equal(2 * halves - own), "the last key that the token sees is one of the two"


def test_cancellation_has_one_answer() -> None:
    scene = scene_of("cancellation", dtype="float16", queries=(1,), lens=(64,))
    o, _ = expected(scene, *stored_of(scene), exactly=True)
    assert o.bits is not None
    assert o.bits.equal(o.bits.round())
    assert ((o.bits >= 4) & (o.bits < 12)).all()


def stored_of(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    got = attend(scene, bench_of(scene, host_target()))
    return got["stored_k"], got["stored_v"]


def test_where_a_device_rounds_what_it_stores_bits_are_not_asked_for() -> None:
    scene = scene_of("selector", dtype="bfloat16")
    k, v = stored_of(scene)
    v = v.clone()
    v[0, 0, 0] *= 1.01
    o, _ = expected(scene, k, v, exactly=True)
    assert o.bits is None
    assert not o.rms


def test_nothing_but_zero_is_taken_from_padding() -> None:
    scene = scene_of(pads=(2, 0), lse=True)
    o, lse = expected(scene, *stored_of(scene), exactly=False)
    assert o.bound is not None
    assert lse.value is not None
    assert (o.bound[-2:] == 0).all()
    assert np.isneginf(lse.value[-2:]).all()
    got = torch.from_numpy(o.value).float()
    assert all(f.ok for f in judge("o", o, got))
    got[-1, 0, 0] = 1e-30
    assert not judge("o", o, got)[0].ok


def test_noise_is_added_to_what_rows_and_means_may_be_off() -> None:
    value = np.ones((2, 2048))
    plain = Expected(value=value, bound=value, dtype="bfloat16")
    noisy = replace(plain, noise=np.full(2, 2.0**-7))
    got, eager = torch.full((2, 2048), 1 + 2.0**-7).bfloat16(), torch.ones(2, 2048)
    ratios = [{f.check: f.ratio for f in judge("o", e, got, eager)} for e in (plain, noisy)]
    u = 2.0**-8
    assert ratios[0]["B"] == pytest.approx(2 * u / (0.5 * u) / 2)
    assert ratios[1]["B"] == pytest.approx(2 * u / np.hypot(0.5 * u, 2 * u) / 2)
    assert ratios[0]["C"] == pytest.approx(20)
    assert ratios[1]["C"] == pytest.approx(2 * u / (0.1 * u + 5 * 2 * u / np.sqrt(2)))


# Plans


def test_shapes_of_a_plan_that_may_be_captured() -> None:
    scene = scene_of(pads=(4, 2))
    assert all(f.ok for f in same_shapes(scene, bench_of(scene, host_target())))
    native = open_target("cpu")
    assert not any(f.ok for f in same_shapes(scene, bench_of(scene, native, "cpu")))


def test_claims_follow_from_what_is_supported() -> None:
    support = Support(
        dtypes=frozenset({"bfloat16"}), head_sizes=frozenset({72, 576}), page_sizes=frozenset({64}), max_seqs=999
    )
    claimed = list(AttnPagedExam().claims(support))
    extremes = [case for case in claimed if case.family == "claim"]
    assert {case["d"] for case in extremes} == {72, 576}
    assert {case["page"] for case in extremes} == {64}
    assert {case["dtype"] for case in extremes} == {"bfloat16"}
    assert max(AttnPagedExam().need(case).max_seqs or 0 for case in claimed) == 999
    own = [case for case in claimed if support.refuses(AttnPagedExam().need(case)) is None]
    assert {case.family for case in cases()} - {case.family for case in own} == {"batch_invariant", "chunk_invariant"}
    assert list(AttnPlanExam().claims(Support(graph_safe=False))) == []


def test_a_device_with_other_sizes_is_asked_as_much() -> None:
    """One page size and one head size, of its own; a selector needs a dimension for each query."""
    support = Support(head_sizes=frozenset({24}), page_sizes=frozenset({24}), batch_invariant=True)
    taken = [case for case in AttnPagedExam().claims(support) if support.refuses(AttnPagedExam().need(case)) is None]
    assert {case.family for case in cases()} - {case.family for case in taken} == set()
    for case in taken:
        if case.family == "selector":
            make_scene(case, Draw(b"own"))


# Devices


@pytest.mark.parametrize("provider", ["cpu-native", "cpu", pytest.param("cpu-invariant", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("row", ["attn_plan", "attn_paged"])
def test_the_cpu_passes(row: str, provider: str) -> None:
    assert failures(row, open_target("cpu"), provider) == []


def test_our_own_eager_kernels_pass() -> None:
    assert failures("attn_paged", host_target(), REFERENCE) == []


def test_a_device_with_quantised_pages_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_hostile(monkeypatch, tmp_path)
    exam, target = AttnPagedExam(), open_target("hostile")
    results = [
        examine(exam, case, target, provider, SEED)[0]
        for case, provider in pairs(exam, target)
        if case["page"] == 64 and case["dtype"] == "bfloat16"
    ]
    assert [r for r in results if r.status != "pass"] == []
    assert len(results) > 5
