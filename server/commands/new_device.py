"""`core new-device`: the beginnings of a device plugin, which serve as they are."""

from pathlib import Path
from typing import Annotated

import typer


def new_device(
    name: Annotated[str, typer.Argument(help="What --device will take: a-z, 0-9 and _.")],
    core: Annotated[
        Path, typer.Option(metavar="PATH", help="Wheel or source tree of core, to install it from in that project.")
    ],
    into: Annotated[Path | None, typer.Option(metavar="DIR", help="New folder to write. Default: core-NAME.")] = None,
) -> None:
    """Write a device plugin as a project of its own, with a kernel, tests, and a workflow that certifies it."""
    from core.plugin.loader import device_names
    from server.new_device.project import distribution_name, write_project
    from server.show import out

    folder = into or Path(distribution_name(name))
    written = write_project(name, folder, core, device_names())
    for path in written:
        out.print(str(path), highlight=False, soft_wrap=True)
    out.print(f"\nNext: cd {folder} && pip install -r requirements.txt && pytest", highlight=False, soft_wrap=True)
