"""Cases of attention, and those that attention's kernels answer: softmax, and writing to a cache.

Two ways to lay attention out:
whole   a sequence as it is: its queries are its last tokens. The kernel knows who sees what: causal, window, length
single  every query is a sequence of its own, which has just the entries that the query may see, as in decoding. So it
        is where masks decide, or where queries see what comes after them

A mask that adds numbers to scores is one more dimension of heads: the mask in keys, 1 / scale in queries.

Legend: B sequences, H query heads, Hkv key heads, Q queries, L keys, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from conformance.onnx_cases.load import OnnxCase
from conformance.onnx_cases.sequences import Sequence, Step, append, attend, paged_needs
from conformance.onnx_cases.stand import Adapter, Outputs, Stand, only
from core.plugin.facts import Need

_CAUSAL_GRAPH, _SOFTCAP_GRAPH = "score_mod_causal_mask", "score_mod_soft_cap"
"""Names of FlexAttention's `score_mod` graphs that are what the row has."""


@dataclass(frozen=True)
class _Asked:
    """What a case asks, in one form. q [B, H, Q, D]; k, v [B, Hkv, L, .], what was cached before included.

    offsets   per sequence, how many keys come before its first query
    lens      per sequence, how many keys are there
    left, right   of the window; -1: no limit
    mask      [B, H or 1, Q, L], bool or to be added; None: there is none
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    offsets: list[int]
    lens: list[int]
    scale: float
    causal: bool
    left: int
    right: int
    softcap: float | None
    mask: torch.Tensor | None


def _heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, H, L, D] of [B, L, H * D], or of what is that already."""
    return x if x.dim() == 4 else x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def _ask(case: OnnxCase) -> _Asked:
    have, inputs = case.attributes, case.inputs
    q = _heads(inputs["Q"], have.get("q_num_heads", 0))
    k, v = (_heads(inputs[name], have.get("kv_num_heads", 0)) for name in ("K", "V"))
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k, v = torch.cat((inputs["past_key"], k), 2), torch.cat((inputs["past_value"], v), 2)
    lens, offsets = [k.shape[2]] * len(q), [past] * len(q)
    if "nonpad_kv_seqlen" in inputs:
        lens = inputs["nonpad_kv_seqlen"].tolist()
        offsets = [n - q.shape[2] for n in lens]
    graph = have.get("score_mod")
    softcap = have.get("softcap", 0.0)
    if graph is not None and graph.name == _SOFTCAP_GRAPH:
        (softcap,) = graph.initializer[0].float_data
    return _Asked(
        q=q,
        k=k,
        v=v,
        offsets=offsets,
        lens=lens,
        scale=have.get("scale", 1 / math.sqrt(q.shape[3])),
        causal=bool(have.get("is_causal")) or (graph is not None and graph.name == _CAUSAL_GRAPH),
        left=have.get("left_window_size", -1),
        right=have.get("right_window_size", -1),
        softcap=softcap or None,
        mask=_mask(inputs.get("attn_mask"), q, k.shape[2]),
    )


def _mask(mask: torch.Tensor | None, q: torch.Tensor, num_keys: int) -> torch.Tensor | None:
    """[B, H or 1, Q, L]: a short mask hides the rest."""
    if mask is None:
        return None
    hidden = False if mask.dtype == torch.bool else float("-inf")
    mask = F.pad(mask, (0, num_keys - mask.shape[-1]), value=hidden)
    by_head = mask.dim() > 2 and mask.shape[-3] > 1
    return mask.expand(len(q), q.shape[1] if by_head else 1, q.shape[2], num_keys)


def _whole(case: OnnxCase) -> Step:
    asked = _ask(case)
    num_queries = asked.q.shape[2]
    sequences = []
    for b, offset in enumerate(asked.offsets):
        unseeing = max(0, -offset)  # queries before the first key
        tokens = list(range(b * num_queries + unseeing, (b + 1) * num_queries))
        k, v = (x[b, :, : offset + num_queries].transpose(0, 1) for x in (asked.k, asked.v))
        sequences.append(Sequence(tokens, k, v))
    window = None if asked.left < 0 else asked.left + 1
    return Step(asked.q.transpose(1, 2).flatten(0, 1), sequences, asked.scale, window, asked.softcap)


