"""A step that was launched, and what is read of it once it has ended.

Owns host memory that the step's results arrive in. Reading waits for the step alone, and runs on the engine's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from core.clock import SYSTEM
from core.engine.step import StepOutput
from core.engine.transfers import Transfers
from core.plugin.device import Event
from core.request import Logprobs

Reported = tuple[torch.Tensor, ...]
"""Log-probabilities of a step's logit rows: logprob_L and rank_L of the token drawn or scored, top_logprobs_LK and
top_ids_LK of the likeliest ones, and for each column of `Extras.named` its logprob_L."""


class Wanted(NamedTuple):
    """How many likeliest tokens one row reports (-1: there is no report), and which others."""

    num_top: int
    ids: list[int]


class Beside(NamedTuple):
    """Beside which transfers a step ran: number of the last one started, and when the step had computed."""

    started: int
    computed: Event


class Foretold(NamedTuple):
    """What draft layers foretell.

    ids         for each place after a draw: ids, per draw
    arrived     when they are on the host
    launch_s    what it took to launch, and to compute on a device that does so at once
    """

    ids: list[torch.Tensor]
    arrived: list[Event]
    launch_s: float

    def read(self, num_draws: int) -> tuple[list[list[int]], float]:
        """Ids per draw, and what they added to a step that has ended but for them."""
        start_s = SYSTEM.now_s()
        for event in self.arrived:
            event.synchronize()
        waited_s = SYSTEM.now_s() - start_s
        columns = (ids[:num_draws].tolist() for ids in self.ids)
        return [list(ahead) for ahead in zip(*columns, strict=True)], max(self.launch_s, waited_s)


@dataclass
class Flight:
    """What a step draws, and log-probabilities and hidden states where asked for, on the host.

    transfers   polled when the output is read
    waits       there is nothing to compute, and the output comes when the oldest transfer has ended
    ids         drawn: the first `num_ids`
    wanted      per draw
    scored      per scoring item: how many rows, how many likeliest tokens
    hidden      rows of hidden states, from the first to the last that is wanted
    embeds      which draws' rows those are that are wanted
    beside      None where nothing was transferred meanwhile
    foretold    what draft layers foretell; None where they did not
    accepted    per item that draws: how many of its drafts are right; None where there are no drafts
    compiled    see `StepOutput`
    """

    transfers: Transfers
    waits: bool = False
    ids: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    num_ids: int = 0
    arrived: list[Event] = field(default_factory=list)
    reported: Reported | None = None
    wanted: list[Wanted] = field(default_factory=list)
    scored: list[tuple[int, int]] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    embeds: list[int] = field(default_factory=list)
    beside: Beside | None = None
    foretold: Foretold | None = None
    accepted: torch.Tensor | None = None
    compiled: bool = False

    @torch.inference_mode()
    def output(self) -> StepOutput:
        """Wait for the step and read what it drew."""
        late = self._is_late()
        for event in self.arrived:
            event.synchronize()
        if self.waits:
            self.transfers.wait_oldest()
        ids = self.ids[: self.num_ids].tolist()
        logprobs, prompt_logprobs = self._logprobs()
        hidden = self._hidden_states()
        foretold, foretelling_s = self.foretold.read(self.num_ids) if self.foretold else ([], 0.0)
        accepted = [] if self.accepted is None else self.accepted.tolist()
        transferred = self.transfers.poll()
        return StepOutput(
            ids, logprobs, prompt_logprobs, hidden, transferred, late, foretold, foretelling_s, accepted, self.compiled
        )

    def _is_late(self) -> bool | None:
        """Whether transfers are under way when the step has computed: what it drew comes after them, then."""
        if self.beside is None:
            return None
        self.beside.computed.synchronize()
        return self.transfers.poll() < self.beside.started

    def _logprobs(self) -> tuple[list[Logprobs | None], list[list[Logprobs]]]:
        """Of what was drawn, and of prompts."""
        if self.reported is None:
            return [], []
        rows = [list(column) for column in zip(*(column.tolist() for column in self.reported), strict=True)]
        logprobs = [_report(row, *w) if w.num_top >= 0 else None for row, w in zip(rows, self.wanted, strict=False)]
        prompts, start = [], self.num_ids
        for size, k in self.scored:
            prompts.append([_report(row, k, []) for row in rows[start : start + size]])
            start += size
        return logprobs, prompts

    def _hidden_states(self) -> list[bytes]:
        if self.hidden is None:
            return []
        rows = self.hidden.float().numpy().astype("<f4")
        return [rows[i - self.embeds[0]].tobytes() for i in self.embeds]


def _report(row: list[Any], k: int, ids: list[int]) -> Logprobs:
    logprob, rank, top_logprobs, top_ids, *named = row
    found = dict(zip(top_ids[:k], top_logprobs[:k], strict=True)) | dict(zip(ids, named, strict=False))
    return Logprobs(logprob, rank, list(found), list(found.values()))
