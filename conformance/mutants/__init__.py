"""Wrong kernels that the checks must refuse, and right ones that they must not."""

from __future__ import annotations

from importlib import import_module

from conformance.mutants.mutant import CATALOGUE, Mutant

_MODULES = (
    "norm",
    "add_norm",
    "gemm",
    "quantised",
    "rope",
    "elementwise",
    "sampling",
    "logits",
    "attention",
    "attention_sums",
    "attention_right",
    "attention_cheats",
    "merge",
    "gather",
    "ids",
    "kv",
    "kv_write",
    "kv_canonical",
    "copy",
    "rows",
    "device",
    "comm",
    "messages",
    "few_try",
    "reported",
)


def catalogue() -> tuple[Mutant, ...]:
    """Every one, in the order of the files above."""
    for module in _MODULES:
        import_module(f"conformance.mutants.{module}")
    return tuple(CATALOGUE)
