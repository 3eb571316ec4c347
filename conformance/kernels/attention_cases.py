"""What attention is asked: the lists of cases. Legend as in `conformance.kernels.attention_scene`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from conformance.case import Case, Value
from core.plugin.facts import DTYPES, Support

ROW = "attn_paged"
PAGE, SIZE = 16, 64
"""What most cases have; an implementation that does not take them gets its own in their place, as claims."""

MIXED: dict[str, Value] = {"queries": (1, 30, 1, 17, 4, 1), "lens": (40, 30, 16, 50, 21, 33)}
"""Decode, whole prompts, chunks of prompts and drafts to verify, in one step."""

_HEADS = ((1, 1), (2, 2), (9, 3), (7, 1), (8, 1), (8, 2), (14, 2), (16, 2), (32, 8), (32, 2))
_SIZES = (16, 32, 80, 96, 128, 192, 256)
_PAGES = (8, 32, 64, 128)


def _case(family: str, dtype: str, **params: Value) -> Case:
    """With the usual sizes where `params` says nothing."""
    usual: dict[str, Value] = {"dtype": dtype, "heads": (4, 2), "d": SIZE, "page": PAGE}
    return Case(ROW, family, {**usual, **params})


def cases() -> Iterator[Case]:
    """Every case that any device may be asked. Dtypes take turns to be first, so that the first cases have all."""
    groups = (_relations, _values, _shapes, _lengths, _windows, _tables, _exact, _random)
    for number, group in enumerate(groups):
        first = number % len(DTYPES)
        for dtype in DTYPES[first:] + DTYPES[:first]:
            yield from group(dtype)


def _random(dtype: str) -> Iterator[Case]:
    for number, (size, page) in enumerate(((80, 32), (64, 16), (128, 16), (32, 8), (96, 64), (64, 16))):
        yield Case.of(ROW, "random", dtype=dtype, d=size, page=page, number=number)


def _shapes(dtype: str) -> Iterator[Case]:
    yield _case("normal", dtype, **MIXED, pads=(5, 2))
    yield _case("normal", dtype, **MIXED, lse=True)
    for heads in _HEADS:
        yield _case("normal", dtype, heads=heads, **MIXED)
    for size in _SIZES:
        yield _case("normal", dtype, d=size, **MIXED)
    for page in _PAGES:
        yield _case("normal", dtype, page=page, **MIXED, lse=page == 64)
    yield _case("strided", dtype, **MIXED)


def _lengths(dtype: str) -> Iterator[Case]:
    """At the edges of pages: decode, whole prompts, chunks that start anywhere, and sequences alone in a step."""
    for page, edges in ((PAGE, (1, 15, 16, 17, 31, 32, 33)), (64, (63, 64, 65, 129))):
        yield _case("pages", dtype, page=page, queries=(1,) * len(edges), lens=edges)
        yield _case("pages", dtype, page=page, queries=edges, lens=edges)
    for n in (1, PAGE, PAGE + 1, 3 * PAGE):
        yield _case("alone", dtype, queries=(1,), lens=(n,))
        yield _case("alone", dtype, queries=(n,), lens=(n,), lse=n == PAGE)
    yield _case("chunks", dtype, d=80, queries=(5, 16, 17, 33, 2), lens=(20, 32, 33, 100, 130))
    yield _case("chunks", dtype, queries=(1, 15, 32, 48, 64), lens=(17, 31, 64, 49, 65))
    yield _case("many", dtype, heads=(4, 1), seqs=64, longest=90)
    yield _case("many", dtype, heads=(4, 4), d=32, seqs=33, longest=300, pads=(7, 7), lse=True)
    yield _case("padding", dtype, queries=(0, 5, 0, 1, 1), lens=(0, 5, 0, 9, 2), pads=(6, 3), lse=True)
    yield _case("padding", dtype, queries=(0, 5, 0, 1, 1), lens=(0, 5, 0, 9, 2), pads=(6, 3))
    yield _case("padding", dtype, queries=(0,), lens=(0,), pads=(4, 2), lse=True)
    for size in (SIZE, 128):
        yield _case("decode", dtype, d=size, queries=(1, 1, 1), lens=(300, 20, 33), lse=True)
    yield _case("long", dtype, heads=(4, 1), queries=(1, 1), lens=(4096, 700), lse=True)
    yield _case("long", dtype, heads=(4, 1), queries=(1, 3), lens=(4096, 4099))
    yield _case("long", dtype, heads=(2, 1), queries=(70,), lens=(2100,), lse=True)


def _windows(dtype: str) -> Iterator[Case]:
    """Around a window's length; windows that cross pages, with the pages before them given back."""
    around: dict[str, Value] = {"queries": (1,) * 6, "lens": (15, 16, 17, 31, 33, 100)}
    chunks: dict[str, Value] = {"queries": (17, 1, 9, 40, 5), "lens": (17, 100, 40, 40, 64)}
    for window in (1, PAGE - 1, PAGE, PAGE + 1, 40):
        yield _case("window", dtype, **around, window=window, lse=window == PAGE)
        yield _case("window", dtype, **chunks, window=window)
    yield _case("window", dtype, **chunks, window=20, page=64)
    yield _case("window", dtype, **chunks, window=50, softcap=20.0, lse=True)
    yield _case("window", dtype, queries=(1, 33), lens=(700, 650), window=300)
    yield _case("window", dtype, **MIXED, window=1 << 20)


