"""`core onnx`: the ONNX project's node cases on a device. Exit codes: 0 all that a row takes pass, 1 not."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.console import Console


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
    from conformance.onnx_cases.fates import record
    from conformance.onnx_cases.load import load
    from conformance.onnx_cases.map import ADAPTERS
    from conformance.onnx_cases.tables import show
    from conformance.target import open_target

    out, log = Console(), Console(stderr=True)
    target = open_target(device)
    with log.status("generating the cases"):
        operators = {name: case.operator for name, case in load().items() if fnmatchcase(name, only)}
    if not operators:
        raise typer.BadParameter(f"no case is called {only!r}: try '*rope*' or leave it out", param_hint="--only")
    with log.status("examining"):
        made = record(operators, {name: examine(name, target) for name in operators if name in ADAPTERS})
    show(out, made, target.facts.name)
    return 1 if made.counts["failed"] else 0
