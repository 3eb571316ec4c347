"""OpenVINO GenAI's continuous batching on the host processor. Imports nothing of core.

optimum-intel writes the model anew for it when it is opened.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

BATCHED_TOKENS = 4096
CACHE_GIB = 2


class Peer:
    """Opened with {"model": folder, "scratch": folder, "threads": number}. Weights are float16 in its file; which
    precision it computes in, it chooses itself by the processor."""

    def __init__(self, asked: dict[str, Any]) -> None:
        folder = Path(asked["scratch"]) / "openvino"
        export(asked["model"], folder)
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = CACHE_GIB
        scheduling.max_num_batched_tokens = BATCHED_TOKENS
        scheduling.max_num_seqs = 256
        scheduling.enable_prefix_caching = False
        threads = {"INFERENCE_NUM_THREADS": asked["threads"]}
        self._pipeline = genai.ContinuousBatchingPipeline(folder, scheduling, "CPU", threads)
        self._num_requests = 0
        self.versions = {name: version(name) for name in ("openvino", "openvino-genai", "optimum-intel")}
        chosen = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
        self.settings = {
            "weights": "float16",
            "computes in": chosen.to_string(),
            "threads": asked["threads"],
            "batched tokens": BATCHED_TOKENS,
            "kv cache GiB": CACHE_GIB,
            "prefix caching": False,
        }

    def generate(self, prompts: list[list[int]], num_tokens: int, watch: Any) -> None:
        greedy = genai.GenerationConfig()
        greedy.max_new_tokens = greedy.min_new_tokens = num_tokens
        greedy.ignore_eos = True
        greedy.do_sample = False
        greedy.apply_chat_template = False
        watch.start()
        handles = []
        for prompt in prompts:
            self._num_requests += 1
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, ids, greedy))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        watch.drawn(i, len(output.generated_ids))
            watch.step_done()


def export(model: str, folder: Path) -> None:
    """The model in OpenVINO's format. A process of its own: what that imports would stay in memory here."""
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "-m", model]
    options = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
    subprocess.run([*command, *options, str(folder)], check=True)
