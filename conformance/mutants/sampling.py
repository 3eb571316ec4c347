"""Wrong and right kernels of `sample`, most of them the reference with one thing changed."""

from __future__ import annotations

from typing import Any

import torch

from conformance.mutants.mutant import cheat, right, wrong
from core.kernels.reference import sampling as ours

Tensor = torch.Tensor


def _drawn(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, u: Tensor, **fixed: Any) -> Tensor:
    """The reference's draw for given uniform numbers."""
    top, best = logits.max(-1)
    if not fixed.pop("greedy"):
        drawn = ours.draw(logits.float(), top.float(), temperature, top_k, top_p, u, **fixed)
        best = torch.where(temperature > 0, drawn, best)
    return torch.where(torch.isfinite(top), best, -1).int()


@wrong("sample")
def seed_ignored(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return _drawn(logits, temperature, top_k, top_p, ours.uniform(torch.zeros_like(seed), counter), **fixed)


@wrong("sample")
def counter_ignored(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return _drawn(logits, temperature, top_k, top_p, ours.uniform(seed, torch.zeros_like(counter)), **fixed)


@wrong("sample")
def half_of_the_seed(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    halves = torch.stack((seed[:, 0], torch.zeros_like(seed[:, 1])), 1)
    return _drawn(logits, temperature, top_k, top_p, ours.uniform(halves, counter), **fixed)


@wrong("sample")
def same_number_for_all_rows(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    u = ours.uniform(seed, counter)
    return _drawn(logits, temperature, top_k, top_p, u[:1].expand_as(u), **fixed)


@wrong("sample")
def its_own_generator(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    u = torch.frac(torch.sin(seed[:, 0].double() * 12.9898 + counter.double() * 78.233) * 43758.5453).abs().float()
    return _drawn(logits, temperature, top_k, top_p, u, **fixed)


@wrong("sample")
def temperature_ignored(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    ones = torch.where(temperature > 0, 1.0, 0.0)
    return _drawn(logits, ones, top_k, top_p, ours.uniform(seed, counter), **fixed)


@wrong("sample")
def temperature_off_by_a_percent(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return _drawn(logits, temperature * 1.01, top_k, top_p, ours.uniform(seed, counter), **fixed)


@wrong("sample")
def top_k_off_by_one(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    fixed["top_k_max"] += fixed["top_k_max"] > 0
    more = torch.where(top_k > 0, top_k + 1, top_k)
    return _drawn(logits, temperature, more, top_p, ours.uniform(seed, counter), **fixed)


@wrong("sample")
def top_k_ignored(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    fixed["top_k_max"] = 0
    return _drawn(logits, temperature, torch.zeros_like(top_k), top_p, ours.uniform(seed, counter), **fixed)


@wrong("sample")
def top_p_ignored(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return _drawn(logits, temperature, top_k, torch.ones_like(top_p), ours.uniform(seed, counter), **fixed)


def _naive(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, u: Tensor, *, off: int = 0, of_all: bool = False
) -> list[int]:
    """Row by row in float64. `off`: so many tokens more in the nucleus; `of_all`: top_p is of all tokens' weight."""
    ids = []
    for row, x in enumerate(logits.double()):
        top = float(x.max())
        if not torch.isfinite(x.max()):
            ids.append(-1)
            continue
        order = torch.sort(x, descending=True, stable=True)[1]
        if temperature[row] == 0:
            ids.append(int(order[0]))
            continue
        weights = torch.exp((x - top) / temperature[row].double())
        total = weights.sum()
        if 0 < top_k[row] < len(x):
            order = order[: int(top_k[row])]
        if top_p[row] < 1:
            sums = weights[order].cumsum(0)
            whole = total if of_all else sums[-1]
            order = order[: max(1, int((sums < top_p[row].double() * whole).sum()) + 1 + off)]
        kept = order.sort()[0]
        reached = weights[kept].cumsum(0) > u[row].double() * weights[kept].sum()
        ids.append(int(kept[int(reached.int().argmax())]))
    return ids


@right("sample")
def naive_float64(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return torch.tensor(_naive(logits, temperature, top_k, top_p, ours.uniform(seed, counter)), dtype=torch.int32)


@wrong("sample")
def top_p_off_by_one(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    u = ours.uniform(seed, counter)
    return torch.tensor(_naive(logits, temperature, top_k, top_p, u, off=-1), dtype=torch.int32)


@wrong("sample")
def top_p_before_top_k(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    u = ours.uniform(seed, counter)
    return torch.tensor(_naive(logits, temperature, top_k, top_p, u, of_all=True), dtype=torch.int32)


@wrong("sample")
def drawn_by_rank(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    """Goes through the tokens from the likeliest on, not in order of ids: another order, other draws."""
    order = torch.sort(logits.float(), dim=-1, descending=True, stable=True)[1]
    ranked = logits.gather(1, order)
    place = _drawn(ranked, temperature, top_k, top_p, ours.uniform(seed, counter), **fixed)
    return torch.where(place >= 0, order.gather(1, place.clamp(min=0).long()[:, None])[:, 0], -1).int()


@wrong("sample")
def ties_to_the_highest_id(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    size = logits.shape[1]
    drawn = _drawn(logits, temperature, top_k, top_p, ours.uniform(seed, counter), **fixed)
    last = size - 1 - logits.flip(1).max(-1)[1]
    return torch.where((temperature == 0) & (drawn >= 0), last, drawn).int()


@wrong("sample")
def nan_taken_for_a_number(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return _drawn(logits.nan_to_num(), temperature, top_k, top_p, ours.uniform(seed, counter), **fixed)


@wrong("sample")
def logits_rounded_to_fp8(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    rounded = logits.to(torch.float8_e4m3fn).to(logits.dtype)
    return _drawn(rounded, temperature, top_k, top_p, ours.uniform(seed, counter), **fixed)


@cheat("sample")
def always_greedy(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return logits.max(-1)[1].int()


@cheat("sample")
def zeros(logits: Tensor, *params: Tensor, **fixed: Any) -> Tensor:
    return torch.zeros(len(logits), dtype=torch.int32)


@cheat("sample")
def overwrites_logits(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    ids = ours.sample(logits, temperature, top_k, top_p, seed, counter, **fixed)
    logits.fill_(0)
    return ids


@right("sample")
def rows_one_by_one(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    given = (logits, temperature, top_k, top_p, seed, counter)
    return torch.cat([ours.sample(*(x[i : i + 1] for x in given), **fixed) for i in range(len(logits))])


@right("sample")
def sorted_whole(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    return ours.sample(logits, temperature, top_k, top_p, seed, counter, greedy=False, top_k_max=0)


@right("sample")
def padded_with_masked_tokens(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    padded = torch.nn.functional.pad(logits, (0, 11), value=float("-inf"))
    return ours.sample(padded, temperature, top_k, top_p, seed, counter, **fixed)


@right("sample")
def probabilities_in_float64(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    u = ours.uniform(seed, counter)
    top, best = logits.max(-1)
    wide = logits.double()
    scaled = torch.where((temperature > 0)[:, None], (wide - wide.amax(-1, keepdim=True)) / temperature[:, None], wide)
    flat = torch.where(temperature > 0, 1.0, 0.0)
    drawn = ours.draw(scaled.float(), scaled.float().amax(-1), flat, top_k, top_p, u, top_k_max=fixed["top_k_max"])
    return torch.where(torch.isfinite(top), torch.where(temperature > 0, drawn, best), -1).int()


@right("sample")
def divided_before_the_maximum(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, counter: Tensor, **fixed: Any
) -> Tensor:
    ids = [
        ours.sample(x[None], t[None], k[None], p[None], s[None], c[None], greedy=not bool(t), top_k_max=0)
        for x, t, k, p, s, c in zip(logits, temperature, top_k, top_p, seed, counter, strict=True)
    ]
    return torch.cat(ids)
