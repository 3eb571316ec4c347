"""What can be measured: core itself, and transformers on the same weights."""

import time
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from core.config import EngineConfig
from core.engine.front import Front
from core.errors import ConfigError, DeviceError
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.llm.close()


class TransformersRunner:
    """transformers' `generate`, as its documentation shows it, on the host processor.

    folder   the model, as `core convert` writes it
    dtype    of weights and activations, such as "bfloat16"
    """

    name = "transformers"

    def __init__(self, folder: Path, dtype: str) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging
        except ImportError as error:
            raise ConfigError(f"--peer transformers needs {error.name}: pip install transformers") from None
        quiet: Any = logging.disable_progress_bar
        quiet()
        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.versions = f"transformers {version('transformers')}, torch {version('torch')}, device cpu, {dtype}"

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        ids = self._torch.tensor(prompts)
        drawn_s: list[float] = []

        def note(input_ids: Any, scores: Any, **_: Any) -> Any:
            drawn_s.append(time.perf_counter())
            return self._torch.zeros(len(prompts), dtype=self._torch.bool)

        start_s = time.perf_counter()
        with self._torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        return Timing(drawn_s[0] - start_s, time.perf_counter() - start_s, len(prompts) * (num_tokens - 1))
