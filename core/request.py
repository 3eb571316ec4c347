"""What a client asks for, and what it gets back.

Plain data, sent as msgpack between the API process and the engine process. Owns the ranges of
every sampling parameter; refuses what lies outside of them.
"""

import secrets

import msgspec

from core.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_SEED = 2**64 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens and when to stop.

    temperature     0 means greedy; ties go to the lowest id
    top_k           draw from the k likeliest tokens; 0 and -1 mean all
    top_p           draw from the smallest set of likeliest tokens with this much probability
    seed            same seed, same logits: same draws, whatever else is in the batch
    max_tokens      None means up to the model's limit
    stop            strings that end the output; not part of it
    stop_token_ids  ids that end the output
    ignore_eos      go on after the model's end-of-sequence id
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def check(self, vocab_size: int) -> None:
        """Raises RequestError naming the field, its value and its limit."""
        if not 0.0 <= self.temperature <= 100.0:
            raise _outside("temperature", self.temperature, "between 0 and 100")
        if not -1 <= self.top_k <= vocab_size:
            raise _outside("top_k", self.top_k, f"between -1 and {vocab_size}, the vocabulary; 0 and -1 mean all")
        if not 0.0 < self.top_p <= 1.0:
            raise _outside("top_p", self.top_p, "above 0 and at most 1")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise _outside("seed", self.seed, "between 0 and 2**64 - 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise _outside("max_tokens", self.max_tokens, "at least 1")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _outside("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS}")
        if any(not s for s in self.stop):
            raise _outside("stop", "an empty string", "not empty")
        for i in self.stop_token_ids:
            if not 0 <= i < vocab_size:
                raise _outside("stop_token_ids", i, f"between 0 and {vocab_size - 1}, the vocabulary")


def _outside(param: str, value: object, limit: str) -> RequestError:
    return RequestError(f"{param} is {value}: it must be {limit}", param)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue.

    prompt_ids    token ids, at least one
    stop_ids      every id that ends the output: the model's own (unless ignore_eos) and the client's
    max_tokens    resolved: at least 1, and prompt + max_tokens fits the model
    seed          resolved: drawn at random where the client gave none
    priority      lower runs first
    cache_salt    prefixes are shared only among requests with the same salt
    prefix_keys   one 32-byte key per full page of the prompt, in order (`core.kv.prefix.chain_keys`)
    arrival_s     on the sender's clock; orders requests of equal priority
    """

    request_id: str
    prompt_ids: list[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop_ids: list[int]
    priority: int = 0
    cache_salt: str = ""
    prefix_keys: bytes = b""
    arrival_s: float = 0.0


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one request.

    finish_reason   None while running; else "stop", "length", "abort" or "error"
    stop_id         the id that ended it, when finish_reason is "stop"; it is the last of new_ids
    num_cached      prompt tokens taken from the prefix cache
    """

    request_id: str
    new_ids: list[int]
    finish_reason: str | None = None
    stop_id: int | None = None
    num_cached: int = 0
    error: str | None = None


def new_request_id(kind: str) -> str:
    """A fresh id such as `cmpl-3f0c...`."""
    return f"{kind}-{secrets.token_hex(12)}"


def resolve_seed(seed: int | None) -> int:
    """The seed to use: the client's, or a random one."""
    return secrets.randbits(64) if seed is None else seed
