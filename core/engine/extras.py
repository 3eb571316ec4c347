"""What only some requests ask of their draws: bias, penalties, masks, min_p, log-probabilities.

Packed only in steps where a request asks for it, as tensors of their own: the common step stays as small as it is.

Legend: L logit rows, H ids of history, B biased ids, W words of a mask (V / 32), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from core.engine.columns import Columns
from core.engine.rows import Ints, Rows, Wishes
from core.plugin.device import Device
from core.request import MAX_BIAS, MAX_LOGPROBS

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Extras:
    """Tensors on the device; None where no row of the step asks for that. Rows that do not ask are neutral."""

    targets: torch.Tensor  # L: the token that a scoring row scores
    num_logprobs: int | None  # likeliest tokens to report
    named: torch.Tensor | None  # L, A: tokens to report beside these; 0 pads
    bias: tuple[torch.Tensor, ...] | None  # ids L, B; values L, B float32
    penalties: tuple[torch.Tensor, ...] | None  # history L, H; num_prompt L; repetition, frequency, presence L float32
    mask: torch.Tensor | None  # L, W: bits
    min_p: torch.Tensor | None  # L float32


class ExtrasPacker:
    """Makes the extras of a step.

    widest   longest history there can be, where steps are compiled: then extras have one shape, with everything in it
    """

    def __init__(
        self, device: Device, where: torch.device, rows: Rows, vocab_size: int, widest: int | None = None
    ) -> None:
        self._device = device
        self._where = where
        self._rows = rows
        self._vocab_size = vocab_size
        self._widest = widest

    @property
    def compiled(self) -> bool:
        """Whether extras have one shape."""
        return self._widest is not None

    @property
    def most_logprobs(self) -> int:
        """What a request may ask for."""
        return min(MAX_LOGPROBS, self._vocab_size)

    def pack(self, batch: Columns, size: int, masked: bool = False) -> Extras | None:
        """For the logit rows of a step, padded to `size`; None when all are plain.

        masked      a grammar masks some: with extras that have one shape, that is one of them
        """
        logit_rows = batch.logit_rows
        scores = bool((logit_rows == 0).any())
        plain = not scores and bool(self._rows.plain[logit_rows].all())
        if plain and not (masked and self.compiled):
            return None
        wishes = [self._rows.wishes[row] for row in logit_rows] + [Wishes()] * (size - len(logit_rows))
        ids = [batch.seen(i) for i in range(len(logit_rows))] + [np.zeros(0, np.int32)] * (size - len(logit_rows))
        padded = np.zeros(size, np.int32)
        padded[: len(batch.targets)] = batch.targets
        return Extras(
            self._copy(padded),
            self._num_logprobs(wishes, scores),
            self._named(wishes),
            self._bias(wishes),
            self._penalties(wishes, ids),
            self._mask(wishes, ids, batch.counters),
            self._min_p(wishes),
        )

    def grammar_mask(self, draws: list[int], words: bytes, size: int) -> torch.Tensor:
        """Bits of what grammars allow, int32 [size, W]: rows of `words` for these draws; all ones for the others."""
        mask = np.full((size, -(-self._vocab_size // 32)), -1, np.int32)
        mask[draws] = np.frombuffer(words, np.int32).reshape(len(draws), mask.shape[1])
        return self._copy(mask)

    def _copy(self, values: Ints | Floats) -> torch.Tensor:
        host = self._device.host_empty(values.shape, torch.float32 if values.dtype == np.float32 else torch.int32)
        host.numpy()[...] = values
        on_device = self._device.empty(values.shape, host.dtype, self._where)
        copied = self._device.h2d(on_device, host)
        copied.wait()
        copied.synchronize()  # `host` is not kept
        return on_device

    def _num_logprobs(self, wishes: list[Wishes], scores: bool) -> int | None:
        asked = [w.request.logprobs for w in wishes if w.request]
        if scores:
            asked += [w.request.prompt_logprobs for w in self._rows.wishes if w.request]
        most = max(asked, default=-1)
        if most >= 0 and self.compiled:
            return self.most_logprobs
        return most if most >= 0 else None

    def _named(self, wishes: list[Wishes]) -> torch.Tensor | None:
        asked = [w.request.logprob_ids if w.request else [] for w in wishes]
        width = self.most_logprobs if self.compiled else max(map(len, asked))
        if not width:
            return None
        ids = np.zeros((len(wishes), width), np.int32)
        for row, own in zip(ids, asked, strict=True):
            row[: len(own)] = own
        return self._copy(ids)

    def _bias(self, wishes: list[Wishes]) -> tuple[torch.Tensor, ...] | None:
        width = MAX_BIAS if self.compiled else _rounded(max(len(w.bias) for w in wishes))
        if not width:
            return None
        ids, values = np.full((len(wishes), width), -1, np.int32), np.zeros((len(wishes), width), np.float32)
        for i, w in enumerate(wishes):
            ids[i, : len(w.bias)], values[i, : len(w.bias)] = w.bias_ids, w.bias
        return self._copy(ids), self._copy(values)

    def _penalties(self, wishes: list[Wishes], ids: list[Ints]) -> tuple[torch.Tensor, ...] | None:
        seen_most = max(len(seen) if w.penalizes else 0 for w, seen in zip(wishes, ids, strict=True))
        width = _rounded(seen_most) if self._widest is None else self._widest
        if not width:
            return None
        history = np.full((len(wishes), width), -1, np.int32)
        num_prompt = np.array([w.num_prompt for w in wishes], np.int32)
        factors = np.zeros((3, len(wishes)), np.float32)
        factors[0] = 1
        for i, (w, seen) in enumerate(zip(wishes, ids, strict=True)):
            if w.penalizes and w.request:
                history[i, : len(seen)] = seen
                r = w.request
                factors[:, i] = r.repetition_penalty, r.frequency_penalty, r.presence_penalty
        return self._copy(history), self._copy(num_prompt), *(self._copy(row) for row in factors)

    def _mask(self, wishes: list[Wishes], ids: list[Ints], positions: Ints) -> torch.Tensor | None:
        """Bits of what may be drawn: allowed ids, less ends that come too early, less ids that complete bad words."""
        at = positions.tolist() + [0] * (len(wishes) - len(positions))
        forbidden = [_forbidden(w, seen, position) for w, seen, position in zip(wishes, ids, at, strict=True)]
        asked = any(forbidden) or any(w.request and w.request.allowed_ids for w in wishes)
        if not asked and not self.compiled:
            return None
        bits = np.ones((len(wishes), -(-self._vocab_size // 32) * 32), bool)
        for i, w in enumerate(wishes):
            if w.request and w.request.allowed_ids:
                bits[i] = False
                bits[i, w.request.allowed_ids] = True
            bits[i, forbidden[i]] = False
        return self._copy(np.packbits(bits, axis=1, bitorder="little").view("<i4"))

    def _min_p(self, wishes: list[Wishes]) -> torch.Tensor | None:
        least = np.array([w.request.min_p if w.request else 0.0 for w in wishes], np.float32)
        return self._copy(least) if self.compiled or least.any() else None


def _forbidden(wishes: Wishes, seen: Ints, position: int) -> list[int]:
    """Ids that may not be drawn at `position`, after the ids `seen`."""
    r = wishes.request
    if r is None:
        return []
    early = r.stop_ids if position - wishes.num_prompt < r.min_tokens else []
    bad = [word[-1] for word in r.bad_ids if len(word) == 1 or seen[1 - len(word) :].tolist() == word[:-1]]
    return [*early, *bad]


def _rounded(width: int) -> int:
    """The next power of two: few shapes, where shapes cost."""
    return 1 << (width - 1).bit_length() if width else 0
