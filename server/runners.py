"""Core itself, to be measured. Peers run outside of this process: `server.peers`."""

import time
from importlib.metadata import version
from types import TracebackType
from typing import Self

import msgspec

from core.config import EngineConfig
from core.engine.front import Front
from core.errors import DeviceError
from core.request import SamplingParams, new_request_id
from server.measure import Timing
from server.show import open_llm


class CoreRunner:
    """The engine in this process. Its prefix cache is off: a repeated prompt must cost what a new one costs."""

    name = "core"

    def __init__(self, config: EngineConfig) -> None:
        self.llm = open_llm(msgspec.structs.replace(config, enable_prefix_caching=False))
        self.dtype = self.llm.plan.dtype
        self.versions = f"core {version('core')}, torch {version('torch')}, device {self.llm.plan.device}, {self.dtype}"
        self._front = Front(self.llm.engine.info(), ())

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        engine = self.llm.engine
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        start_s = time.perf_counter()
        waiting = set()
        for prompt in prompts:
            request = self._front.request(prompt, sampling, request_id=new_request_id("bench"))
            waiting.add(request.request_id)
            engine.add(request)
        first_s, num_decoded = 0.0, 0
        while engine.busy:
            outputs = engine.step()
            if not waiting:
                num_decoded += sum(len(output.new_ids) for output in outputs)
            for output in outputs:
                if output.error:
                    raise DeviceError(output.error)
                waiting.discard(output.request_id)
            if not waiting and not first_s:
                first_s = time.perf_counter() - start_s
        return Timing(first_s, time.perf_counter() - start_s, num_decoded)

    def processor_s(self) -> float:
        """Processor time of this process so far."""
        return time.process_time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.llm.close()
