"""Core itself, to be measured. Peers run outside of this process: `server.peers`."""

import time
from collections.abc import Iterator
from importlib.metadata import version
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from core.config import EngineConfig
from core.engine.front import Front
from core.errors import DeviceError
from core.request import SamplingParams, new_request_id
from server.measure import Timing
from server.show import open_llm


class Step(NamedTuple):
    """A turn of the engine.

    end_s          since the start, without what was done between turns
    drawn          ids, by the number of their prompt
    foretelling_s  that draft layers added to the engine's steps, so far
    """

    end_s: float
    drawn: dict[int, list[int]]
    foretelling_s: float = 0.0


class CoreRunner:
    """The engine in this process. Its prefix cache is off: a repeated prompt must cost what a new one costs."""

    name = "core"

    def __init__(self, config: EngineConfig) -> None:
        self.llm = open_llm(msgspec.structs.replace(config, enable_prefix_caching=False))
        self.dtype = self.llm.plan.dtype
        self.versions = f"core {version('core')}, torch {version('torch')}, device {self.llm.plan.device}, {self.dtype}"
        self._front = Front(self.llm.engine.info(), ())

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        waiting, first_s, num_decoded, end_s = set(range(len(prompts))), 0.0, 0, 0.0
        for end_s, drawn, _ in self.steps(prompts, num_tokens):
            if not waiting:
                num_decoded += sum(map(len, drawn.values()))
                continue
            waiting -= drawn.keys()
            if not waiting:
                first_s = end_s
        return Timing(first_s, end_s, num_decoded)

    def steps(self, prompts: list[list[int]], num_tokens: int) -> Iterator[Step]:
        """Continue every prompt, as one batch, greedily, by exactly `num_tokens`: each step once it has ended.

        Raises: RequestError for what cannot be served; DeviceError when a step fails.
        """
        engine = self.llm.engine
        drafting = engine.scheduler.drafting
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        start_s = time.perf_counter()
        numbers = {}
        for number, prompt in enumerate(prompts):
            request = self._front.request(prompt, sampling, request_id=new_request_id("bench"))
            numbers[request.request_id] = number
            engine.add(request)
        spent_s = time.perf_counter() - start_s
        while engine.busy:
            start_s = time.perf_counter()
            outputs = engine.step()
            spent_s += time.perf_counter() - start_s
            for output in outputs:
                if output.error:
                    raise DeviceError(output.error)
            drawn = {numbers[output.request_id]: output.new_ids for output in outputs}
            yield Step(spent_s, drawn, drafting.counts.foretelling_s if drafting else 0.0)

    def processor_s(self) -> float:
        """Processor time of this process so far."""
        return time.process_time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.llm.close()
