"""What tests of samplers share: parameters per row, the distribution by definition, and a statistical bound."""

import math

import torch


def params(rows, *, temperature=1.0, top_k=0, top_p=1.0, seed=(17, 4), counters=None):
    """The tensors that `sample` takes; a scalar stands for every row."""

    def fill(value, dtype):
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    return (
        fill(temperature, torch.float32),
        fill(top_k, torch.int32),
        fill(top_p, torch.float32),
        fill(seed, torch.int32),
        fill(list(range(rows)) if counters is None else counters, torch.int32),
    )


def oracle(row, temperature, top_k, top_p):
    """The probability of every token in float64: temperature, then top_k, then top_p on the renormalised rest."""
    top = max(row)
    weights = [math.exp((x - top) / temperature) for x in row]
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if top_k > 0:
        order = order[:top_k]
    total, reached, kept = math.fsum(weights[i] for i in order), 0.0, []
    for i in order:
        if reached >= top_p * total and kept:
            break
        reached += weights[i]
        kept.append(i)
    total = math.fsum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(row))]


def chi_square_limit(freedom):
    """What a chi-square statistic exceeds once in a million runs.

    Source: Wilson and Hilferty 1931 (a cube root of chi-square is nearly normal).
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4.753 * math.sqrt(spread)) ** 3
