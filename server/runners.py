"""What can be measured: core itself, and transformers on the same weights."""

from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from core.config import EngineConfig
from core.errors import ConfigError
from core.request import SamplingParams
from server.show import open_llm


class CoreRunner:
    """The engine in this process. Its prefix cache is off: a repeated prompt must cost what a new one costs."""

    name = "core"

    def __init__(self, config: EngineConfig) -> None:
        self.llm = open_llm(msgspec.structs.replace(config, enable_prefix_caching=False))
        self.dtype = self.llm.plan.dtype
        self.versions = f"core {version('core')}, torch {version('torch')}"

    def generate(self, prompts: list[list[int]], num_tokens: int) -> None:
        self.llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True))

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
        except ImportError as error:
            raise ConfigError(f"--peer transformers needs {error.name}: pip install transformers") from None
        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.versions = f"transformers {version('transformers')}, torch {version('torch')}"

    def generate(self, prompts: list[list[int]], num_tokens: int) -> None:
        ids = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                pad_token_id=0,
            )
