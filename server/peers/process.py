"""A peer in a process of its own that stays up between rounds.

Owns the process, the other end of `scripts/answer.py`'s lines, and its end. A peer that dies, hangs, or draws another
number of tokens than asked is an error that names it.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from core.errors import ConfigError
from server.measure import Timing
from server.peers.kinds import GUIDE, Peer

SCRIPTS = Path(__file__).parent / "scripts"
STOP_S = 10
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONHOME", "GOMP_SPINCOUNT")  # the last one is core's own choice: see server.cli


class PeerProcess:
    """A `Runner` outside of this process.

    peer            which one, and its interpreter
    asked           what it is opened with, beside the settings of its kind: model, scratch, threads, dtype
    log             file for all that it says
    time_limit_s    for opening it, and for each run
    Raises: ConfigError when it does not open.
    """

    def __init__(self, peer: Peer, asked: Mapping[str, Any], log: Path, time_limit_s: float) -> None:
        self.name = peer.name
        self._log = log
        self._time_limit_s = time_limit_s
        self._unread = b""
        environment = {name: value for name, value in os.environ.items() if name not in NOT_HANDED_ON}
        environment |= {"OMP_NUM_THREADS": str(asked["threads"]), "HF_HUB_OFFLINE": "1"}
        if peer.kind.preload and (library := find_library(peer.kind.preload)):
            environment["LD_PRELOAD"] = library  # others are not to have it: OpenVINO dies of tcmalloc
        self._process = _start(peer, log, environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)  # a long request to a peer that hangs would not return
        try:
            about = self._ask({**asked, **peer.kind.settings})
        except BaseException:
            self._kill()
            raise
        self.versions = ", ".join(f"{key} {value}" for part in about.values() for key, value in part.items())

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        answer = self._ask({"prompts": prompts, "num_tokens": num_tokens})
        if answer["num_drawn"] != [num_tokens] * len(prompts):
            raise ConfigError(
                f"peer {self.name} drew {answer['num_drawn']} tokens where {num_tokens} were asked of each of "
                f"{len(prompts)} sequences: it cannot be compared; {GUIDE}"
            )
        return Timing(answer["first_s"], answer["total_s"], answer["num_decoded"])

    def processor_s(self) -> float:
        """Processor time so far, of all its processes that are there."""
        total_s = 0.0
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self._process.pid)
            for process in (top, *top.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def _ask(self, request: Mapping[str, Any]) -> Any:
        end_s = time.monotonic() + self._time_limit_s
        unsent = json.dumps(request).encode() + b"\n"
        try:
            while unsent:
                self._wait([], [self._stdin], end_s)
                unsent = unsent[os.write(self._stdin, unsent) :]
        except BrokenPipeError:
            raise self._died() from None
        while b"\n" not in self._unread:
            self._wait([self._stdout], [], end_s)
            read = os.read(self._stdout, 1 << 16)
            if not read:
                raise self._died()
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise ConfigError(f"peer {self.name} answered {line[:80]!r}, which is no JSON: {GUIDE}") from None

    def _wait(self, to_read: list[int], to_write: list[int], end_s: float) -> None:
        if not any(select.select(to_read, to_write, [], max(0.0, end_s - time.monotonic()))):
            raise ConfigError(
                f"peer {self.name} gave no answer within {self._time_limit_s:g} s: raise --time-limit, or measure "
                f"less. {self._last_words()}"
            )

    def _died(self) -> ConfigError:
        code = self._process.wait(STOP_S)
        return ConfigError(f"peer {self.name} ended with code {code}: {GUIDE}. {self._last_words()}")

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"Its last words: {lines[-1].strip()}" if lines else "It said nothing."

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._kill()

    def _kill(self) -> None:
        """Ends all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _start(peer: Peer, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as said:
        try:
            return subprocess.Popen(
                [peer.python, SCRIPTS / "answer.py", peer.kind.script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                start_new_session=True,  # its own processes end with it
            )
        except OSError as error:
            raise ConfigError(f"--peer {peer.name}: {peer.python} cannot be started ({error}); {GUIDE}") from None
