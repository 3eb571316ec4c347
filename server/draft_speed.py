"""What drafts gain: the same prompts without and with them, in turns, greedily.

Two kinds of prompts: `copy` is a text that begins a third time, so what follows stands in the prompt; `chat` are
requests that say little about their answers. The texts are those that draft heads are not trained on.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from core import LLM, RequestError
from core.config import EngineConfig
from core.speculate.prompts import prompts
from server.measure import Timing
from server.runners import CoreRunner

KINDS = ("copy", "chat")
_NUM_SENTENCES = 12  # of a text to copy


@dataclass
class Gain:
    """Of one kind of prompts and one batch size: tokens per second of decoding, for each repetition.

    tokens_per_draw   that a sequence got from a step with drafts
    accepted          part of the drafts that were right
    """

    kind: str
    batch_size: int
    without: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    tokens_per_draw: float = 1.0
    accepted: float = 0.0

    @property
    def ratio(self) -> float:
        return statistics.median(self.drafted) / statistics.median(self.without)


def gains(
    config: EngineConfig, batch_sizes: Sequence[int], output_len: int, num_iters: int, tick: Callable[[int, int], None]
) -> Iterator[Gain]:
    """`tick` is called with (runs done, runs in all). The first repetition of each warms up."""
    done, total = 0, len(KINDS) * len(batch_sizes) * (num_iters + 1)
    with ExitStack() as opened:
        plain = opened.enter_context(CoreRunner(msgspec.structs.replace(config, speculative=None)))
        drafting = opened.enter_context(CoreRunner(config))
        for kind in KINDS:
            for size in batch_sizes:
                gain, before = Gain(kind, size), drafting.llm.engine.inspect()
                asked = _prompts(kind, size, plain.llm)
                for repetition in range(num_iters + 1):
                    for runner, rates in ((plain, gain.without), (drafting, gain.drafted)):
                        rate = _rate(runner.generate(asked, output_len))
                        if repetition:
                            rates.append(rate)
                    done += 1
                    tick(done, total)
                after = drafting.llm.engine.inspect()
                num_right = after.num_accepted_tokens - before.num_accepted_tokens
                gain.tokens_per_draw += num_right / max(1, after.num_drafts - before.num_drafts)
                gain.accepted = num_right / max(1, after.num_draft_tokens - before.num_draft_tokens)
                yield gain


def _rate(timing: Timing) -> float:
    return timing.num_decoded / (timing.total_s - timing.first_s)


def _prompts(kind: str, num: int, llm: LLM) -> list[list[int]]:
    if kind == "chat":
        return [_asked(text, llm) for text in islice(prompts(True, 0), num)]
    copied = []
    for i in range(num):
        text = llm.tokenizer.encode(" ".join(islice(prompts(True, i), _NUM_SENTENCES)) + "\n")
        copied.append(text * 2 + text[:4])
    return copied


def _asked(text: str, llm: LLM) -> list[int]:
    try:
        return llm.chat_prompt([{"role": "user", "content": text}])
    except RequestError:  # a model without a chat template
        return llm.tokenizer.encode(text)
