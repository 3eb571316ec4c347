"""What became of ONNX's cases, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.onnx_cases.fates import FATES, Fate, OnnxRecord, reasons
from conformance.onnx_cases.map import ADAPTERS


def show(out: Console, made: OnnxRecord, device: str) -> None:
    """All cases by operator, with reasons, and both counts."""
    out.print(_by_operator(made.cases))
    _tell(out, "device", Counter(str(ADAPTERS[case.name]) for case in made.having("device")).most_common())
    for fate in ("reference", "refused", "left out"):
        _tell(out, fate, reasons(made.having(fate)))
    for case in made.having("failed")[:20]:
        out.print(Text(f"failed  {case.title} ({case.provider}): {case.message}"))
    count = made.counts
    out.print(
        f"{count['device']} of {len(made.cases)} cases of onnx {made.version} pass by kernels of {device}, "
        f"{count['reference']} by our references; {count['failed']} fail, {count['waived']} are waived, "
        f"{count['refused']} refused, {count['left out']} left out"
    )


def _by_operator(cases: Sequence[Fate]) -> Table:
    table = Table(*("operator", "cases", *FATES), header_style="bold", box=None)
    for operator in dict.fromkeys(case.operator for case in cases):
        count = Counter(case.fate for case in cases if case.operator == operator)
        table.add_row(operator, str(count.total()), *(str(count[fate] or "") for fate in FATES))
    return table


def _tell(out: Console, what: str, reasons: Iterable[tuple[str, int]]) -> None:
    for reason, count in reasons:
        out.print(Text(f"{what:10}{count:4}  {reason}"))
