"""Equivalences: two ways through the engine of one device must give the same, but for noise (check X).

Ids drawn and log-probabilities are compared, of requests through the whole engine. Where texts part at a near tie, what
follows is not compared.

Legend: N texts, R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.case import Finding
from conformance.engine.measure import FLIP_TIMES, Distance, near_each_other, ratio
from conformance.engine.rig import Rig
from conformance.engine.served import Answer, serve

Prompt = list[int]


@dataclass
class Pair:
    """Answers to prompts in two ways; `claims` are findings about whether the second way was taken."""

    prompts: list[Prompt]
    one: list[Answer]
    other: list[Answer]
    claims: tuple[Finding, ...] = ()


def _took(way: str, times: int) -> Finding:
    return Finding("X", way, 0.0 if times else float("inf"), f"{times} at least")


def _chunks(rig: Rig) -> Pair:
    """Prompts cut into steps of some tokens, and as few steps as may be."""
    plan = rig.assembly.plan
    page = plan.page_tokens
    chunk = {"one": 1, "page-1": max(1, page - 1), "page": page, "page+1": page + 1}[rig.case["chunk"]]
    # A prompt that is scored goes in steps of as many tokens as there are logit rows.
    return _options(rig, {}, {"max_num_batched_tokens": chunk}, prompts=plan.max_num_seqs >= rig.length)


def _prefix(rig: Rig) -> Pair:
    """Prompts whose beginnings are cached, in part and then whole, and computed anew."""
    cold = serve(rig.config(enable_prefix_caching=False), rig.alone, rig.drawn)
    kin = [[prompt[: len(prompt) * 3 // 4] + prompt[:9]] for prompt in rig.prompts]
    warm = serve(rig.config(), [*kin, *rig.alone, *rig.alone], rig.drawn)
    again = warm.answers[len(kin) :]
    cached = min(answer.num_cached for answer in again[len(kin) :])  # the last ones come whole, not only in part
    return Pair(rig.prompts * 2, cold.answers * 2, again, (_took("cached tokens", cached),))


def _preempt(rig: Rig) -> Pair:
    """Sequences that lose their pages when these run out, and start over; pages suffice for the prompts alone."""
    page = rig.assembly.plan.page_tokens
    pages_each = max(1, rig.length // page)
    prompts = [prompt[: pages_each * page - 2] for prompt in rig.prompts]
    num_pages = len(prompts) * pages_each + 1
    alone = serve(rig.config(), [[prompt] for prompt in prompts], rig.drawn)
    scarce = rig.config(enable_prefix_caching=rig.case["cached"], num_kv_blocks=num_pages)
    crowded = serve(scarce, [prompts], rig.drawn)
    return Pair(prompts, alone.answers, crowded.answers, (_took("preemptions", crowded.num_preemptions),))


def _batch(rig: Rig) -> Pair:
    """One after the other, and all together."""
    one, other = (serve(rig.config(), waves, rig.drawn, prompts=True) for waves in (rig.alone, [rig.prompts]))
    return Pair(rig.prompts, one.answers, other.answers)


def _positions(rig: Rig) -> Pair:
    """All together, in two orders."""
    orders = rig.prompts, rig.prompts[::-1]
    one, other = (serve(rig.config(), [prompts], rig.drawn, prompts=True) for prompts in orders)
    return Pair(rig.prompts, one.answers, other.answers[::-1])


def _depth(rig: Rig) -> Pair:
    """Steps that are planned when the one before has ended, and while it runs."""
    return _options(rig, {"pipeline_depth": 0}, {"pipeline_depth": 1})


def _ranks(rig: Rig) -> Pair:
    """Layers on one device, and split over two."""
    return _options(rig, {}, {"tensor_parallel_size": 2})


def _drafts(rig: Rig) -> Pair:
    """One id after the other, and with drafts: right ones and wrong ones."""
    one, other = (serve(rig.config(speculative=drafter), [rig.prompts], rig.drawn) for drafter in (None, "ngram:3"))
    took = _took("right drafts", other.num_right_drafts), _took("wrong drafts", other.num_wrong_drafts)
    return Pair(rig.prompts, one.answers, other.answers, took)


def _options(rig: Rig, *options: dict[str, Any], prompts: bool = True) -> Pair:
    one, other = (serve(rig.config(**more), [rig.prompts], rig.drawn, prompts=prompts) for more in options)
    return Pair(rig.prompts, one.answers, other.answers)


WAYS: dict[str, Callable[[Rig], Pair]] = {
    "chunks": _chunks,
    "prefix": _prefix,
    "preempt": _preempt,
    "batch": _batch,
    "positions": _positions,
    "depth": _depth,
    "ranks": _ranks,
    "drafts": _drafts,
}


def equal(rig: Rig) -> list[Finding]:
    """Takes both ways of the case's family, and compares."""
    pair = WAYS[rig.case.family](rig)
    noise = rig.noise_of_prompts()
    parted = [_parting(*answers) for answers in zip(pair.one, pair.other, strict=True)]
    found = [*pair.claims, _near_ties(rig, pair, parted, noise)]
    for output, ends in (("logprobs", parted), ("prompt_logprobs", [None] * len(parted))):
        one_R, other_R = (
            torch.tensor([x for a, end in zip(answers, ends, strict=True) for x in getattr(a, output)[:end]])
            for answers in (pair.one, pair.other)
        )
        if len(one_R):
            found += near_each_other(output, one_R, other_R, noise)
    return found


def _parting(one: Answer, other: Answer) -> int | None:
    """Where ids differ first; None where they do not."""
    pairs = zip(one.ids, other.ids, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def _near_ties(rig: Rig, pair: Pair, parted: list[int | None], noise: Distance) -> Finding:
    """Where texts part, the reference must find both ids as likely, but for noise."""
    margins = [0.0]
    for prompt, one, other, end in zip(pair.prompts, pair.one, pair.other, parted, strict=True):
        if end is not None:
            ids = torch.tensor([[*prompt, *one.ids[: end + 1]]])
            logits_V = rig.reference(ids, ids.shape[1] - 2)[0, 0]
            margins.append(abs(float(logits_V[one.ids[end]] - logits_V[other.ids[end]])))
    detail = f"{len(margins) - 1} of {len(parted)} texts part, margin up to {max(margins):.3g}, noise {noise.logit:.3g}"
    return Finding("X", "ids", ratio(max(margins), FLIP_TIMES * noise.logit), detail)
