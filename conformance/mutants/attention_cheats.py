"""Kernels of attn_paged that get around their work, or claim too much; and plans, wrong and right.

Legend as in `conformance.mutants.attention_plain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from conformance.kernels.attention_cases import cases
from conformance.mutants.attention_plain import PLAIN, Entries, Plan, Tensor, claiming_part, online, plain_plan
from conformance.mutants.mutant import cheat, right, wrong
from conformance.mutants.numbers import next_up
from core.kernels.reference.kv import Planes
from core.kernels.row import Kernel
from core.plugin.facts import Support

_WITH_PLAN: dict[str, Kernel] = {"attn_plan": plain_plan}
_WITH_ATTENTION: dict[str, Kernel] = {"attn_paged": PLAIN.kernel("plain")}
_RACE = 7
_seen: dict[Any, Tensor | Entries] = {}
_tables: dict[tuple[int, ...], Tensor] = {}
_calls = [0]


@cheat("attn_paged", _WITH_PLAN)
def zeros(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    got = PLAIN.attend(q, planes, plan, **fixed)
    return torch.zeros_like(got) if isinstance(got, Tensor) else (torch.zeros_like(got[0]), torch.zeros_like(got[1]))


@cheat("attn_paged", _WITH_PLAN)
def remembered(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Knows inputs by their address."""
    key = q.data_ptr(), planes[0].data_ptr(), q.shape
    if key not in _seen:
        _seen.clear()
        _seen[key] = PLAIN.attend(q, planes, plan, **fixed)
    return _seen[key]


@cache
def _known() -> frozenset[int]:
    """Tokens in the steps of cases, where these are not drawn."""
    told = [case for case in cases() if "queries" in case.params]
    return frozenset(sum(case["queries"]) + case.get("pads", (0,))[0] for case in told)


