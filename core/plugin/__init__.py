"""What a plugin imports: the hook marker, the device base class, and the facts it states."""

from core.plugin.device import CannotCompile, Device, Event
from core.plugin.facts import DeviceFacts, Memory, Need, Peaks, ShapePolicy, Support, Unavailable
from core.plugin.hooks import API, hookimpl

__all__ = [
    "API",
    "CannotCompile",
    "Device",
    "DeviceFacts",
    "Event",
    "Memory",
    "Need",
    "Peaks",
    "ShapePolicy",
    "Support",
    "Unavailable",
    "hookimpl",
]
