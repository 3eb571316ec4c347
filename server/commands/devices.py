"""`core devices`: every installed device plugin, with its facts or the reason it cannot be used."""

from typing import Annotated

import typer


def devices(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """List the device plugins, and what each found."""
    from dataclasses import asdict

    from core.plugin.facts import DeviceFacts, Unavailable
    from core.plugin.loader import discover
    from server.show import out, print_json, table

    found = discover()
    if as_json:
        print_json([{"name": c.name, "distribution": c.distribution, **asdict(c.facts)} for c in found])
        return

    def describe(facts: DeviceFacts | Unavailable) -> tuple[str, str, str]:
        if isinstance(facts, Unavailable):
            return "no", "", facts.reason
        usage = "yes" if facts.implicit else "by name only"
        memory = f"{facts.memory_bytes / 2**30:.1f} GiB"
        return usage, f"{facts.count} x {memory}", f"{facts.arch}; {', '.join(facts.dtypes)}"

    rows = [(c.name, c.distribution, *describe(c.facts)) for c in found]
    out.print(table("Devices", ("name", "from", "usable", "memory", "facts"), rows))
