"""Who is bound where, and why: first fit, overrides, the KV bundle, composed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from core.errors import ConfigError, PluginError
from core.kernels.bind import REFERENCE, KernelSet
from core.kernels.row import Implementation
from core.kernels.table import KV_BUNDLE, TABLE
from core.plan import Binding
from core.plugin import Need, Support

NEED = Need(dtype="float32", head_size=64, page_tokens=16)
LAYOUT = ("kv_layout", "kv_write", "kv_gather")


def native(row: str, provider: str = "acme", **support: Any) -> Implementation:
    def kernel(*args: object, **kwargs: object) -> str:
        return f"{provider}.{row}"

    return Implementation(row, kernel, provider, Support(**support))


def bundle(provider: str = "acme", more: Iterable[str] = (), **support: Any) -> list[Implementation]:
    return [native(row, provider, **support) for row in (*LAYOUT, *more)]


def bind(implementations: Iterable[Implementation], row: str, need: Need = NEED, **overrides: str) -> Binding:
    kernels = KernelSet(implementations, overrides, NEED)
    kernels.bind(row, need)
    [binding] = kernels.bindings()
    return binding


def origin(kernel: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(kernel, partial):
        kernel = kernel.func
    return kernel


# One row


def test_the_first_that_fits_wins() -> None:
    some = [native("linear", "one", max_n=8), native("linear", "two"), native("linear", "three")]
    assert bind(some, "linear", Need(n=8))[:3] == ("linear", "one", "native")
    assert bind(some, "linear", Need(n=9))[:3] == ("linear", "two", "native")
    assert KernelSet(some, {}, NEED).bind("linear", Need(n=9))() == "two.linear"


def test_an_adopted_reference_is_said_to_be_one_and_counts_as_native() -> None:
    some = [replace(native(row), adopted=True) for row in ("rms_norm", *LAYOUT)]
    assert bind(some, "rms_norm")[:3] == ("rms_norm", "acme", "the reference, compiled")
    assert bind(some, "kv_write")[:3] == ("kv_write", "acme", "the reference, compiled")
    kernels = KernelSet(some, {}, NEED)
    kernels.bind("rms_norm", NEED)
    assert kernels.missing_native() == []


def test_every_refusal_is_kept() -> None:
    some = [native("linear", "one", max_n=8), native("linear", "two", dtypes=frozenset({"float16", "bfloat16"}))]
    binding = bind(some, "linear", Need(n=9, dtype="float32"))
    assert binding.provider == "reference"
    assert binding.reason == "one: n 9 is over 8; two: dtype float32 is not among bfloat16, float16"
    assert bind([], "linear")[1:3] == ("reference", "no implementation")


def test_the_limits_of_a_step_hold_for_every_kernel() -> None:
    """Layers do not say them: a kernel that claims fewer tokens than a step may have is not bound."""
    some = [native("linear", "one", max_tokens=1024), native("rope", "one", max_seqs=8)]
    kernels = KernelSet(some, {}, Need(dtype="float32", max_tokens=2048, max_seqs=8))
    kernels.bind("linear", Need(dtype="float32", n=8))
    kernels.bind("rope", Need(dtype="float32"))
    assert [b[:3] for b in kernels.bindings()] == [
        ("linear", "reference", "one: tokens 2048 is over 1024"),
        ("rope", "one", "native"),
    ]


@pytest.mark.parametrize(
    ("support", "need", "refusal"),
    [
        ({"dtypes": frozenset({"float16"})}, {"dtype": "float32"}, "dtype float32 is not among float16"),
        ({"head_sizes": frozenset({64, 128})}, {"head_size": 96}, "head_size 96 is not among 128, 64"),
        ({"page_sizes": frozenset({16})}, {"page_tokens": 64}, "page_tokens 64 is not among 16"),
        ({"schemes": frozenset()}, {"scheme": "dense"}, "scheme dense is not among "),
        ({"max_n": 8}, {"n": 9}, "n 9 is over 8"),
        ({"max_k": 8}, {"k": 9}, "k 9 is over 8"),
        ({"max_seqs": 8}, {"max_seqs": 9}, "sequences 9 is over 8"),
        ({"max_tokens": 8}, {"max_tokens": 9}, "tokens 9 is over 8"),
    ],
)
def test_what_an_implementation_does_not_take(support: dict[str, Any], need: dict[str, Any], refusal: str) -> None:
    assert Support(**support).refuses(Need(**need)) == refusal
    assert Support(**support).refuses(Need()) is None
    assert Support().refuses(Need(**need)) is None


def test_uses_are_counted_by_provider_and_reason() -> None:
    kernels = KernelSet([native("linear", max_n=8)], {}, NEED)
    for n in (1, 8, 9, 8):
        kernels.bind("linear", Need(n=n))
    assert kernels.bindings() == (
        Binding("linear", "acme", "native", 3),
        Binding("linear", "reference", "acme: n 9 is over 8", 1),
    )


def test_what_is_fixed_is_passed_on_and_the_tap_sees_every_kernel() -> None:
    seen = []

    def tap(row: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> Any:
            seen.append(row)
            return kernel(*args, **kwargs)

        return call

    kernel = Implementation("rms_norm", lambda x, *, eps: (x, eps), "acme")
    kernels = KernelSet([kernel], {}, NEED, tap)
    assert kernels.bind("rms_norm", eps=1e-5)(7) == (7, 1e-5)
    assert seen == ["rms_norm"]


def test_a_kernel_of_no_row_is_refused() -> None:
    with pytest.raises(PluginError, match="acme supplies warp: there is no such kernel"):
        KernelSet([native("warp")], {}, NEED)


def test_missing_native() -> None:
    """Production rows on their reference, whatever the reason; other rows do not count."""
    kernels = KernelSet([native("linear"), native("rope", head_sizes=frozenset({128}))], {"act_mul": "reference"}, NEED)
    for row in ("linear", "rope", "act_mul", "embed", "attn_paged"):
        kernels.bind(row, NEED)
    assert [(b.row, b.reason) for b in kernels.missing_native()] == [
        ("act_mul", "asked for"),
        ("attn_paged", "no implementation"),
        ("rope", "acme: head_size 64 is not among 128"),
    ]


# Overrides


def test_the_reference_on_request() -> None:
    assert bind([native("linear")], "linear", linear="reference")[1:3] == ("reference", "asked for")


def test_a_provider_on_request() -> None:
    some = [native("linear", "one"), native("linear", "two")]
    assert bind(some, "linear", linear="two")[1:3] == ("two", "asked for")
    assert bind(some, "linear", rope="reference")[1:3] == ("one", "native")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"warp": "acme"}, "--kernel warp=acme: there is no such kernel"),
        ({"linear": "nobody"}, "--kernel linear=nobody: choose among reference, one, two"),
        ({"rope": "one"}, "--kernel rope=one: choose among reference"),
        ({"pack_weight": "one"}, "--kernel pack_weight=one: only linear reads it; ask for linear=one"),
    ],
)
def test_overrides_that_cannot_be(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KernelSet([native("linear", "one"), native("linear", "two")], overrides, NEED)


def test_a_provider_on_request_that_refuses() -> None:
    some = [native("linear", "one", max_n=8), native("linear", "two")]
    with pytest.raises(ConfigError, match="--kernel linear=one: one: n 9 is over 8; remove it to use what fits"):
        bind(some, "linear", Need(n=9), linear="one")


@pytest.mark.parametrize(
    ("need", "overrides", "provider"),
    [
        (Need(scheme="dense"), {}, "one"),
        (Need(scheme="q4_1"), {}, "two"),
        (Need(scheme="dense"), {"linear": "two"}, "two"),
        (Need(scheme="q4_1", n=9), {}, REFERENCE),
        (Need(scheme="dense", n=9), {}, REFERENCE),
        (Need(scheme="q4_1"), {"linear": REFERENCE}, REFERENCE),
    ],
    ids=str,
)
def test_a_weight_is_packed_by_whoever_reads_it(need: Need, overrides: dict[str, str], provider: str) -> None:
    dense = frozenset({"dense"})
    some = [native("linear", "one", schemes=dense, max_n=8), native("linear", "two", max_n=8)]
    some += [native("pack_weight", "two"), native("pack_weight", "one"), native("pack_weight", "three")]
    assert bind(some, "pack_weight", need, **overrides).provider == provider


def test_who_is_native_is_known_before_anything_is_bound() -> None:
    """By scheme, by the provider that was asked for, and by the limits of a step."""
    some = [native("linear", "one", schemes=frozenset({"dense"})), native("linear", "two", max_tokens=8)]
    q4_1 = Need(scheme="q4_1")
    kernels = KernelSet(some, {}, NEED)
    assert kernels.has_native("linear", q4_1)
    assert not kernels.has_native("rope", Need())
    assert kernels.bindings() == ()
    assert not KernelSet(some, {}, replace(NEED, max_tokens=9)).has_native("linear", q4_1)
    for provider, schemes in {"one": ["dense"], "two": ["dense", "q4_1"], REFERENCE: []}.items():
        asked = KernelSet(some, {"linear": provider}, NEED)
        assert [s for s in ("dense", "q4_1") if asked.has_native("linear", Need(scheme=s))] == schemes


def test_a_reader_that_packs_nothing_takes_what_the_reference_packs() -> None:
    some = [native("linear", "one"), native("pack_weight", "two")]
    assert bind(some, "pack_weight")[1:3] == (REFERENCE, "for linear, native")


# Composed rows


def test_a_composed_row_uses_bound_parts() -> None:
    kernels = KernelSet([native("rms_norm", max_k=64)], {}, NEED)
    kernel = kernels.bind("add_rms_norm", Need(k=64), eps=1e-5)
    assert origin(kernel) is TABLE["add_rms_norm"].reference
    parts = kernel.keywords
    assert parts["rms_norm"]() == "acme.rms_norm"
    assert parts["scale_add"] is TABLE["scale_add"].reference
    # The part is chosen for the same need.
    wide = kernels.bind("add_rms_norm", Need(k=65), eps=1e-5)
    assert wide.keywords["rms_norm"] is TABLE["rms_norm"].reference
    # Only the row that was asked for is counted.
    assert {b.row for b in kernels.bindings()} == {"add_rms_norm"}


def test_a_fused_kernel_needs_no_parts() -> None:
    kernel = KernelSet([native("add_rms_norm"), native("rms_norm")], {}, NEED).bind("add_rms_norm")
    assert kernel() == "acme.add_rms_norm"


def test_parts_follow_overrides() -> None:
    kernel = KernelSet([native("rms_norm")], {"rms_norm": "reference"}, NEED).bind("add_rms_norm")
    assert kernel.keywords["rms_norm"] is TABLE["rms_norm"].reference


# The KV bundle


def test_a_whole_bundle_is_native() -> None:
    kernels = KernelSet(bundle(more=("attn_plan", "attn_paged", "kv_copy")), {}, NEED)
    for row in (*LAYOUT, "attn_plan", "attn_paged", "kv_copy"):
        assert kernels.bind(row, NEED)() == f"acme.{row}"
    assert {b[1:3] for b in kernels.bindings()} == {("acme", "native")}


def test_rows_that_a_provider_leaves_out_are_composed_from_its_parts() -> None:
    kernels = KernelSet(bundle(), {}, NEED)
    for row, part in (("attn_paged", "kv_gather"), ("kv_export", "kv_gather"), ("kv_import", "kv_write")):
        kernel = kernels.bind(row, NEED)
        assert origin(kernel) is TABLE[row].reference
        assert kernel.keywords[part]() == f"acme.{part}"
    assert {b[1:3] for b in kernels.bindings()} == {("reference", "composed from parts of acme")}


def test_without_a_bundle_all_of_it_is_the_reference() -> None:
    kernels = KernelSet([], {}, NEED)
    assert kernels.bind("kv_write", NEED) is TABLE["kv_write"].reference
    assert kernels.bind("attn_paged", NEED).keywords["kv_gather"] is TABLE["kv_gather"].reference
    assert kernels.kv_page_sizes() is None


def test_a_bundle_is_taken_or_left_as_a_whole() -> None:
    """One of its kernels refuses, so none is used; the next provider's is."""
    some = [*bundle("one"), native("attn_paged", "one", head_sizes=frozenset({128})), *bundle("two")]
    assert bind(some, "kv_write")[1:3] == ("two", "native")
    binding = bind(some[:4], "kv_write")
    assert binding[1:3] == ("reference", "one: head_size 64 is not among 128")


