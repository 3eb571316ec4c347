"""What `--speculative` says: which drafter, and its limits."""

from __future__ import annotations

import re
from typing import NamedTuple

from core.errors import ConfigError
from core.speculate.drafting import Drafting
from core.speculate.lengths import Lengths
from core.speculate.ngram import NgramDrafter

MAX_DRAFTS, MAX_NGRAM = 32, 16
_FORM = re.compile(r"ngram(?::(\d+)(?::(\d+)-(\d+))?)?")


class Speculation(NamedTuple):
    """N-gram drafts: at most so many in a step, after runs of `least` to `most` ids that were seen before."""

    max_drafts: int = 8
    least: int = 2
    most: int = 4

    def __str__(self) -> str:
        return f"ngram:{self.max_drafts}:{self.least}-{self.most}"

    def open(self) -> Drafting:
        return Drafting(lambda: NgramDrafter(self.least, self.most), self.max_drafts, Lengths())


def parse_speculative(text: str) -> Speculation:
    """Raises: ConfigError for what names no drafter, or a number that makes no sense."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(f"speculative is {text!r}: give ngram, ngram:DRAFTS or ngram:DRAFTS:MIN-MAX, as ngram:8:2-4")
    asked = Speculation(*(int(number) for number in found.groups() if number is not None))
    if not 1 <= asked.max_drafts <= MAX_DRAFTS:
        raise ConfigError(f"speculative asks for {asked.max_drafts} drafts: it must be 1 to {MAX_DRAFTS}")
    if not 1 <= asked.least <= asked.most <= MAX_NGRAM:
        raise ConfigError(
            f"speculative asks for runs of {asked.least}-{asked.most} ids: they must be 1 to {MAX_NGRAM} ids long, and "
            "the first number at most the second"
        )
    return asked
