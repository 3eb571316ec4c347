"""Rows for which torch has one operator on Intel GPUs. All others run on their references, on the device."""

from core.kernels import operators
from core.kernels.row import Implementation
from core.plugin import DeviceFacts, Support


def implementations(facts: DeviceFacts) -> list[Implementation]:
    """Provider "xpu". None claims batch invariance, which nobody has measured."""
    dtypes = frozenset(facts.dtypes)
    support, dense = Support(dtypes=dtypes), Support(dtypes=dtypes, schemes=frozenset({"dense"}))
    return [
        Implementation("linear", operators.linear, "xpu", dense),
        Implementation("rms_norm", operators.rms_norm, "xpu", support),
        Implementation("add_rms_norm", operators.add_rms_norm, "xpu", support),
    ]
