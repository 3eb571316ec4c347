"""How fast a device is, for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.speed.record import SpeedRecord, Standing


def show(out: Console, made: SpeedRecord, beside: SpeedRecord, standing: Standing) -> None:
    """Every case, classes, and the grade; and where probes are far from what the device states."""
    columns = ("case", "provider", "us", "eta", "rho", "does not count because")
    table = Table(title="Speed", title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for m in made.cases:
        rho = f"{standing.rho[m.case]:.2f}" if m.case in standing.rho else ""
        cells = (m.case, m.provider, f"{m.seconds * 1e6:.1f}", f"{m.eta:.2f}", rho, m.trouble)
        table.add_row(*map(Text, cells))
    out.print(table)
    for trouble in made.trouble:
        out.print(Text(trouble))
    for kind, figures in {**standing.classes, "all": standing.overall}.items():
        if figures:
            out.print("{:8} rho {:.2f}, tenth percentile {:.2f}, worst {:.2f}".format(kind, *figures))
    out.print(Text(f"grade {standing.grade} beside {beside.device} ({beside.arch})"))
