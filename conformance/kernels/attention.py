"""The examination of attn_paged, and of attn_plan through it.

A provider's plan is its own business: it is right if attention with it is. Both rows are judged by attention's results;
attn_plan also with other lengths on the host, and with one plan for several layers.

Expected values are computed from the entries as the device stored them, read back by its kv_gather: a device may keep
fewer bits than the model has. That it stores and gathers rightly is examined with the rows kv_write and kv_gather.

Legend as in `conformance.kernels.attention_scene`.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.case import Case, Finding
from conformance.draw import Draw
from conformance.judge import Expected
from conformance.kernels import attention_cases, attention_relations
from conformance.kernels.attention_expect import as_stored, attend, expected
from conformance.kernels.attention_inputs import EXACT, MAX_RANDOM_SEQS, MAX_RANDOM_TOKENS, make_scene
from conformance.kernels.attention_scene import Scene, Stage
from conformance.row_exam import Inputs, Outputs, RowExam
from conformance.target import Bench
from core.plugin.facts import Need, Support


class PagedExam(RowExam):
    """What is the same for both rows."""

    def need(self, case: Case) -> Need:
        """Of the step: its tokens and sequences, padding included."""
        pad_tokens, pad_seqs = case.get("pads", (0, 0))
        num_seqs = case.get("seqs") or len(case.get("queries", ()))
        num_tokens = case.get("seqs") or sum(case.get("queries", ()))
        if case.family == "random":
            num_seqs, num_tokens = MAX_RANDOM_SEQS, MAX_RANDOM_TOKENS
        return Need(
            dtype=case["dtype"],
            head_size=case["d"],
            page_tokens=case["page"],
            max_seqs=num_seqs + pad_seqs,
            max_tokens=num_tokens + pad_tokens,
            batch_invariant=case.get("invariant", False),
        )

    def inputs(self, case: Case, draw: Draw) -> Inputs:
        return {"scene": make_scene(case, draw)}

    def expect(self, case: Case, inputs: Inputs, outputs: Outputs) -> dict[str, Expected]:
        """Every output whose name starts with "o" or "lse" is attention's."""
        scene: Scene = inputs["scene"]
        o, lse = expected(scene, outputs["stored_k"], outputs["stored_v"], exactly=case.family in EXACT)
        names = [name for name in outputs if not name.startswith("stored")]
        return {**as_stored(scene, outputs), **{name: lse if name.startswith("lse") else o for name in names}}


class AttnPagedExam(PagedExam):
    """o[T, H, D], lse[T, H] = attention of q[T, H, D] over a paged pool."""

    row = "attn_paged"

    def cases(self) -> Iterator[Case]:
        return attention_cases.cases()

    def claims(self, support: Support) -> Iterator[Case]:
        return attention_cases.claims(support)

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        return attend(inputs["scene"], bench, heads_beside=2 if case.family == "strided" else 0)

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        return attention_relations.findings(case, inputs["scene"], outputs, bench)


class AttnPlanExam(PagedExam):
    """A plan for each step of a KV group, read by the attention of all of its layers."""

    row = "attn_plan"

    def cases(self) -> Iterator[Case]:
        return attention_cases.plan_cases(self.row)

    def claims(self, support: Support) -> Iterator[Case]:
        return attention_cases.plan_claims(self.row, support)

    def call(self, case: Case, inputs: Inputs, bench: Bench) -> Outputs:
        """With exact lengths on the host, twice; with bounds of them; with none. Plans outlive the next one."""
        scene: Scene = inputs["scene"]
        stage = Stage(scene, bench)
        plans = {
            "exact lengths": stage.plan(scene.host()),
            "bounds": stage.plan(scene.host(exact=False)),
            "no lengths": stage.plan(None),
        }
        stage.plan_of_another_group()
        outputs: Outputs = {}
        for told, plan in (*plans.items(), ("another layer", plans["exact lengths"])):
            outputs |= zip((f"o, {told}", f"lse, {told}"), stage.attend(plan), strict=False)
        return outputs | stage.stored()

    def relations(self, case: Case, inputs: Inputs, outputs: Outputs, bench: Bench) -> list[Finding]:
        if case.family == "static":
            return attention_relations.same_shapes(inputs["scene"], bench)
        return attention_relations.shortened(inputs["scene"], bench)


EXAMS: tuple[RowExam, ...] = (AttnPlanExam(), AttnPagedExam())
