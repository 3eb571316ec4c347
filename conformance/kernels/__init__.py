"""How each kernel is examined: a file per kind of kernel, a class per row."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from conformance.row_exam import RowExam

_MODULES = (
    "norm",
    "gemm",
    "quant",
    "elementwise",
    "rope",
    "gather",
    "copy",
    "device",
    "kv",
    "kv_canonical",
    "comm",
    "comm_pairs",
    "attention",
    "merge",
    "sampling",
    "logits",
)


@cache
def all_exams() -> dict[str, RowExam]:
    """Row -> its examination, in the order of the files above."""
    exams: dict[str, RowExam] = {}
    for module in _MODULES:
        for exam in import_module(f"conformance.kernels.{module}").EXAMS:
            assert exam.row not in exams, exam.row
            exams[exam.row] = exam
    return exams
