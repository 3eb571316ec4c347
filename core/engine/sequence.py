"""The mutable state of one request while the scheduler owns it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from core.engine.grammar import Matcher
from core.engine.step import NewSequence
from core.errors import RequestError
from core.kv.cache import BlockTable
from core.kv.host import HostCopy
from core.kv.prefix import KEY_BYTES, ahead_keys, chain_keys
from core.model.pooling import Pooling
from core.request import Logprobs, Request, SequenceOutput
from core.speculate.drafting import SequenceDrafts

_NO_DRAW = "the model's logits are not numbers"
_NO_EMBEDDING = "the model's hidden states are not numbers"
_NO_DRAW_MASKED = f"{_NO_DRAW}, or structured, allowed_token_ids, bad_words and min_tokens leave nothing to draw"


class Status(Enum):
    """LOADING sequences wait for their grammar, and are not in the queue yet; or, once admitted, for their entries to
    come back from the host."""

    LOADING = "loading"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One request's progress.

    token_ids       prompt and retired outputs
    num_computed    tokens whose KV entries are there and retired
    num_scheduled   tokens of steps in flight, right after those
    num_pending     ids that steps in flight will add to token_ids
    row             where devices keep their copy of this sequence; 0 while it has none
    keys, ahead     prefix keys of the full pages of token_ids, as far as they were needed, and those that look ahead
    num_cached      prompt tokens found in the prefix cache when it was first admitted
    admitted_s      when that was; told with the first output
    num_fed         tokens that will ever be computed: the last one that a request may have is not fed back
    scores          log-probabilities of its prompt are wanted
    embeds          an embedding is wanted: what is drawn after the prompt is nobody's
    recalls         devices need the ids drawn before for its draws
    num_told        of token_ids, those that devices have in its row
    drafter         guesses what it draws next; None: it has none yet, or never
    num_drafts      in flight
    in_step         its draws depend on the ids drawn before: nothing of it is scheduled while a draw is in flight
    prompt_logprobs of prompt tokens that no output has taken yet
    embedding       the last token's hidden state, once computed, and then what is made of it
    host            what of it lies on the host, or is on its way there, since it was preempted
    moves           whether its pages are on their way to the host or back
    matcher         what its grammar allows next; None without one
    error           why nothing can be made of what was drawn
    """

    request: Request
    root: bytes
    token_ids: list[int]
    keys: bytes
    ahead: bytes = b""
    status: Status = Status.WAITING
    num_computed: int = 0
    num_scheduled: int = 0
    num_pending: int = 0
    row: int = 0
    table: BlockTable | None = None
    host: HostCopy | None = None
    moves: bool = False
    num_cached: int | None = None
    admitted_s: float = 0.0
    stop_ids: frozenset[int] = field(init=False)
    num_fed: int = field(init=False)
    recalls: bool = field(init=False)
    in_step: bool = field(init=False)
    scores: bool = field(init=False)
    embeds: bool = field(init=False)
    num_told: int = 0
    drafter: SequenceDrafts | None = None
    num_drafts: int = 0
    embedding: bytes = b""
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    matcher: Matcher | None = None
    error: str | None = None
    order: tuple[int, float, str] = field(init=False)

    def __post_init__(self) -> None:
        self.stop_ids = frozenset(self.request.stop_ids)
        self.num_fed = len(self.request.prompt_ids) + max(1, self.request.max_tokens) - 1
        r = self.request
        self.embeds = r.pooling is not None
        self.scores = r.prompt_logprobs >= 0
        self.recalls = bool(r.bad_ids) or r.repetition_penalty != 1 or bool(r.frequency_penalty or r.presence_penalty)
        self.in_step = self.recalls or r.structured is not None
        self.order = (self.request.priority, self.request.arrival_s, self.request.request_id)

    def __lt__(self, other: Sequence) -> bool:
        """Runs before: the lower priority number, then the earlier arrival."""
        return self.order < other.order

    @property
    def frontier(self) -> int:
        """Position of the next token to schedule."""
        return self.num_computed + self.num_scheduled

    @property
    def num_todo(self) -> int:
        """Tokens to schedule to catch up with all that will be known once the steps in flight have retired."""
        if self.status is Status.LOADING or (self.num_pending and self._waits):
            return 0
        return min(len(self.token_ids) + self.num_pending, self.num_fed) - self.num_computed - self.num_scheduled

    @property
    def _waits(self) -> bool:
        """Whether it cannot go on, or should not, before its last draw is known."""
        return self.in_step or self.num_drafts > 0 or (self.drafter is not None and self.drafter.waits)

    @property
    def scores_next(self) -> bool:
        """Whether the next tokens to compute are part of a prompt whose log-probabilities are wanted."""
        return self.scores and not self.num_outputs and self.frontier < len(self.request.prompt_ids) - 1

    def extend_keys(self, num_tokens: int, page_tokens: int, lookahead: int = 0) -> None:
        """Have keys for every full page of the first `num_tokens` tokens."""
        have = len(self.keys) // KEY_BYTES
        if have < num_tokens // page_tokens:
            parent = self.keys[-KEY_BYTES:] or self.root
            self.keys += chain_keys(parent, self.token_ids[have * page_tokens : num_tokens], page_tokens)
        if lookahead:
            self.ahead += ahead_keys(self.keys, self.token_ids, page_tokens, lookahead, len(self.ahead) // KEY_BYTES)

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    def for_devices(self) -> NewSequence:
        """What devices must know of it when it gets a row."""
        assert self.table is not None
        self.num_told = len(self.token_ids)
        tables = [pages[: self.table.length].tolist() for pages in self.table.pages]
        request = msgspec.structs.replace(self.request, prompt_ids=[], prefix_keys=b"", structured=None)
        return NewSequence(self.row, list(self.token_ids), tables, request, len(self.request.prompt_ids))

    def allowed(self, drafts: list[int]) -> list[int]:
        """Those of drafts after all known ids that may be right and do not end the output."""
        drafts = drafts[: self.num_fed - len(self.token_ids)]
        for num, token_id in enumerate(drafts):
            if token_id in self.stop_ids:
                drafts = drafts[:num]
                break
        if self.matcher is not None and drafts:
            num = self.matcher.accept(drafts)
            self.matcher.rollback(num)
            drafts = drafts[:num]
        return drafts

    def tell(self) -> list[int]:
        """Ids that devices have yet to be told of, once they are."""
        untold = self.token_ids[self.num_told :]
        self.num_told = len(self.token_ids)
        return untold

    def take_all(self, drawn: list[int]) -> tuple[int, str | None]:
        """Add ids drawn one after another, up to where the output ends: how many that are, and why it ends.

        All but the last of them were drafts that had been computed.
        """
        num, reason = 0, None
        while reason is None and num < len(drawn):
            reason = self.take(drawn[num])
            num += 1
        self.num_computed += max(0, num - 1)
        return num, reason

    def take(self, drawn: int) -> str | None:
        """Add an id drawn. Returns why the output ends: "stop", "length", "error" (then `error` says why), or None."""
        if self.request.pooling is not None:
            return self._take_embedding(self.request.pooling)
        if self.matcher is not None and self.matcher.fault:
            self.error = self.matcher.fault
        elif drawn < 0:
            r = self.request
            self.error = _NO_DRAW_MASKED if r.structured or r.allowed_ids or r.bad_ids or r.min_tokens else _NO_DRAW
        elif drawn not in self.stop_ids and self.matcher is not None and not self.matcher.accept([drawn]):
            self.error = f"id {drawn} was drawn against the grammar: the device's apply_mask or sample is wrong"
        if self.error:
            return "error"
        self.token_ids.append(drawn)
        if drawn in self.stop_ids or (self.matcher is not None and self.matcher.is_done):
            return "stop"
        return "length" if self.num_outputs >= self.request.max_tokens else None

    def _take_embedding(self, pooling: Pooling) -> str:
        made = pooling.finish(self.embedding)
        if made is None:
            self.error = _NO_EMBEDDING
            return "error"
        self.embedding = made
        return "stop"

    def output(self, drawn: list[int], logprobs: list[Logprobs], reason: str | None) -> SequenceOutput:
        """What draws add, with the log-probabilities of the prompt that have come since the last ones."""
        if reason == "error":
            return SequenceOutput(self.request.request_id, [], reason, error=self.error)
        if self.embeds:
            return SequenceOutput(
                self.request.request_id,
                [],
                reason,
                num_cached=self.num_cached or 0,
                embedding=self.embedding,
                admitted_s=self.admitted_s,
            )
        prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, []
        return SequenceOutput(
            self.request.request_id,
            drawn,
            reason,
            drawn[-1] if reason == "stop" and drawn[-1] in self.stop_ids else None,
            self.num_cached or 0,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            admitted_s=self.admitted_s if self.num_outputs == len(drawn) else 0.0,
        )


def check_length(request: Request, max_model_len: int) -> None:
    """Raises: RequestError when the request can never be served."""
    if not request.prompt_ids:
        raise RequestError("the prompt is empty: it must have at least one token", "prompt")
    if len(request.prompt_ids) + request.max_tokens > max_model_len:
        raise RequestError(
            f"prompt and output are {len(request.prompt_ids)} + {request.max_tokens} tokens: "
            f"the limit is {max_model_len}",
            "max_tokens",
        )
