"""How far logits are from the reference's, and what of that a device may be.

Every bound is relative to noise: how far our own engine on the cpu device is, with the reference kernels, in the dtype
of the device and with its KV entries rounded as coarsely as the device declares. No record of the GPU path exists yet;
when one does, its noise takes the place of ours. In float32 the cpu device is the reference and passes as such: what
vouches for it are the cases of its kernels.

Legend: R rows (positions of all texts), V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance.bounds import SIGMAS
from conformance.case import Finding

KL_TIMES, KL_FLOOR = 1.5, 1e-4
SAME_TOP_LESS = 0.005
LOG_PERPLEXITY = 1e-3
FLIP_TIMES = 4.0
"""KL and logarithms in nats. To what is a mean over rows comes what chance adds: SIGMAS standard errors."""

TAIL, TAIL_TIMES, MIN_ROWS_FOR_TAIL = 0.99, 2.0, 1000
"""The tail is the hundredth part of all rows. The thousandth is three rows of 3,000, and differs by more than 2 times
between right kernels (measured, 30 seeds); the hundredth by 1.6 times."""

RMS_TIMES = 3.0
"""Rms errors of all logits differ by 1.2 times between right kernels (measured). This alone is narrow in float32, where
the floor of KL is far above the noise; and alone it tells KV entries that are coarser than declared."""

SAME_TIMES, SAME_MOST_TIMES, SAME_FLOOR = 2.0, 4.0, 1e-4
"""Log-probabilities of two ways through one engine may differ by so many times the noise, rms and at most, in nats.
Two ways whose errors are independent differ by 1.4 times the noise; greatest errors scatter more."""

_ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class Distance:
    """Of logits from the reference's.

    kl_R        KL(reference, these) in nats
    same_top    part of rows with the same likeliest token
    gains_R     log-probability of the token that follows, less that by the reference
    logit       greatest error of a logit
    rms         of the errors of all logits
    """

    kl_R: torch.Tensor
    same_top: float
    gains_R: torch.Tensor
    logit: float
    rms: float

    @property
    def mean(self) -> float:
        return self.kl_R.mean().item()

    @property
    def tail(self) -> float:
        return self.kl_R.quantile(TAIL).item()


def distance(logits_RV: torch.Tensor, reference_RV: torch.Tensor, following_R: torch.Tensor) -> Distance:
    """Over the whole vocabulary, in float64."""
    parts = []
    pieces = (torch.split(x, _ROWS_AT_A_TIME) for x in (logits_RV, reference_RV, following_R))
    for found, wanted, following in zip(*pieces, strict=True):
        p, q = wanted.double().log_softmax(-1), found.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1)
        gains = (q - p).gather(-1, following[:, None])[:, 0]
        error = found.double() - wanted.double()
        same = (found.argmax(-1) == wanted.argmax(-1)).double()
        parts.append((kl, same, gains, error.abs().amax(-1), error.square().mean(-1)))
    kl_R, same_R, gains_R, most_R, square_R = (torch.cat(column) for column in zip(*parts, strict=True))
    return Distance(kl_R, same_R.mean().item(), gains_R, most_R.max().item(), math.sqrt(square_R.mean().item()))


def ratio(measured: float, allowed: float) -> float:
    """Infinite for what is not a number, and where nothing is allowed."""
    if measured == 0:
        return 0.0
    found = measured / allowed if allowed > 0 else math.inf
    return math.inf if math.isnan(found) else found


def near_reference(found: Distance, noise: Distance) -> list[Finding]:
    """Check M: the distance of a device beside the noise."""
    rows = len(found.kl_R)
    mean = KL_TIMES * noise.mean + KL_FLOOR + SIGMAS * _error(noise.kl_R)
    missed, may_miss = 1 - found.same_top, 1 - noise.same_top + SAME_TOP_LESS
    may_miss += SIGMAS * math.sqrt(may_miss * (1 - may_miss) / rows)
    gain, may_gain = found.gains_R.mean().item(), LOG_PERPLEXITY + SIGMAS * _error(noise.gains_R)
    checks = [
        Finding("M", "mean KL", ratio(found.mean, mean), f"{found.mean:.3g} nats, noise {noise.mean:.3g}"),
        Finding("M", "logits", ratio(found.rms, RMS_TIMES * noise.rms), f"rms {found.rms:.3g}, noise {noise.rms:.3g}"),
        Finding("M", "same top", ratio(missed, may_miss), f"{found.same_top:.2%}, noise {noise.same_top:.2%}"),
        Finding("M", "perplexity", ratio(abs(gain), may_gain), f"ln of the ratio {-gain:.3g}, may be {may_gain:.3g}"),
    ]
    if rows >= MIN_ROWS_FOR_TAIL:
        tail = ratio(found.tail, TAIL_TIMES * noise.tail + KL_FLOOR)
        checks.append(Finding("M", "tail of KL", tail, f"{found.tail:.3g} nats, noise {noise.tail:.3g}"))
    return checks


def _error(x_R: torch.Tensor) -> float:
    """Standard error of the mean."""
    return x_R.std().item() / math.sqrt(len(x_R))


def near_each_other(output: str, first_R: torch.Tensor, second_R: torch.Tensor, noise: Distance) -> list[Finding]:
    """Check X: log-probabilities of the same tokens, computed in two ways."""
    both = [_rms_and_most(x_R) for x_R in (first_R.double() - second_R.double(), noise.gains_R)]
    found = []
    for which, times, apart, usual in zip(("rms", "most"), (SAME_TIMES, SAME_MOST_TIMES), *both, strict=True):
        detail = f"{apart:.3g} nats, noise {usual:.3g}"
        found.append(Finding("X", f"{output}, {which}", ratio(apart, times * usual + SAME_FLOOR), detail))
    return found


def _rms_and_most(x_R: torch.Tensor) -> tuple[float, float]:
    return x_R.square().mean().sqrt().item(), x_R.abs().max().item()


def flips(drawn_R: torch.Tensor, reference_RV: torch.Tensor, noise: Distance) -> Finding:
    """Tokens drawn instead of the reference's likeliest must be as likely, but for noise (check M)."""
    top_R = reference_RV.amax(-1)
    margins_R = top_R - reference_RV.gather(-1, drawn_R[:, None])[:, 0]
    worst = margins_R.max().item()
    detail = f"{int((margins_R > 0).sum())} of {len(drawn_R)}, margin up to {worst:.3g}, noise {noise.logit:.3g}"
    return Finding("M", "greedy flips", ratio(worst, FLIP_TIMES * noise.logit), detail)
