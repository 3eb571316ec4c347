"""Graphs: launches, copies and torch's operators that are recorded once and replayed over the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from devices.kunlun.sim.backend import SimulatedFault, extension


class Graph:
    """One graph. Memory that is allocated while it is captured stays its own until the graph is dropped.

    How a capture behaves, and what it refuses: engine/graph.h.
    """

    def __init__(self) -> None:
        self._recorded: Any = extension().Graph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Records what is launched within. Nothing of it counts as computed.

        Raises: SimulatedFault where the host waits, where a stream takes part that was not made to wait for the
        captured one, and at the end where that one was not made to wait for it.
        """
        self._recorded.begin()
        try:
            yield
        except BaseException:
            with suppress(SimulatedFault):
                self._recorded.end()
            self._recorded = extension().Graph()
            raise
        self._recorded.end()

    def replay(self) -> None:
        """Queue what was recorded on the current stream, and on the streams that took part.

        Raises: SimulatedFault "stale graph buffer" when memory that it uses was freed since the capture.
        """
        self._recorded.replay()
