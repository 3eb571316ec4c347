"""The one source of time.

Everything that needs the time is handed a `Clock`, so tests and simulators can run on their own.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary origin; never goes back."""

    def now_s(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()


SYSTEM = SystemClock()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` >= 0."""
        assert seconds >= 0
        self._now_s += seconds
