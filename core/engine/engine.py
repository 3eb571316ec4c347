"""The engine: a scheduler, and the executor that runs what it plans.

`step` is one turn: plan, submit, and retire the oldest step once `pipeline_depth` others are in flight. A step that
fails ends the requests in it and no others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from core.config import EngineConfig, cache_identity
from core.engine.executor import Executor, open_executor
from core.engine.front import ReadyInfo
from core.engine.scheduler import Scheduler
from core.errors import CoreError
from core.kernels.bind import Tap
from core.kv.cache import KVCache
from core.kv.prefix import spec_digest
from core.model.load import Progress
from core.request import Request, SequenceOutput

_log = logging.getLogger(__name__)


class Engine:
    """Everything between a request and its ids, in this process (ranks above 0 have their own).

    Raises: ConfigError, PluginError when what was asked for cannot be had.
    """

    def __init__(self, config: EngineConfig, progress: Progress | None = None, tap: Tap | None = None) -> None:
        self._executor, loaded = open_executor(config, progress, tap)
        self.plan, groups, formats, vocab_size = loaded
        identity = cache_identity(self.plan, groups, formats)
        self._spec = spec_digest(*identity)
        plan = self.plan
        self.cache = KVCache(groups, plan.num_kv_blocks, plan.page_tokens, plan.prefix_caching, plan.tokens_in_flight)
        self.scheduler = Scheduler(
            self.cache,
            max_tokens=plan.max_num_batched_tokens,
            max_seqs=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            spec=self._spec,
        )
        self.vocab_size = vocab_size

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
        )

    def add(self, request: Request) -> None:
        """Queue a request. Raises: RequestError when it can never be served."""
        self.scheduler.add(request)

    def abort(self, request_id: str) -> SequenceOutput | None:
        """End a request now; None when it has ended already."""
        return self.scheduler.abort(request_id)

    def step(self, beat: Callable[[], None] | None = None) -> list[SequenceOutput]:
        """One turn. `beat` is called while waiting for the device. May return nothing while there is work."""
        try:
            return self._turn(beat)
        except Exception as error:  # noqa: BLE001  the one place where a fault of any kernel is contained
            self._executor.drop()
            message = str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"
            _log.exception("a step failed; the requests in it end with an error")
            return self.scheduler.fail(f"a step failed: {message}")

    def _turn(self, beat: Callable[[], None] | None) -> list[SequenceOutput]:
        scheduler = self.scheduler
        plan = scheduler.schedule()
        if plan.rows:
            self._executor.submit(plan)
            if scheduler.num_in_flight <= self.plan.pipeline_depth:
                return []
        if not scheduler.num_in_flight:
            return []
        return scheduler.update(self._executor.collect(beat))

    def check(self) -> None:
        """Raises: DeviceError when the engine cannot go on: another rank is gone."""
        self._executor.check()

    def close(self) -> None:
        with contextlib.suppress(CoreError):
            self._executor.close()
