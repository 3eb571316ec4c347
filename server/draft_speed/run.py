"""The measurement: one engine that drafts beside one that does not, which answer the same prompts in turns."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from core import LLM, ConfigError, SamplingParams
from core.config import EngineConfig
from server.draft_speed.asked import CANDIDATES, choose
from server.draft_speed.gain import Gain, Run, watch
from server.draft_speed.report import Report
from server.runners import CoreRunner

KINDS = tuple(CANDIDATES)


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    speculative    one for each draft length
    batch_sizes    sequences that decode together
    output_len     tokens of each answer
    repetitions    after one to warm up
    fixed          all drafts that are proposed are computed, else as many as pay
    """

    speculative: list[str]
    batch_sizes: Sequence[int]
    output_len: int
    repetitions: int
    fixed: bool


def measure(config: EngineConfig, wanted: Wanted, tick: Callable[[int, int], None]) -> Report:
    """For each draft length, kind and batch size. `tick` is called with (repetitions done, repetitions in all).

    Raises: ConfigError for batches that do not run at once, answers of one token, and where prompts with answers so
    long are too few.
    """
    sizes, each, gains = wanted.batch_sizes, wanted.repetitions + 1, list[Gain]()
    total = len(wanted.speculative) * len(KINDS) * len(sizes) * each
    with CoreRunner(msgspec.structs.replace(config, speculative=None)) as plain:
        _check(wanted, plain.llm.plan.max_num_seqs)
        asked = {kind: choose(kind, max(sizes), wanted.output_len, plain.llm) for kind in KINDS}
        for speculative in wanted.speculative:
            with CoreRunner(msgspec.structs.replace(config, speculative=speculative)) as drafting:
                for kind, prompts in asked.items():
                    for size in sizes:
                        gains.append(_gain(kind, prompts[:size], plain, drafting, wanted))
                        tick(each * len(gains), total)
        return Report(
            model=config.model,
            versions=plain.versions,
            speculative=wanted.speculative,
            fixed=wanted.fixed,
            output_len=wanted.output_len,
            gains=gains,
        )


def _check(wanted: Wanted, limit: int) -> None:
    if wanted.output_len < 2:
        raise ConfigError(f"--output-len is {wanted.output_len}: give 2 at least, the first token is not decoded")
    largest = max(wanted.batch_sizes)
    if largest > limit:
        raise ConfigError(
            f"--batch-size is {largest}, and {limit} sequences run at once: lower it, or raise --max-num-seqs"
        )


def _gain(kind: str, prompts: list[list[int]], plain: CoreRunner, drafting: CoreRunner, wanted: Wanted) -> Gain:
    drafts = drafting.llm.engine.scheduler.drafting
    assert drafts is not None
    if wanted.fixed:
        drafts.lengths = None

    def run(runner: CoreRunner) -> Run:
        return watch(runner.steps(prompts, wanted.output_len), len(prompts), wanted.output_len)

    for runner in (plain, drafting):
        run(runner)  # to warm up
    before, without, drafted = deepcopy(drafts.counts), list[Run](), list[Run]()
    for _ in range(wanted.repetitions):
        without.append(run(plain))
        drafted.append(run(drafting))
    after = drafts.counts
    return Gain(
        kind=kind,
        batch_size=len(prompts),
        max_drafts=drafts.max_drafts,
        without=without,
        drafted=drafted,
        num_draft_tokens=after.num_tokens - before.num_tokens,
        num_accepted_at=_difference(after.num_accepted_at, before.num_accepted_at),
        num_reached_at=_difference(after.num_reached_at, before.num_reached_at),
        margins=[
            margin(plain.llm, prompt, right, other)
            for p, d in zip(without, drafted, strict=True)
            for prompt, right, other in zip(prompts, p.ids, d.ids, strict=True)
            if right != other
        ],
    )


def _difference(after: list[int], before: list[int]) -> list[int]:
    return [now - then for now, then in zip(after, before, strict=True)]


def margin(llm: LLM, prompt: list[int], right: list[int], other: list[int]) -> float:
    """By how much the first id of `right` that is not in `other` is likelier than what stands there (nats)."""
    at = next(place for place, (one, two) in enumerate(zip(right, other, strict=True)) if one != two)
    named = right[at], other[at]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=0, logprob_token_ids=named)
    [output] = llm.generate([[*prompt, *right[:at]]], sampling)
    [report] = output.logprobs
    found = dict(zip(report.top_ids, report.top_logprobs, strict=True))
    return found[named[0]] - found[named[1]]
