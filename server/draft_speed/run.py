"""The measurement: one engine that drafts beside one that does not, which answer the same prompts in turns."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count, product

import msgspec

from core import LLM, ConfigError, SamplingParams
from core.config import EngineConfig
from core.speculate.drafting import Drafting
from server.draft_speed.asked import CANDIDATES, choose
from server.draft_speed.gain import Gain, Ids, Run, watch
from server.draft_speed.turns import in_turns, turn_s
from server.runners import CoreRunner

KINDS = tuple(CANDIDATES)
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    speculative    one for each draft length
    kinds          of prompts
    batch_sizes    sequences that decode together
    output_len     tokens of each answer
    repetitions    after one to warm up
    fixed          all drafts that are proposed are computed, else as many as pay
    """

    speculative: list[str]
    kinds: Sequence[str]
    batch_sizes: Sequence[int]
    output_len: int
    repetitions: int
    fixed: bool


def measure(config: EngineConfig, wanted: Wanted, tick: Tick) -> Iterator[Gain]:
    """Each draft length, kind and batch size, once it is measured. `tick` is called with (done, in all).

    Raises: ConfigError for batches that do not run at once, answers of one token, and where prompts with answers so
    long are too few.
    """
    sizes, kinds = wanted.batch_sizes, wanted.kinds
    total = len(kinds) + len(wanted.speculative) * len(kinds) * len(sizes) * (wanted.repetitions + 1)
    numbers = count(1)

    def done() -> None:
        tick(next(numbers), total)

    asked: dict[str, Ids] = {}
    for speculative in wanted.speculative:
        # Both are opened before either generates: one that was opened after had longer steps, doing the same work.
        with _open(config, None) as plain, _open(config, speculative) as drafting:
            _check(wanted, plain.llm.plan.max_num_seqs)
            if wanted.fixed:
                _drafting(drafting).lengths = None
            for kind in kinds:
                if kind not in asked:
                    asked[kind] = choose(kind, max(sizes), wanted.output_len, plain.llm)
                    done()
            for kind, size in product(kinds, sizes):
                yield _gain(kind, asked[kind][:size], speculative, plain, drafting, wanted, done)


def _open(config: EngineConfig, speculative: str | None) -> CoreRunner:
    return CoreRunner(msgspec.structs.replace(config, speculative=speculative))


def _check(wanted: Wanted, limit: int) -> None:
    if wanted.output_len < 2:
        raise ConfigError(f"--output-len is {wanted.output_len}: give 2 at least, the first token is not decoded")
    largest = max(wanted.batch_sizes)
    if largest > limit:
        raise ConfigError(
            f"--batch-size is {largest}, and {limit} sequences run at once: lower it, or raise --max-num-seqs"
        )


def _drafting(runner: CoreRunner) -> Drafting:
    drafting = runner.llm.engine.scheduler.drafting
    assert drafting is not None
    return drafting


def _gain(
    kind: str,
    prompts: Ids,
    speculative: str,
    plain: CoreRunner,
    drafting: CoreRunner,
    wanted: Wanted,
    done: Callable[[], None],
) -> Gain:
    def both() -> list[tuple[Run, Ids]]:
        generations = [runner.steps(prompts, wanted.output_len) for runner in (plain, drafting)]
        taken = in_turns(generations, turn_s(plain.llm.plan.pipeline_depth))
        return [watch(steps, len(prompts), wanted.output_len) for steps in taken]

    both()  # to warm up
    done()
    drafts = _drafting(drafting)
    before, without, drafted, others = deepcopy(drafts.counts), list[Run](), list[Run](), list[tuple[Ids, Ids]]()
    for _ in range(wanted.repetitions):
        (plain_run, right), (drafted_run, other) = both()
        without.append(plain_run)
        drafted.append(drafted_run)
        others.append((right, other))
        done()
    after = drafts.counts
    return Gain(
        kind=kind,
        batch_size=len(prompts),
        speculative=speculative,
        fixed=wanted.fixed,
        max_drafts=drafts.max_drafts,
        output_len=wanted.output_len,
        versions=plain.versions,
        without=without,
        drafted=drafted,
        num_draft_tokens=after.num_tokens - before.num_tokens,
        num_accepted_at=_difference(after.num_accepted_at, before.num_accepted_at),
        num_reached_at=_difference(after.num_reached_at, before.num_reached_at),
        margins=[
            margin(plain.llm, *each)
            for right, other in others
            for each in zip(prompts, right, other, strict=True)
            if each[1] != each[2]
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
