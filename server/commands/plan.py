"""`core plan`: what would be served, and who decided it, without loading weights."""

from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.options import with_engine

if TYPE_CHECKING:
    from core.config import EngineConfig


@with_engine
def plan(
    config: "EngineConfig", as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Show every resolved value with its origin, and every kernel with its provider."""
    from core.engine.build import describe
    from server.show import out, plan_tables, print_json

    found = describe(config)
    if as_json:
        values = [{"name": name, "value": value, "decided_by": by} for name, value, by in found.rows()]
        kernels = [{"row": r, "provider": p, "reason": why, "uses": uses} for r, p, why, uses in found.bindings]
        print_json({"plan": values, "kernels": kernels, "notes": found.notes})
        return
    for made in plan_tables(found.rows(), found.bindings, found.notes):
        out.print(made)
