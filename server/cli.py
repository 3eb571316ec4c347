"""The command `core`. Every error that core raises on purpose becomes one line on stderr and exit code 2."""

import errno
import os
import sys
from importlib.metadata import entry_points
from typing import NoReturn

import typer

from core.errors import CoreError
from server.commands import bench, chat, convert, devices, generate, kv, new_device, plan, serve, train_mtp
from server.commands.refused import refuse

app = typer.Typer(
    name="core",
    help="Serve and run large language models on any device that has a plugin.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("devices")(devices.devices)
app.command("plan")(plan.plan)
app.command("kv")(kv.kv)
app.command("convert")(convert.convert)
app.command("new-device")(new_device.new_device)
app.command("train-mtp")(train_mtp.train_mtp)
app.add_typer(bench.app, name="bench")


def add_commands() -> None:
    """Commands that other packages add: each names a module in group `core.commands` that has `register(app)`."""
    for point in sorted(entry_points(group="core.commands"), key=lambda point: point.name):
        point.load().register(app)


SPIN_COUNT = "3000"
"""How long idle OpenMP threads of torch spin before they sleep (GOMP_SPINCOUNT), unless the user says otherwise.

Unbounded, as is the default, a second busy process makes every parallel region wait for its time slice: decoding was
measured five times slower beside one. Bounded, a quiet machine loses about a tenth at batch 1.
"""


OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR)
"""Errors of a place to write to that no check foresees, or that it does not have to."""


def main() -> NoReturn:
    """Entry point of the console script."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch is loaded, here or in a process from here
    add_commands()
    try:
        refuse(sys.argv[1:])
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except CoreError as error:
        code = fail(str(error))
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        where = f" ({error.filename})" if error.filename else ""
        code = fail(f"{error.strerror}{where}: nothing more could be written; make room, or name another place")
    except typer.TyperException as error:
        code = fail(f"{error.format_message()} (see core --help)")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code or 0)


def fail(message: str) -> int:
    """Say what is wrong, in one line. Returns the exit code."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return 2


if __name__ == "__main__":
    main()
