"""From what a client wants to a checked request. Runs beside the client, not in the engine process.

Everything that can be refused is refused here, at once; prefix keys are hashed here, off the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from core.clock import Clock, SystemClock
from core.errors import RequestError
from core.kv.prefix import chain_keys, root_key
from core.model.pooling import LAST, Pooling
from core.request import Request, SamplingParams, resolve_seed


class ReadyInfo(msgspec.Struct, frozen=True):
    """What a running engine tells its clients.

    spec      start of all prefix keys (`core.kv.prefix.spec_digest`)
    plan      (name, value, decided by)
    kernels   (row, provider, reason, uses)
    notes     anything else worth showing
    pooling   how the model makes embeddings; None: it declares nothing
    max_num_seqs   sequences that run at once
    """

    device: str
    max_model_len: int
    vocab_size: int
    page_tokens: int
    num_kv_blocks: int
    prefix_caching: bool
    spec: bytes
    plan: list[tuple[str, str, str]]
    kernels: list[tuple[str, str, str, int]]
    notes: list[str]
    pooling: Pooling | None = None
    max_num_seqs: int = 0


class Front:
    """Makes requests for one engine.

    eos_ids   end an output unless the client says otherwise
    encode    text, whether to add special tokens -> ids; needed for bad_words alone
    """

    def __init__(
        self,
        info: ReadyInfo,
        eos_ids: Sequence[int],
        encode: Callable[[str, bool], list[int]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._info = info
        self._encode = encode
        self._eos_ids = [i for i in eos_ids if i < info.vocab_size]
        self._clock = clock or SystemClock()

    def request(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        index: int = 0,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """A request for output `index` of the `n` asked for: each draws by a seed of its own.

        Raises: RequestError naming the field, its value and its limit.
        """
        info = self._info
        if info.pooling and info.pooling.headless:
            raise RequestError("this model has no head (lm_head.weight): ask it for embeddings, it gives no tokens")
        sampling.check(info.vocab_size)
        ids = list(prompt_ids)
        self._check_prompt(ids, 1)
        room = info.max_model_len - len(ids)
        max_tokens = room if sampling.max_tokens is None else sampling.max_tokens
        if max_tokens > room:
            raise RequestError(
                f"max_tokens is {max_tokens} after a prompt of {len(ids)} tokens: "
                f"together they may be {info.max_model_len}, so ask for at most {room}",
                "max_tokens",
            )
        stop_ids = {*sampling.stop_token_ids, *([] if sampling.ignore_eos else self._eos_ids)}
        return Request(
            request_id=request_id,
            prompt_ids=ids,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=(resolve_seed(sampling.seed) + index) % 2**64,
            max_tokens=max_tokens,
            stop_ids=sorted(stop_ids),
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            logit_bias=sampling.logit_bias,
            bad_ids=self._bad_ids(sampling.bad_words),
            allowed_ids=list(sampling.allowed_token_ids),
            min_tokens=sampling.min_tokens,
            logprobs=-1 if sampling.logprobs is None else sampling.logprobs,
            logprob_ids=list(sampling.logprob_token_ids),
            prompt_logprobs=-1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs,
            structured=sampling.structured,
            priority=priority,
            cache_salt=cache_salt,
            kv_provenance=sampling.kv_provenance,
            prefix_keys=self._keys(ids, cache_salt, sampling.kv_provenance),
            arrival_s=self._clock.now_s(),
        )

    def embed_request(
        self, prompt_ids: Sequence[int], *, request_id: str, priority: int = 0, cache_salt: str = ""
    ) -> Request:
        """A request for the embedding of a prompt, which may be as long as the model takes.

        Raises: RequestError where the model gives none, or naming what is wrong with the prompt.
        """
        pooling = self._info.pooling
        if pooling is None:
            raise RequestError(
                "this model's files declare no pooling, so it gives no embeddings: take a model with a modules.json, "
                "or a GGUF file with a pooling_type"
            )
        if pooling.kind != LAST:
            raise RequestError(
                f"this model's files declare the pooling {pooling.kind!r}: core makes embeddings of the last token "
                "only, because the cache keeps no hidden states of the tokens before; take a model with that pooling"
            )
        ids = list(prompt_ids)
        self._check_prompt(ids, 0)
        return Request(
            request_id=request_id,
            prompt_ids=ids,
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            seed=0,
            max_tokens=0,
            stop_ids=[],
            pooling=pooling,
            priority=priority,
            cache_salt=cache_salt,
            prefix_keys=self._keys(ids, cache_salt),
            arrival_s=self._clock.now_s(),
        )

    def _keys(self, ids: list[int], cache_salt: str, provenance: str = "") -> bytes:
        info = self._info
        root = root_key(info.spec, cache_salt, provenance)
        return chain_keys(root, ids, info.page_tokens) if info.prefix_caching else b""

    def _bad_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each word, as it stands at the start of a text and after a space."""
        if not words:
            return []
        if self._encode is None:
            raise RequestError("bad_words needs a tokenizer, and this engine has none", "bad_words")
        spelled = [self._encode(prefix + word.strip(), False) for word in words for prefix in ("", " ")]
        return [list(ids) for ids in dict.fromkeys(map(tuple, spelled)) if ids]

    def _check_prompt(self, ids: list[int], num_more: int) -> None:
        """`num_more` tokens at least must have room after it."""
        info = self._info
        if not ids:
            raise RequestError("the prompt is empty: it must have at least one token", "prompt")
        limit = info.max_model_len - num_more
        if len(ids) > limit:
            less = "one less than " if num_more else ""
            raise RequestError(
                f"the prompt is {len(ids)} tokens: the limit is {limit}, {less}max_model_len {info.max_model_len}; "
                "shorten it",
                "prompt",
            )
        if min(ids) < 0 or max(ids) >= info.vocab_size:
            wrong = next(i for i in ids if not 0 <= i < info.vocab_size)
            raise RequestError(
                f"token id {wrong} is not in the vocabulary: ids go from 0 to {info.vocab_size - 1}", "prompt"
            )
