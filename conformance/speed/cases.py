"""What is timed: cases of the examinations, at the sizes of models that people serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.case import Case, Value

Params = dict[str, Value]

CLASSES = ("prefill", "decode", "gemm", "memory")
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Timed:
    """A case and the class that its speed counts for; `sizes` are the letters of its cost."""

    case: Case
    kind: str
    sizes: dict[str, float]


def timed(dtype: str) -> Iterator[Timed]:
    """Every case that is timed, in one dtype. Sizes are those of models with 135M to 8B parameters."""
    e = _WIDTH[dtype]
    for rows, n, k in ((1, 1536, 576), (1, 2048, 2048), (8, 2048, 2048)):
        yield _linear(dtype, rows, n, k, "decode")
    for rows, n, k in ((512, 1536, 576), (512, 2048, 2048)):
        yield _linear(dtype, rows, n, k, "gemm")
    yield _attention(dtype, (9, 3), 64, (1,) * 8, (1024,) * 8, "decode")
    yield _attention(dtype, (32, 8), 128, (1,) * 2, (1024,) * 2, "decode")
    yield _attention(dtype, (9, 3), 64, (512,), (512,), "prefill")
    yield _attention(dtype, (32, 8), 128, (128,), (1024,), "prefill")
    for rows, k in ((8, 4096), (512, 2048)):
        norm: Params = {"dtype": dtype, "rows": rows, "k": k, "eps": 1e-5}
        yield Timed(Case("rms_norm", "normal", norm), "memory", {"T": rows, "K": k, "e": e})
        yield Timed(Case("add_rms_norm", "normal", norm), "memory", {"T": rows, "K": k, "e": e})
        gate: Params = {"dtype": dtype, "rows": rows, "k": 2 * k, "act": "silu"}
        yield Timed(Case("act_mul", "normal", gate), "memory", {"T": rows, "K": 2 * k, "e": e})
    turn: Params = {"dtype": dtype, "rows": 512, "heads": 32, "size": 128, "turned": 128}
    yield Timed(Case("rope", "normal", turn), "memory", {"T": 512, "H": 32, "D": 128, "F": 128, "e": e})
    write: Params = {"dtype": dtype, "page": 16, "h": 8, "d": 128, "pages": 80, "t": 512}
    yield Timed(Case("kv_write", "normal", write), "memory", {"T": 512, "Hkv": 8, "D": 128, "e": e})
    yield Timed(
        Case.of("embed", "normal", dtype=dtype, t=512, v=1024, e=2048, first=0),
        "memory",
        {"T": 512, "E": 2048, "e": e},
    )
    for family in ("greedy", "both"):
        draw: Params = {"dtype": dtype, "rows": 8, "vocab": 49152}
        yield Timed(Case("sample", family, draw), "decode", {"L": 8, "V": 49152, "e": e})


def _linear(dtype: str, rows: int, n: int, k: int, kind: str) -> Timed:
    params: Params = {"dtype": dtype, "rows": rows, "n": n, "k": k, "bias": False, "scheme": "dense"}
    width = _WIDTH[dtype]
    return Timed(Case("linear", "normal", params), kind, {"T": rows, "N": n, "K": k, "e": width, "w": width})


def _attention(
    dtype: str, heads: tuple[int, int], size: int, queries: tuple[int, ...], lens: tuple[int, ...], kind: str
) -> Timed:
    """Query i of q, at the end of a sequence of n tokens, sees n - q + i + 1 of them."""
    case = Case(
        "attn_paged",
        "normal",
        {"dtype": dtype, "heads": heads, "d": size, "page": 16, "queries": queries, "lens": lens},
    )
    pairs = sum(q * (n - q) + q * (q + 1) // 2 for q, n in zip(queries, lens, strict=True))
    sizes = {"T": sum(queries), "H": heads[0], "Hkv": heads[1], "D": size, "P": pairs, "C": sum(lens)}
    return Timed(case, kind, {**sizes, "e": _WIDTH[dtype]})