def _single(case: OnnxCase) -> Step:
    """Where masks differ by head, also every head is a sequence of its own."""
    asked = _ask(case)
    q, k, v, mask = asked.q, asked.k, asked.v, asked.mask
    num_keys = k.shape[2]
    if mask is not None and mask.shape[1] > 1:
        group = q.shape[1] // k.shape[1]
        q, k, v, mask = (x.flatten(0, 1)[:, None] for x in (q, *_repeated(k, v, group), mask))
    added = None
    if mask is not None and mask.dtype != torch.bool:
        added, mask = mask, mask > float("-inf")
        q = F.pad(q, (0, 1), value=1 / asked.scale)
    heads_apart = len(q) // len(asked.q)
    sequences = []
    for b in range(len(q)):
        for i in range(q.shape[2]):
            seen = _seen(asked, b // heads_apart, i, num_keys)
            if mask is not None:
                seen &= mask[b, 0, i]
            keys, values = (x[b, :, seen].transpose(0, 1) for x in (k, v))
            if added is not None:
                column = added[b, 0, i, seen].to(q.dtype)
                keys = torch.cat((keys, column[:, None, None].expand(-1, keys.shape[1], 1)), -1)
            if len(keys):
                sequences.append(Sequence([b * q.shape[2] + i], keys, values))
    return Step(q.transpose(1, 2).flatten(0, 1), sequences, asked.scale, softcap=asked.softcap)


def _repeated(k: torch.Tensor, v: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def _seen(asked: _Asked, b: int, i: int, num_keys: int) -> torch.Tensor:
    """bool [L]: which keys query i of sequence b sees, before any mask."""
    keys, position = torch.arange(num_keys), asked.offsets[b] + i
    seen = keys < asked.lens[b]
    if asked.causal:
        seen &= keys <= position
    if asked.left >= 0:
        seen &= keys >= position - asked.left
    if asked.right >= 0:
        seen &= keys <= position + asked.right
    return seen


def _answer(case: OnnxCase, stand: Stand, step: Step) -> Outputs:
    """Y, and the cache with what was appended to it."""
    asked = _ask(case)
    num_seqs, num_heads, num_queries = asked.q.shape[:3]
    o = attend(step, stand)
    if o.shape[1] == num_heads:
        y = o.view(num_seqs, num_queries, num_heads, -1).transpose(1, 2)
    else:
        y = o.view(num_seqs, num_heads, num_queries, -1)
    outputs = {"Y": y if case.inputs["Q"].dim() == 4 else y.transpose(1, 2).flatten(2)}
    if "present_key" in case.outputs:
        past = tuple(case.inputs[name].transpose(1, 2) for name in ("past_key", "past_value"))
        first = past[0].shape[1]
        added = tuple(x[:, :, first:].transpose(1, 2) for x in (asked.k, asked.v))
        places = [list(range(first, asked.k.shape[2]))] * num_seqs
        present = append(stand, (past[0], past[1]), (added[0], added[1]), places)
        outputs |= zip(("present_key", "present_value"), (x.transpose(1, 2) for x in present), strict=True)
    return outputs


def _whole_needs(case: OnnxCase) -> Iterator[Need]:
    return _whole(case).needs()


def _single_needs(case: OnnxCase) -> Iterator[Need]:
    return _single(case).needs()


def _attend_whole(case: OnnxCase, stand: Stand) -> Outputs:
    return _answer(case, stand, _whole(case))


def _attend_single(case: OnnxCase, stand: Stand) -> Outputs:
    return _answer(case, stand, _single(case))


def _softmax_step(case: OnnxCase) -> Step:
    """Every row is one query: 1, of keys that are the row's numbers and values that are unit vectors."""
    x = case.inputs["x"].movedim(case.attributes.get("axis", -1), -1)
    rows = x.reshape(-1, x.shape[-1])
    units = torch.eye(rows.shape[1], dtype=x.dtype)[:, None]
    sequences = [Sequence([i], row[:, None, None], units) for i, row in enumerate(rows)]
    return Step(torch.ones((len(rows), 1, 1), dtype=x.dtype), sequences, scale=1.0)


def _softmax_needs(case: OnnxCase) -> Iterator[Need]:
    return _softmax_step(case).needs()


def _softmax(case: OnnxCase, stand: Stand) -> Outputs:
    axis = case.attributes.get("axis", -1)
    shape = case.inputs["x"].movedim(axis, -1).shape
    return only(case, attend(_softmax_step(case), stand).reshape(shape).movedim(-1, axis))


def _caches(case: OnnxCase) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache and what is written, both [B, L, H, D]."""
    found = (case.inputs[name] for name in ("past_cache", "update"))
    past, update = (x[:, :, None] if x.dim() == 3 else x.transpose(1, 2) for x in found)
    return past, update


def _cache_needs(case: OnnxCase) -> Iterator[Need]:
    past, update = _caches(case)
    return paged_needs(past.dtype, past.shape[3], len(past), max(past.shape[:2].numel(), update.shape[:2].numel()))


def _tensor_scatter(case: OnnxCase, stand: Stand) -> Outputs:
    """A circular cache has its positions a second time."""
    past, update = _caches(case)
    places = list(range(past.shape[1])) * 2
    starts = case.inputs["write_indices"].tolist()
    at = [places[first : first + update.shape[1]] for first in starts]
    k, _ = append(stand, (past, past), (update, update), at)
    return only(case, k[:, :, 0] if case.inputs["past_cache"].dim() == 3 else k.transpose(1, 2))


WHOLE = Adapter("attn_paged", "whole sequences", _attend_whole, _whole_needs)
SINGLE = Adapter("attn_paged", "each query a sequence of what it sees", _attend_single, _single_needs)
ADDED = Adapter("attn_paged", "likewise, the mask a further dimension", _attend_single, _single_needs)
SOFTMAX = Adapter("attn_paged", "values are unit vectors", _softmax, _softmax_needs)
TENSOR_SCATTER = Adapter("kv_write", "into a pool, read back by kv_gather", _tensor_scatter, _cache_needs)
