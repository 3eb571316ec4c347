"""Whether the device should foretell ids: what that gave beside what it took.

Foretelling costs a part of every step, and a sequence must be followed from its first token on. So it is left off for
all sequences of a step where it did not pay for some time, and for new ones that it would not pay for; but for one of
many of those, to see whether that is still so.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.speculate.lengths import Drafts, Lengths, Record

_JUDGE, _PATIENCE = 2, 3  # steps with ids foretold; times in a row that it did not pay
_LEAST_WORTH = 1.05  # of tokens a second with foretelling over those without
_RETRY = 32  # sequences that are not followed, of as many as run together, for one that is all the same
_ENOUGH, _FADES = 32, 0.03  # draws that tell whether foretelling pays, and how fast old steps count less
_OF_MANY = 8  # sequences whose draws tell about new ones


@dataclass
class _Gained:
    """Over the last steps in which ids were foretold: what they took, and what their tokens would have without."""

    alone: float = 0.0
    taken: float = 0.0
    num_draws: int = 0

    def add(self, num_draws: int, alone: float, taken: float) -> None:
        self.num_draws += num_draws
        self.alone += alone - _FADES * self.alone
        self.taken += taken - _FADES * self.taken


class Following:
    """Decides by the times that `lengths` knows."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._gained: dict[int, _Gained] = {}  # by `num_draws.bit_length()`
        self._num_steps = self._num_lost = self._num_refused = 0

    def add(self, num_draws: int, num_emitted: int) -> None:
        """The last step foretold ids, all its sequences decoded, and it emitted so many tokens."""
        times = self._lengths.times
        gained = self._gained.setdefault(num_draws.bit_length(), _Gained())
        gained.add(num_draws, num_emitted * times.computing(num_draws) / num_draws, times.last)

    def would_pay(self, record: Record, max_drafts: int, num: int) -> bool:
        """Whether to follow a new sequence of which this is expected, where `num` will run together."""
        if not self._lengths.times.foretold:
            return True
        if self._worth([(record, max_drafts)] * num, num, _OF_MANY * _ENOUGH) >= _LEAST_WORTH:
            return True
        self._num_refused += 1
        if self._num_refused < _RETRY * num:
            return False
        self._num_refused = 0
        self._gained.clear()
        return True

    def is_lost(self, drafts: Drafts) -> bool:
        """Asked before each step with drafts: whether those sequences should be followed no longer."""
        self._num_steps += 1
        if self._num_steps % _JUDGE or not self._lengths.times.foretold:
            return False
        self._num_lost = self._num_lost + 1 if self._worth(drafts, len(drafts), _ENOUGH) < _LEAST_WORTH else 0
        if self._num_lost < _PATIENCE:
            return False
        self._num_lost = 0
        return True

    def _worth(self, drafts: Drafts, num_draws: int, enough: int) -> float:
        """Tokens a second of decoding sequences if ids are foretold, over those if they are not, nor drafted.

        As it was with about as many sequences, where `enough` draws tell: of many guesses from times that vary, the
        best one is too good.
        """
        gained = self._gained.get(num_draws.bit_length())
        if gained and gained.num_draws >= enough:
            return gained.alone / gained.taken
        return self._lengths.best_rate(drafts, num_draws) * self._lengths.times.computing(num_draws) / num_draws
