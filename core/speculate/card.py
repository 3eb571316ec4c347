"""The card of trained draft heads: what they are, what they were made for and of, and how well they foretell.

A folder of heads holds the card (`heads.json`) and the weights (`heads.safetensors`). The card is written last, and
names the weights' hash: a folder without it, or with other weights, is refused.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from core.errors import ConfigError

FORMAT = 1
CARD, WEIGHTS = "heads.json", "heads.safetensors"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The model that heads were trained for. `digest`: see `core.model.digest`."""

    name: str
    digest: str
    architecture: str
    hidden_size: int
    vocab_size: int


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How often drafts agree with the model, on text that it wrote greedily and that was held out from training.

    per_position      of layer k: agreement of its likeliest token with the model's, where all layers before it agree
    tokens_per_step   that a step would emit with as many drafts as layers: 1, and the drafts up to the first wrong one
    num_positions     that were looked at
    loss              per layer, on the same text
    in_vocabulary     part of the model's likeliest tokens that the draft vocabulary has
    """

    per_position: list[float]
    tokens_per_step: float
    num_positions: int
    loss: list[float]
    in_vocabulary: float


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of heads.json.

    weights_sha256   of heads.safetensors
    num_layers       draft layers; block_like: the layer of the model that their blocks are like
    head             tensor of the model that is its head's weight
    draft_vocab      tokens that drafts are chosen among
    recipe           what was asked of the trainer
    data             what it was trained on: counts, and hashes of text files
    made_with        versions and device
    loss             of training, per layer: the mean of the last steps
    """

    format: int = FORMAT
    base: Base
    weights_sha256: str
    num_layers: int
    block_like: int
    head: str
    draft_vocab: int
    recipe: dict[str, object]
    data: dict[str, object]
    made_with: dict[str, str]
    loss: list[float]
    acceptance: Acceptance


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that whatever happens it is the old one or the new one."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write_card(folder: Path, card: Card) -> None:
    write_whole(folder / CARD, msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def read_card(folder: Path) -> Card:
    """Raises: ConfigError where there is none, or none that this core reads."""
    path = folder / CARD
    if not path.is_file():
        raise ConfigError(f"{folder} has no {CARD}: give a folder that `core train-mtp` finished")
    try:
        card = msgspec.json.decode(path.read_bytes(), type=Card)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not the card of draft heads ({error}): train them again") from error
    if card.format != FORMAT:
        raise ConfigError(f"{path} is of format {card.format}: this core reads format {FORMAT}; train the heads again")
    return card
