"""The process that runs kernels under examination: whatever they do to it, the run goes on.

Opens the device, then answers tasks with results, one at a time, until its end of the pipe is closed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from conformance import engine
from conformance.case import Case, Result
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.onnx_cases import exam as onnx_exam
from conformance.onnx_cases import fates
from conformance.row_exam import Outputs
from conformance.target import Target, open_target
from core.errors import CoreError

SAMPLE_SHARE = 0.1
SAMPLE_BYTES = 1 << 18
"""Outputs of kernels are kept of one case in ten, drawn by the seed of the run, and not of larger ones."""


@dataclass(frozen=True)
class Task:
    """One case with one provider's kernel; of a whole engine and of ONNX, the provider is the device."""

    row: str
    case: str
    provider: str


@dataclass(frozen=True)
class Setting:
    """What is the same for a whole run.

    root      seed of the run
    threads   of this process's share of the host; 0: what the device takes
    samples   folder for outputs; None: none are kept
    timeout_s for one case of a kernel
    """

    device: str
    root: bytes
    threads: int = 0
    samples: Path | None = None
    timeout_s: float = 120.0

    def limit_s(self, task: Task) -> float:
        """For one case."""
        return self.timeout_s * (engine.TIMEOUT_TIMES if task.row == engine.ROW else 1)


def serve(pipe: Connection, setting: Setting) -> None:
    """Answer tasks. The first message says whether the device could be opened: empty, or why not."""
    import torch

    try:
        target = open_target(setting.device)
    except CoreError as error:
        pipe.send(str(error))
        return
    if setting.threads:
        torch.set_num_threads(setting.threads)
    pipe.send("")
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(task, target, setting))


def _answer(task: Task, target: Target, setting: Setting) -> tuple[Result, str]:
    """The result, and the SHA-256 of the sample of its outputs, if one was kept."""
    if task.row == fates.ROW:
        return onnx_exam.examine(fates.name_of(task.case), target), ""
    case = cases(task.row, task.provider, target)[task.case]
    if task.row == engine.ROW:
        result, outputs = engine.examine(case, setting.device, setting.root)
    else:
        result, outputs = examine(all_exams()[task.row], case, target, task.provider, setting.root)
    kept = result.status == "pass" or task.row == engine.ROW
    if setting.samples is None or not kept or not is_drawn(setting.root, task, outputs):
        return result, ""
    return result, keep(setting.samples / sample_name(task), outputs)


@cache
def cases(row: str, provider: str, target: Target) -> dict[str, Case]:
    """Name -> case, of one provider's kernel on this target, or of the whole engine."""
    if row == engine.ROW:
        return {case.name: case for case in engine.cases()}
    return {case.name: case for case, by in pairs(all_exams()[row], target) if by == provider}


def is_drawn(root: bytes, task: Task, outputs: Outputs) -> bool:
    """Whether outputs of this task are kept: all there are of a whole engine, and some of kernels."""
    if task.row == engine.ROW:
        return bool(outputs)
    size = sum(x.numel() * x.element_size() for x in outputs.values())
    number = int.from_bytes(hmac.new(root, f"sample {task.case}".encode(), hashlib.sha256).digest()[:4], "little")
    return 0 < size <= SAMPLE_BYTES and number < SAMPLE_SHARE * 2**32


def sample_name(task: Task) -> str:
    """The file that has the outputs of a task."""
    return hashlib.sha256(f"{task.case}|{task.provider}".encode()).hexdigest()[:20] + ".safetensors"


def keep(path: Path, outputs: Outputs) -> str:
    """Write outputs. Returns the file's SHA-256."""
    from safetensors.torch import save

    data = save({name: x.contiguous() for name, x in outputs.items()})
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()
