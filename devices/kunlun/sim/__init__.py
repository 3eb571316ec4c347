"""A simulated accelerator that finds what real ones suffer from. See README.md beside this file."""

from devices.kunlun.sim.backend import RaceError, SimulatedFault, load, set_schedule, start, started
from devices.kunlun.sim.calls import busy_s, launch, now_s, races
from devices.kunlun.sim.chip import Chip
from devices.kunlun.sim.collectives import all_gather, all_reduce, broadcast, send
from devices.kunlun.sim.graph import Graph

__all__ = [
    "Chip", "Graph", "RaceError", "SimulatedFault", "all_gather", "all_reduce", "broadcast", "busy_s", "launch", "load",
    "now_s", "races", "send", "set_schedule", "start", "started",
]  # fmt: skip
