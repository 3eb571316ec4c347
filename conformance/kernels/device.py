"""The examination of a device's own copies, h2d and d2h, with the events that tell when they are done.

What is read after `wait` is read by work on the device; what is read or changed after `synchronize`, by the host, and
at once: a copy that is still under way then shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.case import Case
from conformance.draw import Draw
from conformance.judge import Expected
from conformance.kernels.moves import MOVED, need_of, numbers
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.device import Event
from core.plugin.facts import Need

UNDER_WAY = ("together", "backwards")
"""Families in which all copies are started before one is waited for: in order, and the last one first."""

_MANY = 100
_LARGE = ((1 << 20) + 3,)  # elements: several MB, and no multiple of a word, line or page


class _CopyExam(RowExam):
    """What both directions share: one pair of buffers, through which several contents go one after the other."""

    def need(self, case: Case) -> Need:
        return need_of(case["dtype"])

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for family in ("wait", "synchronize", "recorded"):
                for shape in ((0,), (1,), (3,), (255,), (257, 3), (4096,)):
                    yield Case.of(self.row, family, dtype=dtype, shape=shape, rounds=3)
            for start in (1, 2, 3):
                yield Case.of(self.row, "unaligned", dtype=dtype, shape=(1021,), rounds=3, start=start)
            yield Case.of(self.row, "strided", dtype=dtype, shape=(17, 12), rounds=2)
            yield Case.of(self.row, "race", dtype=dtype, shape=(5000,), rounds=_MANY)
            for number in range(2):
                yield Case.of(self.row, "random", dtype=dtype, number=number, rounds=3)
        for family in ("wait", "synchronize"):
            yield Case.of(self.row, family, dtype="float32", shape=_LARGE, rounds=2)
        for family in UNDER_WAY:
            for shape in ((1021,), _LARGE):
                yield Case.of(self.row, family, dtype="float32", shape=shape, rounds=4)

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = (draw.integer(1, 20_000),) if case.family == "random" else case["shape"]
        start = draw.integer(1, 9) if case.family == "random" else case.get("start", 0)
        return {"contents": numbers(draw, case["dtype"], case["rounds"], *shape, any_bits=True), "start": start}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        if "refused" in outputs:  # and nothing was written
            return {"refused": Expected(bits=torch.tensor([True]))}
        nothing = torch.zeros_like(outputs["rest"])
        return {"kept": Expected(bits=inputs["contents"]), "rest": Expected(bits=nothing)}


class _Part:
    """What is copied of a buffer: from some element on, or every second one of its last axis."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._shape, self._start = tuple(inputs["contents"].shape[1:]), inputs["start"]
        self.strided = case.family == "strided"

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the buffer."""
        if self.strided:
            return (*self._shape[:-1], 2 * self._shape[-1])
        return (self._shape[0] + 2 * self._start, *self._shape[1:])

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole[..., ::2] if self.strided else whole[self._start : self._start + self._shape[0]]

    def rest(self, whole: torch.Tensor) -> torch.Tensor:
        """How many bytes of a buffer that was zero are not any more, beside the part."""
        self.of(whole).zero_()
        return whole.view(torch.uint8).count_nonzero()[None]


class H2DExam(_CopyExam):
    """Host to device. The source is overwritten as soon as the event has happened."""

    row = "h2d"
    may_change = ("target", "kept")

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        if case.family in UNDER_WAY:
            return self._under_way(case, inputs["contents"], bench)
        device, contents = bench.target.device, inputs["contents"]
        part, waits = _Part(case, inputs), case.family in ("wait", "race")
        whole = bench.put("target", torch.zeros(part.whole, dtype=contents.dtype))
        target = part.of(whole)
        source = part.of(device.host_empty(part.whole, contents.dtype))
        kept = bench.put("kept", torch.zeros_like(contents))
        for i, content in enumerate(contents):
            source.copy_(content)
            try:
                event = device.h2d(target, source)
            except Exception:  # how a device refuses views is its own affair
                if not part.strided:
                    raise
                return {"refused": bench.get(whole).view(torch.uint8).count_nonzero()[None] == 0}
            if waits:
                event.wait()
                kept[i].copy_(target)
            event.synchronize()
            source.copy_(contents[i - 1])
            if case.family == "recorded":
                device.record().wait()
            if not waits:
                kept[i].copy_(target)
        return {"kept": bench.get(kept), "rest": part.rest(bench.get(whole))}

    def _under_way(self, case: Case, contents: torch.Tensor, bench: Bench) -> Outputs:
        device, kept = bench.target.device, bench.put("kept", torch.zeros_like(contents))
        sources = [device.host_empty(tuple(x.shape), x.dtype).copy_(x) for x in contents]
        _wait(case, [device.h2d(kept[i], source) for i, source in enumerate(sources)])
        return {"kept": bench.get(kept), "rest": torch.zeros(1)}


class D2HExam(_CopyExam):
    """Device to host. The source is overwritten by work that waits for the event; the host reads at once."""

    row = "d2h"
    may_change = ("source",)

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        if case.family in UNDER_WAY:
            return self._under_way(case, inputs["contents"], bench)
        device, contents = bench.target.device, inputs["contents"]
        part = _Part(case, inputs)
        source = part.of(bench.put("source", torch.zeros(part.whole, dtype=contents.dtype)))
        there = bench.put("contents", contents)
        hosts = [device.host_empty(part.whole, contents.dtype).zero_() for _ in contents]
        kept = torch.zeros_like(contents)
        events: list[Event] = []
        for i, whole in enumerate(hosts):
            source.copy_(there[i])
            if case.family == "recorded":
                device.record().synchronize()
            try:
                events.append(device.d2h(part.of(whole), source))
            except Exception:  # how a device refuses views is its own affair
                if not part.strided:
                    raise
                return {"refused": whole.view(torch.uint8).count_nonzero()[None] == 0}
            if case.family in ("wait", "race"):
                events[i].wait()
            else:
                events[i].synchronize()
                kept[i].copy_(part.of(whole))
        if case.family in ("wait", "race"):
            for i in reversed(range(len(events))):
                events[i].synchronize()
                kept[i].copy_(part.of(hosts[i]))
        return {"kept": kept, "rest": torch.cat([part.rest(whole) for whole in hosts])}

    def _under_way(self, case: Case, contents: torch.Tensor, bench: Bench) -> Outputs:
        device, there = bench.target.device, bench.put("contents", contents)
        hosts = [device.host_empty(tuple(x.shape), x.dtype) for x in contents]
        _wait(case, [device.d2h(host, there[i]) for i, host in enumerate(hosts)])
        return {"kept": torch.stack(hosts), "rest": torch.zeros(1)}


def _wait(case: Case, events: list[Event]) -> None:
    for event in events[:: -1 if case.family == "backwards" else 1]:
        event.synchronize()


EXAMS: tuple[RowExam, ...] = (H2DExam(), D2HExam())
