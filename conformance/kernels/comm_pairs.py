"""The examination of broadcast, send and recv: what one rank has, others get, bit by bit and in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.case import Case
from conformance.draw import Draw
from conformance.judge import Expected
from conformance.kernels.comm import LARGE, OTHERS, PAIR, THREE, CommExam, of_all
from conformance.kernels.moves import MOVED, numbers
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench


class BroadcastExam(CommExam):
    """x of rank `source` on every rank, whatever x was there."""

    row = "broadcast"
    may_change = ("x",)

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for members in (PAIR, THREE):
                for source in range(len(members)):
                    for shape in ((1,), (13, 7)):
                        yield Case.of(self.row, "normal", ranks=members, dtype=dtype, source=source, shape=shape)
                yield Case.of(self.row, "payload", ranks=members, dtype=dtype, source=1, shape=(300,))
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype, source=1, shape=None)
            for source in (0, 1):
                yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, source=source, shape=(40,))
            yield Case.of(self.row, "large", ranks=PAIR, dtype=dtype, source=0, shape=(LARGE,))
            yield Case.of(self.row, "empty", ranks=PAIR, dtype=dtype, source=0, shape=(0,))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        shape = case["shape"] or (draw.integer(1, 3000),)
        payload = case.family in ("payload", "random")
        return {f"x{i}": numbers(draw, case["dtype"], *shape, any_bits=payload) for i in range(len(case["ranks"]))}

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        kernel = bench.bind(self.row, group=group, source=case["source"])
        return {"y": bench.get(kernel(bench.put("x", inputs[f"x{rank}"])))}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        sent = of_all(inputs, "x")[case["source"]]
        return {f"y{i}": Expected(bits=sent) for i in range(len(case["ranks"]))}


class _MessagesExam(CommExam):
    """What send and recv share: messages one after the other, each from one rank to another.

    The routes of a family are pairs of ranks. "ordered" sends several messages of one size the same way: those that
    overtake each other are found.
    """

    def cases(self) -> Iterator[Case]:
        for dtype in MOVED:
            for members in (PAIR, THREE):
                for family, shape in (("ring", (5, 9)), ("ordered", (40,)), ("back", (1,)), ("payload", (64,))):
                    yield Case.of(self.row, family, ranks=members, dtype=dtype, shape=shape)
            for members in (PAIR, OTHERS, THREE):
                yield Case.of(self.row, "random", ranks=members, dtype=dtype, shape=None)
            yield Case.of(self.row, "group", ranks=OTHERS, dtype=dtype, shape=(17,))
            yield Case.of(self.row, "large", ranks=PAIR, dtype=dtype, shape=(LARGE,))

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        num = len(case["ranks"])
        ring = [(i, (i + 1) % num) for i in range(num)]
        routes = {"ordered": [(0, num - 1)] * 5, "back": [*ring, *((b, a) for a, b in ring)], "large": [(0, 1)]}
        chosen = routes.get(case.family, ring)
        shapes = [case["shape"] or (draw.integer(1, 500),) for _ in chosen]
        payload = case.family in ("payload", "random")
        messages = [numbers(draw, case["dtype"], *shape, any_bits=payload) for shape in shapes]
        before = [numbers(draw, case["dtype"], *shape) for shape in shapes]
        return {"routes": chosen, "messages": messages, "before": before}

    def on_rank(self, case: Case, inputs: Inputs, bench: Bench, group: Any, rank: int) -> Outputs:
        outputs: Outputs = {}
        routes, messages = inputs["routes"], inputs["messages"]
        for i, ((source, target), message) in enumerate(zip(routes, messages, strict=True)):
            if rank == source:
                x = bench.put(f"message{i}", torch.stack((message, message), -1))
                bench.bind("send", group=group, target=target)(x[..., 0])
            elif rank == target:
                x = bench.put(f"received{i}", inputs["before"][i], may_change=True)
                outputs[f"message {i} on "] = bench.get(bench.bind("recv", group=group, source=source)(x))
        return outputs

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        routes, messages = inputs["routes"], inputs["messages"]
        return {f"message {i} on {routes[i][1]}": Expected(bits=x) for i, x in enumerate(messages)}


class SendExam(_MessagesExam):
    """x to rank `target`; x stays as it is."""

    row = "send"


class RecvExam(_MessagesExam):
    """What rank `source` sends, in x."""

    row = "recv"


EXAMS: tuple[RowExam, ...] = (BroadcastExam(), SendExam(), RecvExam())