def _values(dtype: str) -> Iterator[Case]:
    for family in ("peaky", "huge", "equal", "negative", "large", "small", "ones", "positive"):
        yield _case(family, dtype, queries=(1, 30, 9), lens=(300, 30, 70))
        yield _case(family, dtype, queries=(1, 30, 9), lens=(300, 30, 70), lse=True)
    yield _case("peaky", dtype, **MIXED, d=80)  # its scale is no power of two
    for scale in (1.0, 0.01):
        yield _case("scale", dtype, **MIXED, scale=scale)
    for cap in (2.0, 50.0):
        yield _case("softcap", dtype, **MIXED, softcap=cap)
        yield _case("softcap", dtype, **MIXED, softcap=cap, scale=1.0, lse=True)


def _tables(dtype: str) -> Iterator[Case]:
    yield _case("shared", dtype, heads=(3, 1), queries=(1, 1, 20, 5), lens=(80, 70, 90, 69), shared=4)
    yield _case("aliased", dtype, queries=(1, 1, 20, 5), lens=(80, 70, 90, 69))


def _exact(dtype: str) -> Iterator[Case]:
    yield _case("selector", dtype, **MIXED)
    yield _case("selector", dtype, **MIXED, page=64, heads=(8, 1))
    yield _case("selector", dtype, queries=(1, 9), lens=(20, 9), heads=(32, 8))
    yield _case("selector", dtype, d=128, heads=(4, 4), queries=(1, 20, 1, 64), lens=(17, 60, 1000, 64))
    for window in (PAGE - 1, PAGE, PAGE + 1):
        yield _case("selector", dtype, **MIXED, window=window)
    yield _case("selector", dtype, queries=(1, 5), lens=(2000, 3001), window=1000, heads=(2, 1))
    yield _case("selector", dtype, queries=(1,), lens=(131072 if dtype == "bfloat16" else 32769,), heads=(1, 1))
    yield _case("cancellation", dtype, queries=(1, 1, 1), lens=(256, 1024, 64))
    yield _case("cancellation", dtype, queries=(1,), lens=(4096,), heads=(2, 1), d=128)


def _relations(dtype: str) -> Iterator[Case]:
    """The first of each has all that is fixed at build at once."""
    for family in ("doubled", "repaged", "reordered", "memory"):
        yield _case(family, dtype, **MIXED, heads=(9, 3), window=20, softcap=2.0, lse=True, pads=(2, 1))
        yield _case(family, dtype, **MIXED)
    if dtype != "float16":
        yield _case("race", dtype, queries=(1, 20, 1), lens=(40, 20, 17), repeats=100)
    for family in ("batch_invariant", "chunk_invariant"):
        yield _case(family, dtype, **MIXED, invariant=True)
        yield _case(family, dtype, queries=(1, 70, 1), lens=(300, 300, 7), invariant=True, lse=True)


