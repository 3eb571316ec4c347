"""How a whole engine on a device is examined: with real models, whose answers hang on every kernel at once.

Cases have the row "engine", though the table has none of that name, and run in the same processes as those of kernels.
The reference is our own engine on the cpu device in float32.
"""

from conformance.engine.cases import ROW, cases, refusal
from conformance.engine.examine import TIMEOUT_TIMES, can_rejudge, examine, rejudge

__all__ = ["ROW", "TIMEOUT_TIMES", "can_rejudge", "cases", "examine", "refusal", "rejudge"]
