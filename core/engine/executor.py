"""Where steps run: on this process's device thread, and on other ranks where layers are split.

The engine submits plans and collects outputs in order; a plan is a message, so ranks in other processes get the same
bytes. The masks of grammars follow their plan, while the device already works on it. Torch runs on the device thread
alone, loading included: two threads that both open parallel regions slow each other down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from core.config import EngineConfig
from core.engine.ranks import OtherRanks
from core.engine.step import StepDropped, StepOutput, StepPlan
from core.errors import DeviceError
from core.kv.groups import KVGroup
from core.plan import Plan

if TYPE_CHECKING:
    from core.engine.flight import Flight
    from core.engine.runner import Runner
    from core.kernels.bind import Tap
    from core.model.load import Progress
    from core.model.source import ModelSource


T = TypeVar("T")
BEAT_S = 0.25  # between looks at the other ranks, while a step runs


class Loaded(NamedTuple):
    """What the engine must know of what was loaded.

    source   what it was loaded from
    shape    what KV entries depend on beside weights, by name
    """

    plan: Plan
    groups: tuple[KVGroup, ...]
    formats: tuple[str, ...]
    vocab_size: int
    source: ModelSource
    shape: dict[str, str]


class Executor:
    """Rank 0 on a thread of this process, and the other ranks behind it."""

    def __init__(self, open_runner: Callable[[], Runner], others: OtherRanks | None = None) -> None:
        """`open_runner` loads the model, on the device thread. Raises what it raises."""
        self._others = others
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._flights: deque[Future[Flight]] = deque()
        self._awaited: Future[bytes] | None = None  # masks of the step submitted last
        # Other ranks are in a step that failed here, or did not get one; or a step that failed took the KV cache along.
        self._is_broken = False
        try:
            self.runner = self._thread.submit(open_runner).result()
            # A call that a profile may wrap.
            self.launch: Callable[[StepPlan], Flight] = self.runner.launch
        except BaseException:
            self._thread.shutdown()
            raise

    def submit(self, plan: StepPlan) -> None:
        """Start a step. Steps run in the order of submission."""
        if self._others:
            self._tell(self._others.send, plan)
        self._awaited = Future() if plan.masked else None
        self._flights.append(self._thread.submit(self._launch_next, plan, self._awaited))

    def _launch_next(self, plan: StepPlan, masks: Future[bytes] | None) -> Flight:
        """On the device thread. Ranks that are in an earlier step would take what it sends them for a part of that."""
        if self._is_broken:
            raise DeviceError("a step before this one failed")
        if masks:
            self.runner.take_masks = masks.result
        try:
            return self.launch(plan)
        except StepDropped:
            raise  # by all ranks alike
        except BaseException:
            self._is_broken = self._others is not None or self.runner.loses(launched=False)
            raise

    def _tell(self, send: Callable[[T], None], message: T) -> None:
        try:
            send(message)
        except DeviceError:
            self._is_broken = True
            raise

    def send_masks(self, words: bytes) -> None:
        """Give the step submitted last the masks it waits for (`StepPlan.masked`); none: drop it."""
        awaited, self._awaited = self._awaited, None
        assert awaited is not None
        awaited.set_result(words)
        if self._others:
            self._tell(self._others.send_masks, words)

    def collect(self, beat: Callable[[], None] | None = None) -> StepOutput:
        """Wait for the oldest step. `beat` is called a few times a second meanwhile. Raises what the step raised."""
        launched = self._flights[0]
        while not wait([launched], BEAT_S).done:
            self.check()
            if beat:
                beat()
        flight = self._flights.popleft().result()
        try:
            return flight.output()
        except BaseException:
            self._is_broken = self._is_broken or self.runner.loses(launched=True)
            raise

    def run(self, call: Callable[[Runner], T]) -> T:
        """Do something between two steps, on the device thread, and wait for it. Raises what it raises."""
        return self._thread.submit(call, self.runner).result()

    def check(self) -> None:
        """Raises: DeviceError when another rank is gone."""
        if self._others:
            self._others.check()

    def drop(self) -> None:
        """Wait for the steps in flight, and for transfers, and forget them, after one of them failed.

        Raises: DeviceError when that leaves other ranks in the middle of a step (they are ended), or no KV cache.
        """
        try:
            if self._awaited:
                self.send_masks(b"")
            self.check()
            self._forget()
            if self._is_broken:
                ranks, cache = "ranks cannot leave a step that failed", "the KV cache went with a step that failed"
                raise DeviceError(f"{ranks if self._others else cache}: restart the engine")
            self._thread.submit(self.runner.transfers.drain).result()
        except DeviceError:
            if self._others:
                self._others.kill()
            self._forget()
            raise

    def _forget(self) -> None:
        if self._awaited:
            self._awaited.set_result(b"")
            self._awaited = None
        while self._flights:
            self._flights.popleft().exception()

    def close(self) -> None:
        """Stop. Steps and transfers in flight are finished first."""
        self._forget()
        try:
            self._thread.submit(self._end).result()
        finally:
            self._thread.shutdown()

    def _end(self) -> None:
        self.runner.transfers.drain()
        if self._others:
            self._others.close()


def open_executor(
    config: EngineConfig, progress: Progress | None, tap: Tap | None, compiling: Progress | None
) -> tuple[Executor, Loaded]:
    """Load a model and be ready to run it. Raises: ConfigError, PluginError, DeviceError."""
    config.check()
    others = OtherRanks(config) if config.tensor_parallel_size > 1 else None
    loaded: list[Loaded] = []

    def open_rank() -> Runner:
        from core.engine.build import assemble
        from core.engine.load_runner import open_runner

        ranks = others.join() if others else None
        assembly = assemble(config, ranks, tap)
        runner = open_runner(assembly, config, progress)
        runner.warm_up(compiling)
        a = assembly
        loaded.append(Loaded(runner.plan, a.groups, a.formats, a.vocab_size, a.source, a.shape))
        return runner

    try:
        executor = Executor(open_rank, others)
    except BaseException:
        if others:
            others.close()
        raise
    return executor, loaded[0]
