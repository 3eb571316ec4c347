"""The texts that draft heads learn from: what the model itself writes, and files.

A head learns to foretell its model, so the model's own text is the best there is. It is written once, in groups that
depend on nothing but their place, and kept: each group is appended to a file when it is whole, and a run that was
killed goes on with the group it was at.

Prompts of held-out texts are about topics that no prompt for training has, and are answered greedily.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from core.errors import ConfigError, RequestError
from core.request import SamplingParams
from core.speculate.prompts import prompts

if TYPE_CHECKING:
    from core.engine.llm import LLM

GROUP = 64
"""Texts that the model writes at a time."""

LONGEST_PROMPT = 0.5
"""Part of a row that a prompt may take."""

Progress = Callable[[int, int], None]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids: a prompt of `num_prompt` tokens, and what the model wrote at `temperature`. From a file: no prompt."""

    ids: list[int]
    num_prompt: int = 0
    temperature: float = 0.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is to write: `num_texts` rows of at most `row_tokens` tokens, at these temperatures in turn."""

    num_texts: int
    row_tokens: int
    temperatures: tuple[float, ...]
    seed: int
    held_out: bool


def write_texts(llm: LLM, order: Order, path: Path, progress: Progress) -> list[Text]:
    """The texts of an order, from `path` as far as they are there, and written and kept there as far as not."""
    texts = read_texts(path, order)
    for first in range(len(texts), order.num_texts, GROUP):
        made = _write_group(llm, order, range(first, min(first + GROUP, order.num_texts)))
        with path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(text) + b"\n" for text in made))
            file.flush()
            os.fsync(file.fileno())
        texts += made
        progress(len(texts), order.num_texts)
    return texts


def read_texts(path: Path, order: Order) -> list[Text]:
    """Whole groups that are in the file already; what follows them is dropped from it."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    num_lines = min(len(lines) - 1, order.num_texts)  # the last line has no end, or is empty
    num_whole = num_lines if num_lines == order.num_texts else num_lines // GROUP * GROUP
    kept = lines[:num_whole]
    os.truncate(path, sum(len(line) + 1 for line in kept))
    return [msgspec.json.decode(line, type=Text) for line in kept]


def _write_group(llm: LLM, order: Order, numbers: range) -> list[Text]:
    asked = list(itertools.islice(prompts(order.held_out, order.seed), numbers.start, numbers.stop))
    ids = [prompt_ids(llm, prompt)[: int(order.row_tokens * LONGEST_PROMPT)] for prompt in asked]
    temperatures = [order.temperatures[n % len(order.temperatures)] for n in numbers]
    sampling = [
        SamplingParams(temperature=t, max_tokens=order.row_tokens - len(each), seed=order.seed + n)
        for n, t, each in zip(numbers, temperatures, ids, strict=True)
    ]
    written = llm.generate(ids, sampling)
    return [
        Text(ids=out.prompt_ids + out.token_ids, num_prompt=len(out.prompt_ids), temperature=t)
        for out, t in zip(written, temperatures, strict=True)
    ]


def prompt_ids(llm: LLM, prompt: str) -> list[int]:
    """As a conversation, where the model has a template."""
    try:
        return llm.chat_prompt([{"role": "user", "content": prompt}])
    except RequestError:
        return llm.tokenizer.encode(prompt)


def read_files(files: Sequence[str], encode: Callable[[str], list[int]], row_tokens: int) -> list[Text]:
    """Rows of `row_tokens` tokens of each file, one after another; a rest of less than half a row is dropped.

    Raises: ConfigError for a file that is no text, or has less than 2 tokens.
    """
    rows = []
    for file in files:
        try:
            ids = encode(Path(file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read as UTF-8 text ({error}): give text files") from error
        if len(ids) < 2:
            raise ConfigError(f"{file} has {len(ids)} tokens: a text has 2 at least; leave it out")
        parts = [ids[i : i + row_tokens] for i in range(0, len(ids), row_tokens)]
        rows += [Text(ids=part) for part in parts if len(part) > row_tokens // 2 or len(parts) == 1]
    return rows
