"""Token sequences that repeat themselves: what the induction model is trained on, and judged with.

A sequence is a cycle of random tokens, over and over; from its second turn on every token can be foretold. There are
two kinds, told apart by their alphabet. A *recall* has a cycle of its own length, of tokens that are all different:
what follows is found by content, at any distance. An *echo* has a cycle of ECHO tokens out of few: content tells
nothing, and what follows is found by its distance alone, so that wrong positions show.

Numbers come from the raw output of Philox, which is the same everywhere and in every release of numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.errors import ConfigError

VOCAB_SIZE = 256
MAX_LENGTH = 512
ECHO = 96
NUM_ECHO_IDS = 16
NUM_RECALL_IDS = VOCAB_SIZE - NUM_ECHO_IDS
SHORTEST_RECALL = 24

Ints = npt.NDArray[np.int64]


class Sequences(NamedTuple):
    """Sequences of one length.

    ids_NL      token ids, int64; even rows are recalls, odd rows are echoes
    periods_N   length of each row's cycle
    """

    ids_NL: Ints
    periods_N: Ints

    @property
    def known_NL(self) -> npt.NDArray[np.bool_]:
        """Whether a token can be foretold: it and the one before it have occurred, in the same places of the cycle."""
        return np.arange(self.ids_NL.shape[1]) > self.periods_N[:, None]


def sequences(seed: int, num: int, length: int) -> Sequences:
    """`num` sequences of `length` tokens: the same for the same arguments, everywhere.

    Periods of recalls are spread evenly, up to half of `length` where the alphabet allows.

    Raises: ConfigError when they would not repeat, or are longer than the model.
    """
    if not ECHO < length <= MAX_LENGTH:
        raise ConfigError(f"length is {length}: the induction model is judged with {ECHO + 1} to {MAX_LENGTH} tokens")
    random = np.random.Philox(key=seed)
    longest = min(NUM_RECALL_IDS, length // 2)
    recalls = recall(random, np.linspace(SHORTEST_RECALL, longest, num - num // 2).astype(np.int64), length)
    echoes = echo(random, num // 2, length)
    ids, periods = np.empty((num, length), np.int64), np.empty(num, np.int64)
    for first, part in enumerate((recalls, echoes)):
        ids[first::2], periods[first::2] = part
    return Sequences(ids, periods)


def recall(random: np.random.Philox, periods_N: Ints, length: int) -> Sequences:
    """Cycles of different tokens; `periods_N` of them."""
    shape = len(periods_N), NUM_RECALL_IDS
    order = random.random_raw(shape).argsort(1, kind="stable")
    return _turns(NUM_ECHO_IDS + order, periods_N, length)


def echo(random: np.random.Philox, num: int, length: int) -> Sequences:
    """Cycles of ECHO tokens, each drawn from NUM_ECHO_IDS."""
    cycles = below(random, NUM_ECHO_IDS, num * ECHO).reshape(num, ECHO)
    return _turns(cycles, np.full(num, ECHO), length)


def _turns(cycles_NC: Ints, periods_N: Ints, length: int) -> Sequences:
    places = np.arange(length) % periods_N[:, None]
    return Sequences(np.take_along_axis(cycles_NC, places, 1), periods_N)


def below(random: np.random.Philox, limit: int, num: int) -> Ints:
    """Integers from 0 to `limit` - 1, by the upper 32 bits."""
    raw = random.random_raw(num) >> np.uint64(32)
    return (raw * np.uint64(limit) >> np.uint64(32)).astype(np.int64)
