"""Times a device in a process of its own: nothing else was done there before, and a crash ends that process alone.

A record is one measurement: the ceilings and every case are of one process. One that was cut off is made anew.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from conformance.speed.measure import record
from conformance.speed.record import SpeedRecord
from conformance.target import open_target
from core.errors import CoreError, DeviceError


def record_apart(device: str, progress: Callable[[int, int], None]) -> SpeedRecord:
    """The record of a device in the dtype that it computes in best.

    Raises: DeviceError when it cannot be timed, or the process dies.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_measure, args=(theirs, device))
    process.start()
    theirs.close()
    try:
        while True:
            message = ours.recv()
            if isinstance(message, SpeedRecord):
                return message
            if isinstance(message, str):
                raise DeviceError(message)
            progress(*message)
    except EOFError as error:
        process.join()
        raise DeviceError(f"the process that timed {device} died with exit code {process.exitcode}") from error
    finally:
        process.kill()
        process.join()


def _measure(pipe: Connection, device: str) -> None:
    """Sends how far it is, and at last the record or why there is none."""
    try:
        target = open_target(device)
        made = record(target, target.facts.dtypes[0], lambda done, total: pipe.send((done, total)))
    except CoreError as error:
        pipe.send(str(error))
    else:
        pipe.send(made)
