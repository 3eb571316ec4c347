"""llama.cpp through the C interface that llama-cpp-python carries. Imports nothing of core."""

import sys
from importlib.metadata import version
from typing import Any

import llama_cpp as lib

BATCHED_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
CONTEXT_STEP = 256  # llama.cpp rounds the length of a sequence up to this
FLASH = {"auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO, "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED}

WARNING = 3  # of ggml's log levels; below it are hundreds of lines for each run


def _warn(level: int, text: bytes, _: Any) -> None:
    if level in (WARNING, WARNING + 1):
        sys.stderr.write(text.decode(errors="replace"))


_WARN = lib.llama_log_callback(_warn)  # the library holds no reference to it


class Peer:
    """Opened with {"model": GGUF file, "threads": number, "flash_attention": "auto" or "off"}."""

    def __init__(self, asked: dict[str, Any]) -> None:
        lib.llama_log_set(_WARN, None)
        lib.llama_backend_init()
        self._threads = asked["threads"]
        self._flash = asked["flash_attention"]
        self._model = lib.llama_model_load_from_file(asked["model"].encode(), lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {asked['model']}")
        self._context: Any = None
        self._shape = (0, 0)
        self._batch = lib.llama_batch_init(BATCHED_TOKENS, 0, 1)
        self._sampler = lib.llama_sampler_init_greedy()
        self.versions = {"llama-cpp-python": version("llama-cpp-python")}
        self.settings = {
            "weights": asked["model"].rpartition("/")[2],
            "threads": self._threads,
            "flash attention": self._flash,
            "batched tokens": BATCHED_TOKENS,
            "micro batch tokens": MICRO_BATCH_TOKENS,
            "built for": lib.llama_print_system_info().decode(),
        }

    def generate(self, prompts: list[list[int]], num_tokens: int, watch: Any) -> None:
        self._prepare(len(prompts), max(map(len, prompts)) + num_tokens)
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        watch.start()
        places = [(token, p, i) for i, prompt in enumerate(prompts) for p, token in enumerate(prompt)]
        ends = {(i, len(prompt) - 1) for i, prompt in enumerate(prompts)}
        latest = [0] * len(prompts)
        for at in range(0, len(places), BATCHED_TOKENS):
            self._step(places[at : at + BATCHED_TOKENS], ends, latest, watch)
        for n in range(num_tokens - 1):
            places = [(latest[i], len(prompt) + n, i) for i, prompt in enumerate(prompts)]
            self._step(places, {(i, p) for _, p, i in places}, latest, watch)

    def _prepare(self, num_sequences: int, length: int) -> None:
        """A context for the case: its KV cache is of one size for good."""
        if self._shape == (num_sequences, length):
            return
        if self._context is not None:
            lib.llama_free(self._context)
        self._shape = (num_sequences, length)
        params = lib.llama_context_default_params()
        params.n_seq_max = num_sequences
        params.n_ctx = num_sequences * -(-length // CONTEXT_STEP) * CONTEXT_STEP
        params.n_batch = BATCHED_TOKENS
        params.n_ubatch = MICRO_BATCH_TOKENS
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = FLASH[self._flash]
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp has no context for {num_sequences} sequences of {length} tokens")

    def _step(
        self, places: list[tuple[int, int, int]], ends: set[tuple[int, int]], latest: list[int], watch: Any
    ) -> None:
        """Computes (token, position, sequence) of each place, and draws after the (sequence, position) of `ends`."""
        batch = self._batch
        batch.n_tokens = len(places)
        draws = []
        for row, (token, position, sequence) in enumerate(places):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = (sequence, position) in ends
            if batch.logits[row]:
                draws.append((row, sequence))
        if code := lib.llama_decode(self._context, batch):
            raise SystemExit(f"llama_decode gave {code} for {len(places)} tokens")
        for row, sequence in draws:
            latest[sequence] = lib.llama_sampler_sample(self._sampler, self._context, row)
            watch.drawn(sequence)
        watch.step_done()
