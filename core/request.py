"""What a client asks for, and what it gets back.

Plain data, sent as msgpack between the API process and the engine process. Owns the ranges of
every sampling parameter; refuses what lies outside of them.
"""

import json
import secrets

import msgspec

from core.errors import RequestError
from core.model.pooling import Pooling

MAX_STRINGS = 16
MAX_SEED = 2**64 - 1
MAX_N = 128
MAX_LOGPROBS = 20
MAX_BIAS = 1024
MAX_STRUCTURED_CHARS = 1 << 18

RANGES: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "temperature": (0, 100),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "seed": (0, MAX_SEED),
    "min_tokens": (0, float("inf")),
    "max_tokens": (1, float("inf")),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
"""Of sampling parameters: the least and the most that each may be. A penalty near 0 makes logits infinite."""

_KINDS = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag", "calls")
_JSON_KINDS = ("json_schema", "choice", "structural_tag", "calls")


class Prelude(msgspec.Struct, frozen=True):
    """Free text before a form, such as a model's reasoning: it starts with `begin`, ends with the first `end`, and the
    form follows after `gap`.

    max_tokens   ids after `begin`, from which on `end` is forced; None: any number
    """

    begin: str
    end: str
    gap: str = ""
    max_tokens: int | None = None


class Structured(msgspec.Struct, frozen=True):
    """The form that an output must have.

    kind   json_schema      text is a JSON schema; whitespace between its parts is limited
           json_object      any JSON object; text is empty
           regex            the whole output matches
           choice           text is a JSON list of strings: the output is one of them
           grammar          text is a grammar, Lark or GBNF
           structural_tag   text is {"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}: free text in
                            which a trigger starts the `begin` of a structure, JSON by its schema and its `end`; or
                            {"format": part}, a form put together of parts, which `core.engine.tags` reads
           calls            calls of functions as some model writes them: text is {"open", "begins", "head", "middle",
                            "close", "separator", "end", "functions": [{"name", "schema"}, ...], "required",
                            "parallel", "form": null or {"kind", "text"}}, which `core.engine.calls` reads
    after  what comes before the form; None: nothing
    """

    kind: str
    text: str = ""
    after: Prelude | None = None

    def check(self) -> None:
        """What can be seen without compiling. Raises: RequestError."""
        if self.kind not in _KINDS:
            raise _outside("structured", f"of kind {self.kind!r}", f"one of {', '.join(_KINDS)}")
        if len(self.text) > MAX_STRUCTURED_CHARS:
            raise _outside("structured", f"{len(self.text)} characters", f"at most {MAX_STRUCTURED_CHARS}")
        if self.after is not None and not self.after.end:
            raise _outside("structured", "of a form after text without an end", "after text with one")
        if self.text and self.kind == "json_object":
            raise _outside("structured", f"{self.kind} with text {self.text[:20]!r}", "without text")
        if not self.text and self.kind != "json_object":
            raise RequestError(f"structured {self.kind} is empty: say what the output must be", "structured")
        if self.kind not in _JSON_KINDS:
            return
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"structured {self.kind} is not JSON: {error}", "structured") from error
        if self.kind == "choice":
            are_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
            if not are_texts or not value or len(set(value)) < len(value):
                raise RequestError("structured choice must be a list of different strings, one at least", "structured")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw tokens and when to stop. What changes logits applies in this order: logit_bias, penalties, masks
    (allowed_token_ids, bad_words, min_tokens), temperature, min_p, top_k, top_p.

    n                   outputs for each prompt, drawn independently
    temperature         0 means greedy; ties go to the lowest id
    top_k               draw from the k likeliest tokens; 0 and -1 mean all
    top_p               draw from the smallest set of likeliest tokens with this much probability
    min_p               leave out tokens less likely than this part of the likeliest one's probability
    repetition_penalty  divides positive logits of tokens in prompt or output, multiplies negative ones
    frequency_penalty   subtracted from a token's logit for each time it was output
    presence_penalty    subtracted once from the logit of a token that was output
    logit_bias          id -> added to its logit
    bad_words           texts that the output never completes
    allowed_token_ids   nothing else is drawn; empty means anything
    seed                same seed, same logits: same draws, whatever else is in the batch
    max_tokens          None means up to the model's limit
    min_tokens          before so many, nothing that ends the output is drawn
    stop                strings that end the output; not part of it
    stop_token_ids      ids that end the output
    ignore_eos          go on after the model's end-of-sequence id
    logprobs            report log-probabilities of the tokens drawn, and of this many likeliest; None: no report.
                        They are the model's own: before bias, penalties, masks and temperature
    logprob_token_ids   also report those of these tokens; only with logprobs
    prompt_logprobs     the same for the tokens of the prompt, without these
    kv_provenance       rest on KV entries that were imported under this name (`LLM.import_kv`), and on no others
    structured          the form that the output must have; it ends where nothing can follow, and ids that end it
                        are only drawn where the form is complete
    include_stop_str_in_output   what stopped the output, string or id, is part of its text
    skip_special_tokens          special tokens are not part of the text
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    kv_provenance: str = ""
    structured: Structured | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def check(self, vocab_size: int) -> None:
        """Raises RequestError naming the field, its value and its limit."""
        self._check_numbers(vocab_size)
        self._check_ids(vocab_size)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _outside("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        for param, words in (("stop", self.stop), ("bad_words", self.bad_words)):
            if len(words) > MAX_STRINGS:
                raise _outside(param, f"{len(words)} strings", f"at most {MAX_STRINGS}")
            if any(not word for word in words):
                raise _outside(param, "an empty string", "not empty")
        if self.structured is not None:
            self.structured.check()

    def _check_numbers(self, vocab_size: int) -> None:
        for param, (low, high) in RANGES.items():
            value = getattr(self, param)
            if value is not None and not low <= value <= high:
                limit = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
                raise _outside(param, value, limit)
        if not -1 <= self.top_k <= vocab_size:
            raise _outside("top_k", self.top_k, f"between -1 and {vocab_size}, the vocabulary; 0 and -1 mean all")
        if not 0.0 < self.top_p <= 1.0:
            raise _outside("top_p", self.top_p, "above 0 and at most 1")

    def _check_ids(self, vocab_size: int) -> None:
        for param, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
            ("logit_bias", self.logit_bias),
        ):
            for i in ids:
                if not 0 <= i < vocab_size:
                    raise _outside(param, i, f"between 0 and {vocab_size - 1}, the vocabulary")
        if len(self.logprob_token_ids) > MAX_LOGPROBS:
            raise _outside("logprob_token_ids", f"{len(self.logprob_token_ids)} ids", f"at most {MAX_LOGPROBS}")
        if self.logprob_token_ids and self.logprobs is None:
            raise _outside("logprob_token_ids", list(self.logprob_token_ids), "left out without logprobs")
        if len(self.logit_bias) > MAX_BIAS:
            raise _outside("logit_bias", f"{len(self.logit_bias)} entries", f"at most {MAX_BIAS}")
        for i, value in self.logit_bias.items():
            if not -100.0 <= value <= 100.0:
                raise _outside("logit_bias", f"{value} for id {i}", "between -100 and 100")


