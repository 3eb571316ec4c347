"""Families "compiled" and "invariant": steps made by hand, in two ways, logits beside logits.

Legend: N texts, L tokens of each, R rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.case import Finding
from conformance.engine.forced import Forced
from conformance.engine.measure import near_each_other
from conformance.engine.rig import Rig
from conformance.judge import raw, same_bits

NUM_STEPS = 6
"""Of one token of each text, at the ends of texts."""

Logits = tuple[torch.Tensor, torch.Tensor]


def compiled(rig: Rig) -> list[Finding]:
    """Steps as the device compiles them, and as they are (check X)."""
    following_R = rig.ids[:, -NUM_STEPS:].flatten()

    def logprobs(eager: bool) -> torch.Tensor:
        logits_RV = _together(rig.forced(eager=eager), rig.ids).flatten(0, 1)
        return logits_RV.double().log_softmax(-1).gather(-1, following_R[:, None])[:, 0]

    return near_each_other("logprobs", logprobs(eager=True), logprobs(eager=False), rig.noise_of_prompts())


def invariant(rig: Rig) -> list[Finding]:
    """Bits of logits in the batch-invariant mode (check D), and how many rows differ without it: that is told only."""
    way = _INVARIANT[rig.case["way"]]
    found = [same_bits("logits", *way(rig.forced(batch_invariant=True), rig.ids))]
    one, other = way(rig.forced(), rig.ids)
    different_R = (raw(one) != raw(other)).any(-1).reshape(-1)
    detail = f"{int(different_R.sum())} of {len(different_R)} rows differ without the mode"
    return [*found, Finding("X", "control", 0.0, detail)]


def _together(forced: Forced, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the last steps, all texts in each of them: [N, NUM_STEPS, V]."""
    forced.forget()
    added = [forced.add(row) for row in ids]
    for text in added:
        forced.fill(text, ids.shape[1] - 1 - NUM_STEPS)
    return forced.together(added)


def _batch(forced: Forced, ids: torch.Tensor) -> Logits:
    return torch.cat([_together(forced, ids[i : i + 1]) for i in range(len(ids))]), _together(forced, ids)


def _positions(forced: Forced, ids: torch.Tensor) -> Logits:
    return _together(forced, ids), _together(forced, ids.flip(0)).flip(0)


def _chunks(forced: Forced, ids: torch.Tensor) -> Logits:
    """Logits after every token, with the longest steps there are, and with steps that do not end with pages."""
    longest = forced.by_chunks(forced.add(ids[0]), len(ids[0]))
    return longest, forced.by_chunks(forced.add(ids[0]), forced.page_tokens + 1)


def _prefix(forced: Forced, ids: torch.Tensor) -> Logits:
    """Logits after the tokens that follow a shared beginning, and after the same tokens computed from the start."""
    num_pages = len(ids[0]) // 2 // forced.page_tokens or 1
    cold = forced.add(ids[0])
    logits = forced.by_chunks(cold, len(ids[0]))
    warm = forced.by_chunks(forced.add(ids[0], cold, num_pages), len(ids[0]))
    return logits[len(logits) - len(warm) :], warm


_INVARIANT: dict[str, Callable[[Forced, torch.Tensor], Logits]] = {
    "batch": _batch,
    "positions": _positions,
    "chunks": _chunks,
    "prefix": _prefix,
}
