"""Requests through a whole engine: scheduler, cache, draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from core.config import EngineConfig
from core.engine.engine import Engine
from core.engine.front import Front
from core.errors import DeviceError
from core.request import SamplingParams
from core.speculate.drafting import Drafting
from core.speculate.ngram import NgramDrafter

Wave = Sequence[Sequence[int]]


@dataclass
class Answer:
    """What came of one prompt: `logprobs` of ids drawn, `prompt_logprobs` of the prompt from its second token on."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    num_cached: int = 0


@dataclass
class Served:
    """Answers, in the order of the prompts."""

    answers: list[Answer]
    num_preemptions: int
    page_tokens: int
    num_right_drafts: int
    num_wrong_drafts: int


class Drafter:
    """Drafts from the text itself; of four times, one is spoiled at each of three places. All of them are computed."""

    def __init__(self) -> None:
        self._found, self._turn = NgramDrafter(1, 4), 0

    def propose(self, token_ids: Sequence[int], num: int) -> list[int]:
        ids = self._found.propose(token_ids, num)
        self._turn += 1
        place = self._turn % 4
        return [token_id ^ (at == place) for at, token_id in enumerate(ids)]


def serve(
    config: EngineConfig, waves: Sequence[Wave], num_drawn: int, *, logprobs: bool = True, prompts: bool = False
) -> Served:
    """Continue prompts greedily by `num_drawn` tokens. A wave is queued at once, and ends before the next one begins.

    The engine has room for the longest of them and no more, so that a device which compiles has few shapes to make.

    logprobs, prompts   whether log-probabilities are reported of the ids drawn, and of the prompts

    Raises: DeviceError when a step fails.
    """
    longest = max(len(prompt) for wave in waves for prompt in wave) + num_drawn
    engine = Engine(msgspec.structs.replace(config, max_model_len=longest))
    engine.executor.runner.compiles.refuse_late = True  # a device that compiles names all its shapes
    drafting = engine.scheduler.drafting
    if drafting:
        drafting = engine.scheduler.drafting = Drafting(Drafter, drafting.max_drafts)
    try:
        front = Front(engine.info(), [])
        report = 0 if logprobs else None
        sampling = SamplingParams(
            temperature=0.0, max_tokens=num_drawn, logprobs=report, prompt_logprobs=0 if prompts else None
        )
        found: dict[str, Answer] = {}
        for wave in waves:
            for prompt in wave:
                name = str(len(found))
                found[name] = Answer()
                engine.add(front.request(prompt, sampling, request_id=name))
            _run(engine, found)
        num_right = sum(drafting.counts.num_accepted_at) if drafting else 0
        num_wrong = drafting.counts.num_tokens - num_right if drafting else 0
        answers = list(found.values())
        return Served(answers, engine.scheduler.num_preemptions, engine.plan.page_tokens, num_right, num_wrong)
    finally:
        engine.close()


def _run(engine: Engine, found: dict[str, Answer]) -> None:
    while engine.busy:
        for output in engine.step():
            if output.error:
                raise DeviceError(output.error)
            answer = found[output.request_id]
            answer.ids += output.new_ids
            answer.logprobs += [report.logprob for report in output.logprobs]
            answer.prompt_logprobs += [report.logprob for report in output.prompt_logprobs]
            answer.num_cached = output.num_cached
