"""Processes that examine collectives: one per rank, each with a device of its own.

They are started once for a device and answer one case after the other, all of them together; groups of some of them are
made at the start. A rank that fails or hangs ends them all, and the next case starts them anew. They end with the
process that asks, whose end of the pipes is then closed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from conformance.case import Case, Finding
from conformance.row_exam import Inputs, Outputs
from conformance.target import Bench, Host, Target, host_target, open_target
from core.errors import CoreError, DeviceError
from core.kernels.row import Implementation

NUM_RANKS = 3
GROUPS = ((0, 1), (1, 2), (0, 1, 2))
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
_GRACE_S = 1.0  # for the other ranks, once one has failed


@dataclass(frozen=True)
class Question:
    """One case for one rank.

    implementations   kernels to try on plain host memory; None: those of the device's plugin
    """

    case: Case
    provider: str
    inputs: Inputs
    implementations: tuple[Implementation, ...] | None


@dataclass(frozen=True)
class Answer:
    """What came of it: outputs and findings of check E, or what was raised."""

    outputs: Outputs
    findings: tuple[Finding, ...] = ()
    error: str = ""


def refusal(target: Target, members: tuple[int, ...]) -> str | None:
    """Why this machine has no such ranks; None when it has."""
    needed = max(members) + 1
    if target.facts.host_memory or target.facts.count >= needed:
        return None
    return f"{needed} devices are needed, this machine has {target.facts.count}"


class Ranks:
    """The processes, as the one that asks sees them."""

    def __init__(self, device: str | None, count: int, size: int) -> None:
        """`device` as for `open_target`, of which there are `count`; None: plain host memory. Raises: DeviceError."""
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="core-ranks-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            index = rank if count > 1 else 0
            process = context.Process(target=_serve, args=(theirs, device, index, rank, size, store), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            for answer in self._collect(range(size), START_TIMEOUT_S):
                if answer.error:
                    raise DeviceError(f"ranks cannot be started: {answer.error}")
        except DeviceError:
            self.close()
            raise

    def ask(self, questions: dict[int, Question]) -> list[Answer]:
        """Answers of these ranks, in their order. Raises: DeviceError when one raises, ends or hangs; all end then."""
        for rank, question in questions.items():
            with contextlib.suppress(BrokenPipeError):  # told when its answer is collected
                self._pipes[rank].send_bytes(pickle.dumps(question))
        answers = self._collect(questions, ANSWER_TIMEOUT_S)
        errors = [f"rank {rank}: {a.error}" for rank, a in zip(questions, answers, strict=True) if a.error]
        if errors:
            raise DeviceError("; ".join(errors))
        return answers

    def _collect(self, ranks: Any, limit_s: float) -> list[Answer]:
        end = time.monotonic() + limit_s
        answers = []
        for rank in ranks:
            answer = self._receive(rank, end)
            if answer.error:
                end = min(end, time.monotonic() + _GRACE_S)
            answers.append(answer)
        return answers

    def _receive(self, rank: int, end: float) -> Answer:
        try:
            if self._pipes[rank].poll(max(0.0, end - time.monotonic())):
                answer: Answer = pickle.loads(self._pipes[rank].recv_bytes())
                return answer
            return Answer({}, error="no answer in time")
        except (EOFError, ConnectionResetError):
            return Answer({}, error="the process ended")

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


_started: dict[str | None, Ranks] = {}


def ask(target: Target, questions: dict[int, Question]) -> list[Answer]:
    """Ask the ranks of a target's device, which are started when they are not there. Raises: DeviceError."""
    device = None if isinstance(target.device, Host) else target.facts.name
    if device not in _started:
        stop()
        size = NUM_RANKS if target.facts.host_memory else min(NUM_RANKS, target.facts.count)
        _started[device] = Ranks(device, target.facts.count, size)
    try:
        return _started[device].ask(questions)
    except DeviceError:
        stop()
        raise


def stop() -> None:
    """End the processes that were started."""
    while _started:
        _started.popitem()[1].close()


def _serve(pipe: Connection, device: str | None, index: int, rank: int, size: int, store: str) -> None:
    """A rank's process: meet the others, then answer."""
    import torch
    import torch.distributed as dist

    try:
        opened = open_target(device, index) if device else host_target()
        if opened.facts.host_memory or device is None:
            torch.set_num_threads(1)  # ranks share the processor
        dist.init_process_group(
            opened.device.collective_backend(),
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=ANSWER_TIMEOUT_S),
        )
        groups = {members: dist.new_group(list(members)) for members in GROUPS if max(members) < size}
    except (CoreError, RuntimeError) as error:
        pipe.send_bytes(pickle.dumps(Answer({}, error=f"rank {rank}: {error}")))
        return
    pipe.send_bytes(pickle.dumps(Answer({})))
    benches: dict[str, Bench] = {}
    while True:
        try:
            question: Question = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        pipe.send_bytes(pickle.dumps(_answer(question, opened, groups, rank, benches)))
    dist.destroy_process_group()


def _answer(question: Question, opened: Target, groups: Any, rank: int, benches: dict[str, Bench]) -> Answer:
    from conformance.kernels import all_exams
    from conformance.kernels.comm import CommExam

    case = question.case
    exam, members = all_exams()[case.row], case["ranks"]
    assert isinstance(exam, CommExam)
    try:
        target = opened if question.implementations is None else host_target(*question.implementations)
        key = f"{case.name}|{question.provider}|{question.implementations}"
        if key not in benches:  # one case after the other: what is laid out again lies where it lay
            benches.clear()
            benches[key] = Bench(target, case.row, question.provider, exam.need(case))
        outputs = exam.on_rank(case, question.inputs, benches[key], groups[members], members.index(rank))
        return Answer(outputs, tuple(benches[key].check_memory(exam.may_change)))
    except Exception as error:  # noqa: BLE001  whatever a kernel under examination raises is its result
        return Answer({}, error=f"{type(error).__name__}: {error}")
