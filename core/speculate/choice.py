"""What `--speculative` says: which drafter, and its limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from core.errors import ConfigError
from core.speculate.card import read_card
from core.speculate.drafting import Drafting
from core.speculate.lengths import Lengths
from core.speculate.ngram import NgramDrafter

MAX_DRAFTS, MAX_NGRAM = 32, 16
MODEL_DRAFTS = 3  # each costs a run of the draft model, so fewer than of n-grams
_NGRAM = re.compile(r"ngram(?::(\d+)(?::(\d+)-(\d+))?)?")
_ON_DEVICE = re.compile(r"(mtp|model):(.+?)(?::(\d+))?")


class NgramChoice(NamedTuple):
    """N-gram drafts: at most so many in a step, after runs of `least` to `most` ids that were seen before."""

    max_drafts: int = 8
    least: int = 2
    most: int = 4

    def __str__(self) -> str:
        return f"ngram:{self.max_drafts}:{self.least}-{self.most}"

    def open(self) -> Drafting:
        return Drafting(lambda: NgramDrafter(self.least, self.most), self.max_drafts, Lengths())


class HeadsChoice(NamedTuple):
    """Drafts by the draft layers in a folder: one by each, and more by the last one."""

    path: str
    max_drafts: int

    def __str__(self) -> str:
        return f"mtp:{self.path}:{self.max_drafts}"

    def open(self) -> Drafting:
        return Drafting(None, self.max_drafts, Lengths())


class ModelChoice(NamedTuple):
    """Drafts by a smaller model: `path` is what a model to serve may be, too."""

    path: str
    max_drafts: int = MODEL_DRAFTS

    def __str__(self) -> str:
        return f"model:{self.path}:{self.max_drafts}"

    def open(self) -> Drafting:
        return Drafting(None, self.max_drafts, Lengths())


Speculation: TypeAlias = NgramChoice | HeadsChoice | ModelChoice
_Choice = TypeVar("_Choice", NgramChoice, HeadsChoice, ModelChoice)


def parse_speculative(text: str) -> Speculation:
    """Raises: ConfigError for what names no drafter, or a number that makes no sense."""
    if found := _NGRAM.fullmatch(text):
        return _check_ngram(NgramChoice(*(int(number) for number in found.groups() if number is not None)))
    if found := _ON_DEVICE.fullmatch(text):
        kind, path, num_drafts = found.groups()
        return _choose_heads(path, num_drafts) if kind == "mtp" else _choose_model(path, num_drafts)
    raise ConfigError(
        f"speculative is {text!r}: give ngram, ngram:DRAFTS or ngram:DRAFTS:MIN-MAX, as ngram:8:2-4; mtp:PATH or "
        "mtp:PATH:DRAFTS, with a folder that core train-mtp wrote; or model:PATH or model:PATH:DRAFTS, with a smaller "
        "model of the same vocabulary"
    )


def _check_number(asked: _Choice) -> _Choice:
    if not 1 <= asked.max_drafts <= MAX_DRAFTS:
        raise ConfigError(f"speculative asks for {asked.max_drafts} drafts: it must be 1 to {MAX_DRAFTS}")
    return asked


def _check_ngram(asked: NgramChoice) -> NgramChoice:
    if not 1 <= asked.least <= asked.most <= MAX_NGRAM:
        raise ConfigError(
            f"speculative asks for runs of {asked.least}-{asked.most} ids: they must be 1 to {MAX_NGRAM} ids long, and "
            "the first number at most the second"
        )
    return _check_number(asked)


def _choose_heads(path: str, num_drafts: str | None) -> HeadsChoice:
    num_layers = read_card(Path(path)).num_layers
    return _check_number(HeadsChoice(path, num_layers if num_drafts is None else int(num_drafts)))


def _choose_model(path: str, num_drafts: str | None) -> ModelChoice:
    return _check_number(ModelChoice(path) if num_drafts is None else ModelChoice(path, int(num_drafts)))