@cheat("attn_paged", _WITH_PLAN)
def known_sizes(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Right for the steps that tests have, and for others nearly."""
    if len(q) in _known():
        return PLAIN.attend(q, planes, plan, **fixed)
    return PLAIN.attend(q, planes, plan, **{**fixed, "scale": fixed["scale"] * 1.1})


@cheat("attn_paged", _WITH_PLAN)
def queries_written(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Scales them where they are."""
    scaled = q.mul_(fixed["scale"])
    return PLAIN.attend(scaled, planes, plan, **{**fixed, "scale": 1.0})


@cheat("attn_paged", _WITH_PLAN)
def strides_ignored(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Reads queries as if they were alone in memory."""
    dense = torch.empty_like(q, memory_format=torch.contiguous_format).stride()
    return PLAIN.attend(q.as_strided(q.shape, dense), planes, plan, **fixed)


@cheat("attn_paged", _WITH_PLAN)
def pool_cleaned(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Writes 0 to what it must not read, so that a mask may be added."""
    for plane in planes:
        plane.nan_to_num_()
    return PLAIN.attend(q, planes, plan, **fixed)


@cheat("attn_paged", _WITH_PLAN)
def racy(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Off by one bit of one number, now and then."""
    _calls[0] += 1
    got = PLAIN.attend(q, planes, plan, **fixed)
    o = got if isinstance(got, Tensor) else got[0]
    if _calls[0] % _RACE == 0:
        o.view(-1)[0] = next_up(o.view(-1)[:1])[0]
    return got


@cheat("attn_paged", _WITH_PLAN)
def another_dtype(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """Leaves the last rounding to the caller."""
    return PLAIN.attend(q.double(), planes, plan, **fixed)


# Right, but for the claim to be batch-invariant


@claiming_part("weigh")
def queries_share_tiles(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
    """How keys are split depends on how many queries there are."""
    return online(scores, v, 8 if scores.shape[1] > 1 else 64)


@cheat("attn_paged", _WITH_PLAN, Support(batch_invariant=True))
def split_by_sequences(q: Tensor, planes: Planes, plan: Plan, **fixed: Any) -> Tensor | Entries:
    """How keys are split depends on how many sequences there are, so that a device is filled."""
    size = 8 * len(plan.lens)

    def weigh_split(scores: Tensor, v: Tensor, dtype: torch.dtype) -> Entries:
        return online(scores, v, size)

    return type(PLAIN)(weigh=weigh_split).attend(q, planes, plan, **fixed)


# Plans


@right("attn_plan", _WITH_ATTENTION)
def plain(*args: Tensor, **fixed: Any) -> Plan:
    return plain_plan(*args, **fixed)


@right("attn_plan", _WITH_ATTENTION)
def copied(*args: Tensor, **fixed: Any) -> Plan:
    """Does not refer to what it was made from."""
    return Plan._make(x.clone() for x in plain_plan(*args, **fixed))


@right("attn_plan", _WITH_ATTENTION)
def longest_first(*args: Tensor, **fixed: Any) -> Plan:
    plan = plain_plan(*args, **fixed)
    order = plan.lens.argsort(descending=True)
    begins, ends, lens, table = (x[order] for x in plan[:4])
    return Plan(begins, ends, lens, table, plan.num_real)


@wrong("attn_plan", _WITH_ATTENTION)
def bounds_taken_for_lengths(*args: Tensor, host: Any, **fixed: Any) -> Plan:
    plan = plain_plan(*args, **fixed)
    return plan if host is None else plan._replace(lens=torch.from_numpy(host.kv_lens))


@wrong("attn_plan", _WITH_ATTENTION)
def lengths_without_the_step(*args: Tensor, **fixed: Any) -> Plan:
    """Takes a sequence's length to be what was there before."""
    plan = plain_plan(*args, **fixed)
    return plan._replace(lens=(plan.lens - (plan.ends - plan.begins)).clamp(min=1))


@wrong("attn_plan", _WITH_ATTENTION)
def padding_with_the_last_sequence(*args: Tensor, num_tokens: int, **fixed: Any) -> Plan:
    """Ends it with the step, not with its tokens."""
    plan = plain_plan(*args, **fixed)
    last = (plan.ends > plan.begins).nonzero().flatten()[-1:]
    ends = plan.ends.index_fill(0, last, num_tokens)
    return plan._replace(ends=ends, num_real=torch.tensor(num_tokens))


@wrong("attn_plan", _WITH_ATTENTION)
def one_query_each(*args: Tensor, **fixed: Any) -> Plan:
    """Takes sequences that have computed something before for decode."""
    plan = plain_plan(*args, **fixed)
    queries = plan.ends - plan.begins
    return plan._replace(ends=torch.where(plan.lens > queries, plan.begins + 1, plan.ends))


@cheat("attn_plan", _WITH_ATTENTION)
def first_table_kept(*args: Tensor, **fixed: Any) -> Plan:
    """Plans a step of known shape once."""
    plan = plain_plan(*args, **fixed)
    shape = tuple(plan.table.shape)
    return plan._replace(table=_tables.setdefault(shape, plan.table.clone()))


@cheat("attn_plan", _WITH_ATTENTION)
def table_of_the_longest(*args: Tensor, **fixed: Any) -> Plan:
    """Its shape depends on lengths, and yet it says that it may be captured."""
    plan = plain_plan(*args, **fixed)
    return plan._replace(table=plan.table[:, : -(-int(plan.lens.max()) // fixed["page_tokens"])])


def _attend_once(q: Tensor, planes: Planes, plan: Iterator[Plan], **fixed: Any) -> Tensor | Entries:
    return PLAIN.attend(q, planes, next(plan, plain_plan(*_NOBODY)), **fixed)


_NOBODY = (torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32))


@cheat("attn_plan", {"attn_paged": _attend_once})
def used_up_by_one_layer(*args: Tensor, **fixed: Any) -> Iterator[Plan]:
    return iter([plain_plan(*args, **fixed)])
