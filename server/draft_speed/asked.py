"""The prompts that drafts are measured on: of each kind, texts that draft heads are not trained on.

chat   requests of all kinds, which say little about their answers
code   requests for code, and code to go on with
copy   a text that begins a third time, so that what follows stands in the prompt

Past its end an answer is no text that anybody reads, and easily repeats itself. So prompts are chosen whose greedy
answers are long enough; then a batch is whole until the end, too, as long as nothing drafts.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from core import LLM, ConfigError, SamplingParams
from core.speculate.prompts import code_prompts, prompts
from core.speculate.texts import prompt_ids

_NUM_SENTENCES = 7  # of a text to copy
_NUM_COPIES = 256


def choose(kind: str, num: int, output_len: int, llm: LLM) -> list[list[int]]:
    """The ids of `num` prompts that the model answers by `output_len` tokens at least.

    Raises: ConfigError where there are not so many.
    """
    longest = llm.plan.max_model_len - output_len
    candidates = (prompt for prompt in CANDIDATES[kind](llm) if len(prompt) <= longest)
    chosen: list[list[int]] = []
    while len(chosen) < num:
        asked = list(islice(candidates, num - len(chosen)))
        if not asked:
            raise ConfigError(
                f"only {len(chosen)} {kind} prompts have answers of {output_len} tokens, and room for them in "
                f"max_model_len {llm.plan.max_model_len}, and the largest batch has {num}: lower --output-len or "
                "--batch-size"
            )
        outputs = llm.generate(asked, SamplingParams(temperature=0.0, max_tokens=output_len))
        chosen += [output.prompt_ids for output in outputs if output.finish_reason == "length"]
    return chosen


def _chat(llm: LLM) -> Iterator[list[int]]:
    return (prompt_ids(llm, text) for text in _once(prompts(True, 0)))


def _code(llm: LLM) -> Iterator[list[int]]:
    return (prompt_ids(llm, text) for text in _once(code_prompts(0)))


def _copy(llm: LLM) -> Iterator[list[int]]:
    for seed in range(_NUM_COPIES):
        text = llm.tokenizer.encode(" ".join(islice(prompts(True, seed), _NUM_SENTENCES)) + "\n")
        text = text[: llm.plan.max_model_len // 4]
        yield text * 2 + text[:4]


def _once(texts: Iterable[str]) -> Iterator[str]:
    """Up to where they begin anew."""
    seen = set[str]()
    for text in texts:
        if text in seen:
            return
        seen.add(text)
        yield text


CANDIDATES: dict[str, Callable[[LLM], Iterator[list[int]]]] = {"chat": _chat, "code": _code, "copy": _copy}
