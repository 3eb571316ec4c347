"""transformers' `generate`, as its documentation shows it, on the host processor. Imports nothing of core."""

import warnings
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging


class Peer:
    """Opened with {"model": folder, "threads": number, "dtype": name}."""

    def __init__(self, asked: dict[str, Any]) -> None:
        disable: Any = logging.disable_progress_bar
        disable()
        warnings.simplefilter("ignore")
        torch.set_num_threads(asked["threads"])
        self._model: Any = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=getattr(torch, asked["dtype"]))
        self.versions = {name: version(name) for name in ("transformers", "torch")}
        attention = self._model.config._attn_implementation
        self.settings = {"dtype": asked["dtype"], "threads": torch.get_num_threads(), "attention": attention}

    def generate(self, prompts: list[list[int]], num_tokens: int, watch: Any) -> None:
        watch.start()
        ids = torch.tensor(prompts)

        def note(input_ids: Any, scores: Any, **_: Any) -> Any:
            for i in range(len(prompts)):
                watch.drawn(i)
            watch.step_done()
            return torch.zeros(len(prompts), dtype=torch.bool)

        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                pad_token_id=0,
                stopping_criteria=[note],
            )
