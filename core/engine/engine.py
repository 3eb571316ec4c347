"""The engine: a scheduler, and the executor that runs what it plans.

`step` is one turn: plan, submit, and retire the oldest step once `pipeline_depth` others are in flight. A step that
fails ends the requests in it and no others. Whenever nothing is left to do, the accounts must balance.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from core.config import EngineConfig, cache_identity
from core.engine.entries import KVEntries
from core.engine.exchange import Exchange
from core.engine.executor import Executor, open_executor
from core.engine.front import ReadyInfo
from core.engine.grammar import Compiler, Grammars, fill_masks
from core.engine.profile import DEVICE, Profile
from core.engine.scheduler import Scheduler
from core.engine.snapshot import Snapshot, take_snapshot
from core.engine.step import StepOutput, StepPlan
from core.errors import CoreError, DeviceError, RequestError
from core.kernels.bind import Tap
from core.kv.cache import KVCache
from core.kv.events import KVEvents, Publisher
from core.kv.prefix import spec_digest
from core.model.load import Progress
from core.request import Request, SequenceOutput
from core.speculate.choice import parse_speculative

GRAMMAR_WAIT_S = 0.005  # while nothing can run before a grammar is compiled; new requests wait as long
_log = logging.getLogger(__name__)


class Engine:
    """Everything between a request and its ids, in this process (ranks above 0 have their own).

    Raises: ConfigError, PluginError when what was asked for cannot be had.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Progress | None = None,
        tap: Tap | None = None,
        compiling: Progress | None = None,
    ) -> None:
        """`progress` gets bytes of weights, done and in all; `compiling`, shapes of steps on a device that compiles."""
        with ExitStack() as opened:
            self.profile = _open_profile(config, opened)
            self._publisher = _open_publisher(config, opened)
            if self.profile:
                tap = self.profile.tap(tap)
            self._executor, loaded = open_executor(config, progress, tap, compiling)
            self._opened = opened.pop_all()
        self.plan, self._pooling, vocab_size = loaded.plan, loaded.source.pooling, loaded.vocab_size
        self._spec = spec_digest(*cache_identity(loaded.plan, loaded.groups, loaded.formats))
        plan = self.plan
        self.cache = KVCache(
            loaded.groups, plan.num_kv_blocks, plan.page_tokens, plan.prefix_caching, plan.tokens_in_flight
        )
        self.scheduler = Scheduler(
            self.cache,
            max_tokens=plan.max_num_batched_tokens,
            max_seqs=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            spec=self._spec,
            num_swap_pages=plan.num_swap_blocks,
            max_logits=plan.max_num_logits,
            drafting=parse_speculative(plan.speculative).open() if plan.speculative else None,
        )
        self.vocab_size = vocab_size
        self._exchange = Exchange(self.cache, self._executor, loaded, self._spec)
        self._grammars = Grammars(lambda: _open_compiler(config.model, vocab_size))
        if self._publisher:
            self.cache.events = KVEvents(plan.page_tokens)
        self._over: str | None = None  # why there can be no further step
        self._instrument()

    def _instrument(self) -> None:
        """The calls that make up a turn: as they are, or timed."""
        self._schedule, self._update = self.scheduler.schedule, self.scheduler.update
        self._collect, self._take_turn = self._executor.collect, self._turn
        profile, runner = self.profile, self._executor.runner
        if profile:
            runner.pack = profile.timed("pack", runner.pack, DEVICE)
            self._executor.launch = profile.launching(self._executor.launch)
            self._collect = profile.collecting(self._collect)
            self._schedule = profile.timed("schedule", self._schedule)
            self._update = profile.timed("update", self._update)
            self._take_turn = profile.timed("turn", self._take_turn)

    @property
    def executor(self) -> Executor:
        return self._executor

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def info(self) -> ReadyInfo:
        plan = self.plan
        return ReadyInfo(
            device=plan.device,
            max_model_len=plan.max_model_len,
            vocab_size=self.vocab_size,
            page_tokens=plan.page_tokens,
            num_kv_blocks=plan.num_kv_blocks[0],
            prefix_caching=plan.prefix_caching,
            spec=self._spec,
            plan=plan.rows(),
            kernels=[(b.row, b.provider, b.reason, b.uses) for b in plan.bindings],
            notes=list(plan.notes),
            pooling=self._pooling,
            max_num_seqs=plan.max_num_seqs,
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises: RequestError when it can never be served."""
        self._exchange.check(request)
        self.scheduler.add(request)
        if request.structured is not None:
            self._grammars.begin(request)

    def abort(self, request_id: str) -> SequenceOutput | None:
        """End a request now; None when it has ended already."""
        self._grammars.drop(request_id)
        output = self.scheduler.abort(request_id)
        if output is not None:
            self._after_change()
        return output

    def export_kv(self, token_ids: Sequence[int]) -> KVEntries:
        """Entries of the longest cached prefix, in whole pages. Raises: RequestError where there are none."""
        return self._exchange.export(token_ids)

    def import_kv(self, entries: KVEntries) -> str:
        """Make entries findable for requests of the `kv_provenance` that is returned.

        Raises: RequestError when they do not fit; CapacityError when there are not enough pages.
        """
        provenance = self._exchange.load(entries)
        self._after_change()
        return provenance

    def inspect(self, max_sequences: int = 20) -> Snapshot:
        """What it holds now, with at most so many sequences."""
        return take_snapshot(self.scheduler, self._executor.runner.compiles, max_sequences)

    def step(self, beat: Callable[[], None] | None = None) -> list[SequenceOutput]:
        """One turn. `beat` is called while waiting for the device. May return nothing while there is work.

        A step that fails ends the requests in it. After any other failure there is no further step.

        Raises: AccountsError when nothing is left to do and not everything is back; DeviceError when a step failed that
        other ranks took part in, or when there is no further step; whatever a defect outside of any step raises.
        """
        if self._over:
            raise DeviceError(f"the engine cannot go on: {self._over}; open a new one")
        try:
            outputs = self._take_compiled() + self._take_turn(beat)
            self._after_change()
        except Exception as error:
            self._over = _described(error)
            raise
        return outputs

    def _take_compiled(self) -> list[SequenceOutput]:
        """Queue the requests whose grammars are compiled; refuse those whose grammars cannot be."""
        refused = []
        for request_id, grammar in self._grammars.take_done():
            if isinstance(grammar, RequestError):
                self.scheduler.abort(request_id)
                refused.append(SequenceOutput(request_id, [], "error", error=str(grammar), refused=True))
            else:
                self.scheduler.loaded(request_id, grammar)
        return refused

    def _turn(self, beat: Callable[[], None] | None) -> list[SequenceOutput]:
        plan = self._schedule()
        try:
            output = self._run(plan, beat)
        except Exception as error:
            if not self.scheduler.num_in_flight:
                raise  # no step is at fault
            _log.exception("a step failed; the requests in it end with an error")
            return self._give_up(error)
        return [] if output is None else self._update(output)

    def _run(self, plan: StepPlan, beat: Callable[[], None] | None) -> StepOutput | None:
        """Submit a plan, if it is not empty; what the oldest step drew, once enough are in flight."""
        scheduler = self.scheduler
        if not plan.is_empty:
            self._executor.submit(plan)
            if plan.masked:
                draws = [(item.seq.matcher, item.drafts) for item in scheduler.masked if item.seq.matcher]
                self._executor.send_masks(fill_masks(draws, self.vocab_size))
            if scheduler.num_in_flight <= self.plan.pipeline_depth:
                return None
        if not scheduler.num_in_flight:
            self._grammars.wait(GRAMMAR_WAIT_S)
            return None
        return self._collect(beat)

    def _give_up(self, error: Exception) -> list[SequenceOutput]:
        """End what is in flight, after a step failed."""
        self._executor.drop()
        if self.profile:
            self.profile.dropped()
        return self.scheduler.fail(f"a step failed: {_described(error)}")

    def _after_change(self) -> None:
        """Tell who listens what changed; check the accounts when nothing is left to do."""
        if self._publisher and self.cache.events:
            events = self.cache.events.take()
            if events:
                self._publisher.publish(events)
        idle = not self.scheduler.busy
        if self.profile:
            self.profile.write(now=idle)
        if idle:
            self.scheduler.check_idle()

    def check(self) -> None:
        """Raises: DeviceError when the engine cannot go on: another rank is gone."""
        self._executor.check()

    def close(self) -> None:
        self._grammars.close()
        with self._opened, contextlib.suppress(CoreError):
            self._executor.close()


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"


def _open_compiler(model: str, vocab_size: int) -> Compiler:
    from core.engine.guidance import open_compiler  # loaded with the first grammar

    return open_compiler(model, vocab_size)


def _open_profile(config: EngineConfig, opened: ExitStack) -> Profile | None:
    if config.profile is None:
        return None
    profile = Profile(config.profile)
    opened.callback(profile.close)
    return profile


def _open_publisher(config: EngineConfig, opened: ExitStack) -> Publisher | None:
    if config.kv_events is None:
        return None
    publisher = Publisher(config.kv_events)
    opened.callback(publisher.close)
    return publisher
