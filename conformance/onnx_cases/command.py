"""`core onnx`: the ONNX project's node cases on a device. Exit codes: 0 all that a row takes pass, 1 not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from conformance.case import Result

FATES = ("native", "reference", "failed", "refused", "left out")
"""What can become of a case, in the order of the columns."""


def onnx(
    device: Annotated[str, typer.Option(help="Device plugin to examine.")],
    *,
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Cases such as 'attention_4d_*'.")] = "*",
) -> int:
    """Put the ONNX project's node cases to a device's kernels.

    A case counts if the device's own kernels gave the right result. Those that references of core answered, and those
    that no kernel takes, are counted apart.
    """
    from conformance.onnx_cases.exam import examine
    from conformance.onnx_cases.left_out import REASONS
    from conformance.onnx_cases.load import load
    from conformance.onnx_cases.map import ADAPTERS
    from conformance.target import open_target

    out, log = Console(), Console(stderr=True)
    target = open_target(device)
    with log.status("generating the cases"):
        operators = {name: case.operator for name, case in load().items() if fnmatchcase(name, only)}
    if not operators:
        raise typer.BadParameter(f"no case is called {only!r}: try '*rope*' or leave it out", param_hint="--only")
    with log.status("examining"):
        results = {name: examine(name, target) for name in operators if name in ADAPTERS}
    fates = {name: _fate(results.get(name)) for name in operators}
    out.print(_by_operator(operators, fates))
    _tell(out, "native", (str(ADAPTERS[name]) for name in fates if fates[name] == "native"))
    _tell(out, "reference", (results[name].message for name in fates if fates[name] == "reference"))
    _tell(out, "refused", (results[name].message for name in fates if fates[name] == "refused"))
    _tell(out, "left out", (REASONS[name] for name in fates if fates[name] == "left out"))
    failed = [results[name] for name in fates if fates[name] == "failed"]
    for result in failed[:20]:
        out.print(Text(f"{result.status}  {result.case} ({result.provider}): {result.message}"))
    count = Counter(fates.values())
    out.print(
        f"{count['native']} of {len(fates)} cases pass by kernels of {target.facts.name}, {count['reference']} by our "
        f"references; {count['failed']} fail, {count['refused']} are refused, {count['left out']} left out"
    )
    return 1 if failed else 0


def _fate(result: Result | None) -> str:
    from conformance.onnx_cases.exam import is_native

    if result is None:
        return "left out"
    if result.status == "pass":
        return "native" if is_native(result) else "reference"
    return "refused" if result.status == "unsupported" else "failed"


def _by_operator(operators: Mapping[str, str], fates: Mapping[str, str]) -> Table:
    table = Table(*("operator", "cases", *FATES), header_style="bold", box=None)
    for operator in dict.fromkeys(operators.values()):
        count = Counter(fates[name] for name in operators if operators[name] == operator)
        table.add_row(operator, str(count.total()), *(str(count[fate] or "") for fate in FATES))
    return table


def _tell(out: Console, what: str, reasons: Iterable[str]) -> None:
    """Each reason once, with the number of cases it is true of."""
    for reason, count in Counter(reasons).most_common():
        out.print(Text(f"{what:10}{count:4}  {reason}"))
