"""Check F of attention: how its results for changed scenes relate; and that it leaves the pool alone.

A kernel may sum in another order where the step is another one, unless it claims to be batch-invariant. So results of
changed steps must be the same to the bit where that is claimed, and else within the bounds.

Legend as in `conformance.kernels.attention_scene`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from conformance.case import Case, Finding
from conformance.judge import judge, same_bits
from conformance.kernels.attention_expect import attend, expected
from conformance.kernels.attention_scene import Scene, Stage
from conformance.row_exam import Outputs
from conformance.target import Bench

_CHUNK = 7
"""Tokens of a sequence in each of the steps that it is cut into."""

Relation = Callable[[Scene, Outputs, Bench], list[Finding]]


def findings(case: Case, scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """Of the relation that the case's family is named after; none for other families."""
    relation = _RELATIONS.get(case.family)
    return relation(scene, outputs, bench) if relation else []


def _doubled(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """Twice the values give twice the result, to the bit, where the device stores twice the values."""
    twice = replace(scene, v=scene.v * 2)
    got = attend(twice, bench)
    if not got["stored_v"].nan_to_num().equal((outputs["stored_v"] * 2).nan_to_num()):
        return _within(twice, got, "values doubled")
    wanted = {**outputs, "o": outputs["o"] * 2}
    return [same_bits(f"{name}, values doubled", wanted[name], got[name], "F") for name in _results(outputs)]


def _repaged(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """The same entries on other pages."""

    def other(pages: torch.Tensor) -> torch.Tensor:
        return torch.where(pages > 0, scene.num_pages - pages, 0).to(torch.int32)

    slots = other(scene.slots // scene.page) * scene.page + scene.slots % scene.page
    moved = replace(scene, slots=slots.to(torch.int32), table=other(scene.table))
    return _within(moved, attend(moved, bench), "other pages")


def _reordered(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """The same sequences in reverse order; padding stays last."""
    num = sum(n > 0 for n in scene.kv_lens)
    order = [*range(num - 1, -1, -1), *range(num, len(scene.kv_lens))]
    starts = scene.starts
    tokens = [t for s in order for t in range(starts[s], starts[s + 1])] + list(range(starts[-1], len(scene.q)))
    other = replace(
        scene,
        q=scene.q[tokens],
        table=scene.table[order],
        query_lens=tuple(scene.query_lens[s] for s in order),
        kv_lens=tuple(scene.kv_lens[s] for s in order),
    )
    return _within(other, attend(other, bench), "other order")


def _within(scene: Scene, got: Outputs, what: str) -> list[Finding]:
    wanted = dict(zip(("o", "lse"), expected(scene, got["stored_k"], got["stored_v"], exactly=False), strict=True))
    found = [f for name in _results(got) for f in judge(name, wanted[name], got[name])]
    return [replace(f, check="F", output=f"{f.output}, {what}") for f in found]


def _alone(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """Each sequence in a step of its own."""
    return _parts_alike(scene, outputs, bench, lambda queries: [queries], "alone")


def _cut(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """Each sequence in several steps."""

    def chunks(queries: int) -> list[int]:
        return [min(_CHUNK, queries - i) for i in range(0, queries, _CHUNK)]

    return _parts_alike(scene, outputs, bench, chunks, "in chunks")


def _parts_alike(
    scene: Scene, outputs: Outputs, bench: Bench, cut: Callable[[int], list[int]], what: str
) -> list[Finding]:
    found = []
    for part, tokens in _parts(scene, cut):
        got = attend(part, bench)
        found += [same_bits(f"{name}, {what}", outputs[name][tokens], got[name], "F") for name in _results(outputs)]
    return found


def _parts(scene: Scene, cut: Callable[[int], list[int]]) -> Iterator[tuple[Scene, slice]]:
    """Steps with a part of one sequence's queries each, and where these tokens are in the whole step."""
    for s, (queries, n) in enumerate(_sequences(scene)):
        done = 0
        for count in cut(queries):
            tokens = slice(scene.starts[s] + done, scene.starts[s] + done + count)
            done += count
            lens = (n - queries + done,)
            yield (
                replace(scene, q=scene.q[tokens], table=scene.table[s : s + 1], query_lens=(count,), kv_lens=lens),
                tokens,
            )


def shortened(scene: Scene, bench: Bench) -> list[Finding]:
    """The same shapes and pages, with as few tokens as these pages may hold: lengths are not remembered.

    Not with a window, which then reaches pages that were given back.
    """
    if scene.window is not None:
        return []
    lens = (max(queries, 1 + (n - 1) // scene.page * scene.page) if n else 0 for queries, n in _sequences(scene))
    other = replace(scene, kv_lens=tuple(lens))
    return _within(other, attend(other, bench), "fewer tokens")


def _sequences(scene: Scene) -> Iterator[tuple[int, int]]:
    return zip(scene.query_lens, scene.kv_lens, strict=True)


def _memory(scene: Scene, outputs: Outputs, bench: Bench) -> list[Finding]:
    """Check E: the pool is read, not written; not even what nobody may read."""
    stage = Stage(scene, bench)
    before = [bench.get(plane) for plane in stage.planes]
    stage.attend(stage.plan(scene.host()))
    after = [bench.get(plane) for plane in stage.planes]
    return [same_bits(f"plane {i} of the pool", *both, "E") for i, both in enumerate(zip(before, after, strict=True))]


def same_shapes(scene: Scene, bench: Bench) -> list[Finding]:
    """A plan that may be captured has the same shapes for other lengths, and only tensors differ."""
    nobody = (0,) * (len(scene.kv_lens) - 1)
    other = replace(scene, query_lens=scene.query_lens[:1] + nobody, kv_lens=scene.kv_lens[:1] + nobody)
    forms = [_form(Stage(x, bench).plan(x.host())) for x in (scene, other)]
    same = forms[0] == forms[1]
    return [Finding("F", "plan", 0.0 if same else float("inf"), f"{forms[0]}, and for other lengths {forms[1]}")]


def _form(plan: Any) -> Any:
    """What of a plan does not depend on the content of tensors."""
    if isinstance(plan, torch.Tensor):
        return tuple(plan.shape), str(plan.dtype)
    if isinstance(plan, tuple | list):
        return [_form(part) for part in plan]
    if isinstance(plan, dict):
        return {name: _form(part) for name, part in plan.items()}
    if is_dataclass(plan):
        return [_form(getattr(plan, f.name)) for f in fields(plan)]
    return plan


def _results(outputs: Outputs) -> list[str]:
    return [name for name in ("o", "lse") if name in outputs]


_RELATIONS: dict[str, Relation] = {
    "doubled": _doubled,
    "repaged": _repaged,
    "reordered": _reordered,
    "memory": _memory,
    "batch_invariant": _alone,
    "chunk_invariant": _cut,
}