def test_of_several_for_a_row_one_must_take_it() -> None:
    attention = [native("attn_paged", head_sizes=frozenset({128})), native("attn_paged", page_sizes=frozenset({16}))]
    some = [*bundle(), *attention]
    assert bind(some, "attn_paged")[1:3] == ("acme", "native")
    assert KernelSet(some, {}, NEED).kv_page_sizes() is None
    some[-2] = native("attn_paged", page_sizes=frozenset({64}))
    assert KernelSet(some, {}, NEED).kv_page_sizes() == {16, 64}


def test_a_plan_is_never_read_by_another_provider() -> None:
    """Another group of the model has heads that the attention kernel refuses and the planner would take."""
    some = [*bundle(more=("attn_plan",)), native("attn_paged", head_sizes=frozenset({64}))]
    kernels = KernelSet(some, {}, NEED)
    other = Need(dtype="float32", head_size=128, page_tokens=16)
    for row in ("attn_plan", "attn_paged"):
        assert kernels.bind(row, NEED)() == f"acme.{row}"
        assert origin(kernels.bind(row, other)) is TABLE[row].reference
    assert "composed from parts of acme, head_size 128 is not among 64" in {b.reason for b in kernels.bindings()}


def test_a_layout_that_refuses_what_it_took_is_a_broken_plugin() -> None:
    kernels = KernelSet(bundle(head_sizes=frozenset({64})), {}, NEED)
    with pytest.raises(PluginError, match="acme refuses kv_write for a need that its kv_layout takes"):
        kernels.bind("kv_write", Need(head_size=128))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("kv_layout",), "acme supplies kv_layout without kv_write"),
        (("kv_layout", "kv_write"), "acme supplies kv_layout without kv_gather"),
        (("attn_paged",), "acme supplies attn_paged without kv_layout"),
        (("kv_write", "kv_gather"), "acme supplies kv_gather without kv_layout"),
        (("kv_copy",), "acme supplies kv_copy without kv_layout"),
        ((*LAYOUT, "attn_plan"), "acme supplies attn_plan without attn_paged"),
    ],
)
def test_incomplete_bundles_are_refused(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        KernelSet([native(row) for row in rows], {}, NEED)


@pytest.mark.parametrize("row", ["attn_paged", "kv_copy", "kv_write"])
def test_a_bundle_is_chosen_by_any_of_its_rows(row: str) -> None:
    some = [*bundle("one", ("attn_paged", "kv_copy")), *bundle("two", ("attn_paged", "kv_copy"))]
    kernels = KernelSet(some, {row: "two"}, NEED)
    assert {kernels.bind(name, NEED)() for name in LAYOUT} == {f"two.{name}" for name in LAYOUT}
    kernels.bind(row, NEED)
    assert (row, "two", "asked for") in {b[:3] for b in kernels.bindings()}


@pytest.mark.parametrize(
    "overrides",
    [
        {"kv_layout": "one", "kv_write": "two"},
        {"kv_layout": "reference", "attn_paged": "one"},
        {"kv_gather": "one", "attn_paged": "two"},
        {"kv_layout": "one", "kv_gather": "reference"},
    ],
)
def test_a_mixture_is_refused(overrides: dict[str, str]) -> None:
    some = [*bundle("one", ("attn_paged",)), *bundle("two", ("attn_paged",))]
    with pytest.raises(
        ConfigError, match=r"are of one bundle and come from one provider, not from \w+ and \w+"
    ) as error:
        KernelSet(some, overrides, NEED)
    assert all(word in str(error.value) for word in (*overrides, *overrides.values()))


def test_reference_attention_over_a_native_layout_on_request() -> None:
    kernels = KernelSet(bundle(more=("attn_plan", "attn_paged")), {"attn_paged": "reference"}, NEED)
    assert kernels.bind("attn_plan", NEED) is TABLE["attn_plan"].reference, "the plan follows"
    assert kernels.bind("attn_paged", NEED).keywords["kv_gather"]() == "acme.kv_gather"
    assert kernels.bind("kv_write", NEED)() == "acme.kv_write"
    assert ("attn_paged", "reference", "asked for") in {b[:3] for b in kernels.bindings()}


@pytest.mark.parametrize("overrides", [{"attn_plan": "reference"}, {"attn_plan": "acme", "attn_paged": "reference"}])
def test_a_plan_without_its_attention_is_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a plan is read by the attn_paged it was made for: ask for attn_paged="):
        KernelSet(bundle(more=("attn_plan", "attn_paged")), overrides, NEED)


def test_the_reference_bundle_on_request() -> None:
    kernels = KernelSet(bundle(more=("attn_paged",)), {"kv_layout": "reference"}, NEED)
    assert kernels.bind("kv_write", NEED) is TABLE["kv_write"].reference
    assert kernels.bind("attn_paged", NEED).keywords["kv_gather"] is TABLE["kv_gather"].reference
    assert {b[1:3] for b in kernels.bindings()} == {("reference", "asked for")}


def test_a_bundle_on_request_that_refuses() -> None:
    some = bundle(page_sizes=frozenset({64}))
    with pytest.raises(ConfigError, match="--kernel kv_layout=acme: acme: page_tokens 16 is not among 64; remove it"):
        KernelSet(some, {"kv_layout": "acme"}, NEED)
    kernels = KernelSet([*bundle(), native("attn_paged", head_sizes=frozenset({64}))], {"attn_paged": "acme"}, NEED)
    with pytest.raises(ConfigError, match="--kernel attn_paged=acme: acme: head_size 128 is not among 64; remove it"):
        kernels.bind("attn_paged", Need(head_size=128))


def test_page_sizes_are_what_all_parts_take() -> None:
    some = [*bundle(page_sizes=frozenset({16, 32, 64})), native("attn_paged", page_sizes=frozenset({64, 16}))]
    assert KernelSet(some, {}, NEED).kv_page_sizes() == {16, 64}
    none = [*bundle(page_sizes=frozenset({16})), native("attn_paged", page_sizes=frozenset({64}))]
    with pytest.raises(PluginError, match="the KV kernels of acme have no page size in common"):
        KernelSet(none, {}, Need()).kv_page_sizes()
    assert set(KV_BUNDLE) >= {*LAYOUT, "attn_plan", "attn_paged", "kv_copy", "kv_export", "kv_import"}