def _outside(param: str, value: object, limit: str) -> RequestError:
    return RequestError(f"{param} is {value}: it must be {limit}", param)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue, or to make an embedding of.

    prompt_ids    token ids, at least one
    stop_ids      every id that ends the output: the model's own (unless ignore_eos) and the client's
    bad_ids       token sequences that the output never completes
    logprobs, prompt_logprobs   how many likeliest tokens to report beside the token itself; -1: no report
    logprob_ids   tokens to report beside these
    max_tokens    resolved: at least 1, or 0 for an embedding; prompt + max_tokens fits the model
    seed          resolved: drawn at random where the client gave none
    pooling       makes it a request for an embedding, which draws nothing; None: it is one for tokens
    priority      lower runs first
    cache_salt    prefixes are shared only among requests with the same salt
    kv_provenance   and the same provenance: entries that were imported under this name; "": computed here
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
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    bad_ids: list[list[int]] = msgspec.field(default_factory=list)
    allowed_ids: list[int] = msgspec.field(default_factory=list)
    min_tokens: int = 0
    logprobs: int = -1
    logprob_ids: list[int] = msgspec.field(default_factory=list)
    prompt_logprobs: int = -1
    structured: Structured | None = None
    pooling: Pooling | None = None
    priority: int = 0
    cache_salt: str = ""
    kv_provenance: str = ""
    prefix_keys: bytes = b""
    arrival_s: float = 0.0


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the model, its rank (1 is the likeliest), and other tokens': the likeliest, in
    order, and then those that were asked for and are not among them."""

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step added to one request.

    finish_reason   None while running; else "stop", "length", "abort" or "error"
    stop_id         the id that ended it, when finish_reason is "stop"; it is the last of new_ids
    num_cached      prompt tokens taken from the prefix cache
    refused         the error is the request's own: it was never run
    logprobs        of new_ids, where asked for
    prompt_logprobs of prompt tokens from the second on, as far as steps have computed them since the last output
    embedding       where that was asked for: float32, little-endian; it comes with finish_reason "stop" and no ids
    admitted_s      in the first output: when the request left the queue, on the machine's monotonic clock
    """

    request_id: str
    new_ids: list[int]
    finish_reason: str | None = None
    stop_id: int | None = None
    num_cached: int = 0
    error: str | None = None
    logprobs: list[Logprobs] = msgspec.field(default_factory=list)
    prompt_logprobs: list[Logprobs] = msgspec.field(default_factory=list)
    refused: bool = False
    embedding: bytes = b""
    admitted_s: float = 0.0


def new_request_id(kind: str) -> str:
    """A fresh id such as `cmpl-3f0c...`."""
    return f"{kind}-{secrets.token_hex(12)}"


def resolve_seed(seed: int | None) -> int:
    """The seed to use: the client's, or a random one."""
    return secrets.randbits(64) if seed is None else seed
