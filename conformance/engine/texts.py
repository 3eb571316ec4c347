"""What the models read: token ids drawn from the seed of a case, so that nobody can prepare for them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from conformance.draw import Draw
from conformance.model import induction_path
from conformance.model.data import sequences
from core.engine.models import find_model
from core.errors import ConfigError

INDUCTION, SMOLLM2 = "induction", "smollm2"

_SENTENCES = (
    "The old lighthouse keeper climbed the stairs every evening and lit the lamp before the ships came home.",
    "Water boils at one hundred degrees Celsius at sea level, and at a lower temperature on a high mountain.",
    "She opened the letter, read it twice, and then put it back into the drawer without saying a word.",
    "In 1969 two people walked on the Moon while a third one waited for them in orbit.",
    "A prime number has exactly two divisors: one and itself. The first ones are 2, 3, 5, 7, 11 and 13.",
    "Bread needs flour, water, salt and yeast; everything else is a question of time and temperature.",
    "The capital of France is Paris, the capital of Italy is Rome, and the capital of Spain is Madrid.",
    "for i in range(10):\n    if i % 2 == 0:\n        print(i, i * i)\n",
    "When the rain stopped, the children ran outside and jumped into every puddle on the street.",
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar and oxygen.",
    "He counted the coins again: three of silver, twelve of copper, and one that he had never seen before.",
    "A good argument states what it assumes, says what follows, and admits what would prove it wrong.",
)


@cache
def missing(model: str) -> str | None:
    """Why a model is not to be had here; None when it is."""
    if model == INDUCTION:
        return None
    try:
        find_model(model)
    except ConfigError as error:
        return str(error)
    return None


def location(model: str) -> str:
    """What the engine calls the model."""
    return str(induction_path()) if model == INDUCTION else model


def texts(model: str, seed: bytes, num: int, length: int) -> torch.Tensor:
    """`num` texts of `length` tokens: ids [num, length], int64.

    Those of the induction model repeat themselves (`conformance.model.data`); others are sentences in drawn order.
    """
    draw = Draw(seed)
    if model == INDUCTION:
        return torch.from_numpy(sequences(int(draw.words(1)[0]), num, length).ids_NL)
    source, _ = find_model(model)
    encode = source.tokenizer().encode
    rows = []
    for _ in range(num):
        ids: list[int] = []
        while len(ids) < length:
            ids += encode(" ".join(_SENTENCES[i] for i in draw.permutation(len(_SENTENCES))), False)
        rows.append(ids[:length])
    return torch.from_numpy(np.array(rows, np.int64))