def own_sizes(support: Support) -> tuple[int, int]:
    """A page and a head size that an implementation takes: the usual ones, or else those that are closest."""
    pages, sizes = support.page_sizes or {PAGE}, support.head_sizes or {SIZE}
    return min(pages, key=lambda n: abs(n - PAGE)), min(sizes, key=lambda n: abs(n - SIZE))


def in_own_sizes(some: Iterable[Case], support: Support) -> Iterator[Case]:
    """Cases of the usual sizes in those that an implementation takes; none where it takes the usual ones."""
    page, size = own_sizes(support)
    for case in some:
        own = {"page": page if case["page"] == PAGE else case["page"], "d": size if case["d"] == SIZE else case["d"]}
        chosen = case.family != "selector" or max(case["queries"]) <= own["d"]  # each query takes a dimension
        if any(case[name] != value for name, value in own.items()) and chosen:
            yield Case(case.row, case.family, {**case.params, **own})


def claims(support: Support) -> Iterator[Case]:
    """At the extremes of what an implementation says it takes; where it says "anything", at some that are rare."""
    page, size = own_sizes(support)
    short: dict[str, Value] = {"queries": (1, 9, 1), "lens": (20, 9, 33)}
    for dtype in sorted(support.dtypes or DTYPES):
        for other in sorted(support.head_sizes or (8, 40, 512)):
            yield _case("claim", dtype, d=other, page=page, **short)
        for other in sorted(support.page_sizes or (1, 5, 256)):
            edges = (max(1, other - 1), other, other + 1)
            yield _case("claim", dtype, d=size, page=other, **short)
            yield _case("claim", dtype, d=size, page=other, queries=(1, 1, 1), lens=edges)
        one: dict[str, Value] = {"d": size, "page": page, "heads": (1, 1)}
        yield _case("claim", dtype, **one, seqs=support.max_seqs or 257, longest=20)
        num_tokens = support.max_tokens or 600
        yield _case("claim", dtype, **one, queries=(num_tokens,), lens=(num_tokens,), window=64)
    yield from in_own_sizes(cases(), support)


def plan_cases(row: str) -> Iterator[Case]:
    """Steps for `attn_plan`: as above, with what else a plan depends on."""
    for dtype in DTYPES:
        for case in (
            _case("normal", dtype, **MIXED, lse=True),
            _case("padding", dtype, queries=(0, 5, 0, 1, 1), lens=(0, 5, 0, 9, 2), pads=(6, 3)),
            _case("window", dtype, queries=(17, 1, 9, 40, 5), lens=(17, 100, 40, 40, 64), window=PAGE + 1),
            _case("pages", dtype, queries=(1,) * 5, lens=(15, 16, 17, 32, 33)),
            _case("pages", dtype, queries=(63, 64, 65, 128), lens=(63, 64, 65, 128), page=64),
            _case("many", dtype, heads=(1, 1), seqs=64, longest=90, pads=(0, 3)),
            _case("selector", dtype, **MIXED),
            Case.of(row, "random", dtype=dtype, d=64, page=PAGE, number=0),
            Case.of(row, "random", dtype=dtype, d=32, page=64, number=1),
        ):
            yield Case(row, case.family, case.params)


def plan_claims(row: str, support: Support) -> Iterator[Case]:
    """Steps of the same shape with other lengths, where a plan may be captured once and replayed."""
    page, size = own_sizes(support)
    if support.graph_safe:
        for window in (None, 20):
            dtype = min(support.dtypes or DTYPES)
            case = _case("static", dtype, **MIXED, d=size, page=page, window=window, pads=(4, 2))
            yield Case(row, case.family, case.params)
    yield from in_own_sizes(plan_cases(row), support)
