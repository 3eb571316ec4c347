"""Runs tasks in processes of their own: a kernel that crashes or hangs costs its case and nothing else."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from conformance.case import Result
from conformance.child import Setting, Task, serve
from core.errors import DeviceError

OPEN_TIMEOUT_S = 120.0

Report = Callable[[Task, Result, str], None]


class Child:
    """One process, started anew whenever it died."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def answer(self, task: Task) -> tuple[Result, str]:
        """Raises: DeviceError when the device cannot be opened."""
        pipe, limit_s = self._pipe or self._start(), self._setting.limit_s(task)
        try:
            pipe.send(task)
            if pipe.poll(limit_s):
                answer: tuple[Result, str] = pipe.recv()
                return answer
            self.stop()
            reason = f"no answer in {limit_s:.0f} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            reason = f"the process died with exit code {self.stop()}"
        return Result(task.case, task.provider, "error", reason), ""

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._setting), daemon=False)
        self._process.start()
        theirs.close()
        try:
            refusal = self._pipe.recv() if self._pipe.poll(OPEN_TIMEOUT_S) else f"no answer in {OPEN_TIMEOUT_S:.0f} s"
        except EOFError:
            refusal = "the process died"
        if refusal:
            self.stop()
            raise DeviceError(f"device {self._setting.device} cannot be opened: {refusal}")
        return self._pipe

    def stop(self) -> int | None:
        """End the process. Returns its exit code."""
        if self._process is None:
            return None
        assert self._pipe is not None
        self._pipe.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self._process = self._pipe = None
        return code


def run(tasks: Iterable[Task], setting: Setting, report: Report, num_jobs: int = 1) -> None:
    """Run tasks on `num_jobs` processes, and report each when it is done. Whatever `report` raises ends the run.

    Raises: DeviceError when the device cannot be opened.
    """
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Task, Result, str] | DeviceError] = queue.SimpleQueue()
    num_tasks = 0
    for task in tasks:
        todo.put(task)
        num_tasks += 1
    stopped = threading.Event()
    threads = [threading.Thread(target=_work, args=(setting, todo, done, stopped)) for _ in range(num_jobs)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(num_tasks):
            answer = done.get()
            if isinstance(answer, DeviceError):
                raise answer
            report(*answer)
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def _work(
    setting: Setting,
    todo: queue.SimpleQueue[Task],
    done: queue.SimpleQueue[tuple[Task, Result, str] | DeviceError],
    stopped: threading.Event,
) -> None:
    child = Child(setting)
    try:
        while not stopped.is_set():
            task = todo.get_nowait()
            done.put((task, *child.answer(task)))
    except queue.Empty:
        pass
    except DeviceError as error:
        done.put(error)
    finally:
        child.stop()
