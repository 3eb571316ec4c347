"""What is counted of requests, under vLLM's names, and how it is written for Prometheus.

Owns the counts of the API process. Counting a token is a binary search and two additions; names, labels and texts are
made when somebody asks. The engine's own counts come with its `Snapshot`, asked for then too.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from core.request import SequenceOutput
from server.door import Entry

_FINE_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
FIRST_TOKEN_S = (*_FINE_S, 160.0, 640.0, 2560.0)
TOKEN_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
CHOICES = (1, 2, 5, 10, 20)
"""Upper bounds of the buckets, mostly vLLM's."""


class Histogram:
    """How many values fell into each bucket, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def mean(self) -> float:
        """0 before the first value."""
        return self.sum / max(1, sum(self.counts))


@dataclass(slots=True)
class Live:
    """One engine request on its way. Times are those of outputs; `reason` is why it ended, None while it has not."""

    arrival_s: float
    num_prompt: int
    num_cached: int = 0
    num_tokens: int = 0
    admitted_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    reason: str | None = None


class Record:
    """All counts, since the server started."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generation_tokens = 0
        self.ended_by = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.first_token_s, self.token_s = Histogram(FIRST_TOKEN_S), Histogram(TOKEN_S)
        self.per_token_s, self.e2e_s = Histogram(TOKEN_S), Histogram(REQUEST_S)
        self.queue_s, self.prefill_s = Histogram(REQUEST_S), Histogram(REQUEST_S)
        self.decode_s, self.inference_s = Histogram(REQUEST_S), Histogram(REQUEST_S)
        self.request_prompt, self.request_generation = Histogram(TOKENS), Histogram(TOKENS)
        self.request_most, self.asked_most, self.asked_n = Histogram(TOKENS), Histogram(TOKENS), Histogram(CHOICES)

    def note(self, live: Live, output: SequenceOutput, now_s: float) -> None:
        """One output of the engine, which has just arrived."""
        num_new = len(output.new_ids)
        if live.num_tokens:
            self.token_s.observe(now_s - live.last_s)
        elif num_new or output.embedding:
            self._begun(live, output, now_s)
        live.num_tokens += num_new
        live.last_s = now_s
        self.generation_tokens += num_new
        live.reason = output.finish_reason

    def _begun(self, live: Live, output: SequenceOutput, now_s: float) -> None:
        live.first_s = now_s
        live.admitted_s, live.num_cached = output.admitted_s, output.num_cached
        self.prompt_tokens += live.num_prompt
        self.queue_s.observe(live.admitted_s - live.arrival_s)
        self.prefill_s.observe(now_s - live.admitted_s)
        if not output.embedding:
            self.first_token_s.observe(now_s - live.arrival_s)

    def ended(self, live: Live, entry: Entry | None) -> None:
        """Nothing more comes of a request: it has ended, failed, or its client is gone."""
        reason = live.reason or "abort"
        self.ended_by[reason] += 1
        if entry is not None:
            entry.prompt_tokens += live.num_prompt
            entry.cached_tokens += live.num_cached
            entry.output_tokens.append(live.num_tokens)
            entry.finish_reasons.append(reason)
        if reason not in ("stop", "length"):
            return
        self.request_prompt.observe(live.num_prompt)
        self.request_generation.observe(live.num_tokens)
        self.e2e_s.observe(live.last_s - live.arrival_s)
        self.inference_s.observe(live.last_s - live.admitted_s)
        self.decode_s.observe(live.last_s - live.first_s)
        if live.num_tokens > 1:
            self.per_token_s.observe((live.last_s - live.first_s) / (live.num_tokens - 1))

    def asked(self, n: int, max_tokens: int | None) -> None:
        """What one client request asks for."""
        self.asked_n.observe(n)
        if max_tokens is not None:
            self.asked_most.observe(max_tokens)

    def answered(self, entry: Entry) -> None:
        """One client request is done."""
        if entry.output_tokens:
            self.request_most.observe(max(entry.output_tokens))
