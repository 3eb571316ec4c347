"""The process of one rank above 0 (`python -m core.engine.rank`): see `core.engine.ranks`."""

from __future__ import annotations

import contextlib
import sys

import msgspec

from core.engine.build import assemble
from core.engine.load_runner import open_runner
from core.engine.ranks import Joining, join, read
from core.engine.step import StepDropped, StepPlan
from core.errors import CoreError


def main() -> int:
    """Load this rank's share, then run plans until the input ends."""
    first = read(sys.stdin.buffer)
    if first is None:
        return 0
    joining = msgspec.msgpack.decode(first, type=Joining)
    config = joining.config
    try:
        runner = open_runner(assemble(config, join(config, joining.rank, joining.port)), config)
        runner.warm_up()
    except CoreError as error:
        sys.stderr.write(f"rank {joining.rank}: error: {error}\n")
        return 2
    plans = msgspec.msgpack.Decoder(StepPlan)
    runner.take_masks = lambda: read(sys.stdin.buffer) or b""
    while (raw := read(sys.stdin.buffer)) is not None:
        with contextlib.suppress(StepDropped):
            runner.launch(plans.decode(raw)).output()
    return 0


if __name__ == "__main__":
    sys.exit(main())
