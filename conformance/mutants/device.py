"""Wrong and right copies between host and device: h2d and d2h of a device whose memory is the host's.

Work "on the device" is done at once here, so a copy that is late or early is one that an event starts, or a later copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from conformance.mutants.mutant import CATALOGUE, Mutant
from core.plugin.device import Event

Copy = Callable[[torch.Tensor, torch.Tensor], Event]


class _Late(Event):
    """Copies when it is told to: at `wait`, at `synchronize`, or at both; else when the next copy is started."""

    pending: list[_Late] = []  # noqa: RUF012  of all copies

    def __init__(self, dst: torch.Tensor, src: torch.Tensor, *, at_wait: bool, at_synchronize: bool) -> None:
        for late in self.pending:
            late.land()
        self.pending[:] = [self]
        self._copy: tuple[torch.Tensor, torch.Tensor] | None = (dst, src)
        self._at_wait, self._at_synchronize = at_wait, at_synchronize

    def land(self) -> None:
        if self._copy:
            self._copy[0].copy_(self._copy[1])
        self._copy = None

    def wait(self) -> None:
        if self._at_wait:
            self.land()

    def synchronize(self) -> None:
        if self._at_synchronize:
            self.land()


class _Running(Event):
    """A copy by another thread."""

    def __init__(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        self._thread = threading.Thread(target=dst.copy_, args=(src,))
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    synchronize = wait


def no_fence(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """An event that lies: nothing is waited for."""
    return _Late(dst, src, at_wait=False, at_synchronize=False)


def wait_is_no_fence(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return _Late(dst, src, at_wait=False, at_synchronize=True)


def synchronize_is_no_fence(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return _Late(dst, src, at_wait=True, at_synchronize=False)


def late(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """Copies when it is waited for; what is on the device is read in order."""
    return _Late(dst, src, at_wait=True, at_synchronize=True)


def on_a_thread(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return _Running(dst, src)


def at_once(dst: torch.Tensor, src: torch.Tensor) -> Event:
    dst.copy_(src)
    return Event()


def twice(dst: torch.Tensor, src: torch.Tensor) -> Event:
    dst.copy_(src)
    return at_once(dst, src)


def in_parts(dst: torch.Tensor, src: torch.Tensor) -> Event:
    for into, out_of in zip(dst.chunk(7), src.chunk(7), strict=True):
        into.copy_(out_of)
    return Event()


def refuses_views(dst: torch.Tensor, src: torch.Tensor) -> Event:
    if not (dst.is_contiguous() and src.is_contiguous()):
        raise ValueError("views are not copied: give contiguous tensors")
    return at_once(dst, src)


def _bytes(dst: torch.Tensor, src: torch.Tensor, num_bytes: int) -> Event:
    """Copy that many bytes from the start of one memory to that of the other."""
    into, out_of = (x.as_strided((x.numel(),), (1,)).view(torch.uint8) for x in (dst, src))
    into[:num_bytes] = out_of[:num_bytes]
    return Event()


def strides_ignored(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return _bytes(dst, src, dst.numel() * dst.element_size())


def whole_words(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """The last bytes that fill no word of 8 are left."""
    return _bytes(dst, src, dst.numel() * dst.element_size() // 8 * 8) if dst.is_contiguous() else at_once(dst, src)


def last_element_lost(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return at_once(dst.view(-1)[:-1], src.view(-1)[:-1]) if dst.is_contiguous() else at_once(dst, src)


def first_4096_bytes(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return _bytes(dst, src, 4096) if dst.is_contiguous() else at_once(dst, src)


def aligned_down(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """From addresses without their last four bits."""
    start = src.storage_offset() * src.element_size() % 16 // src.element_size()
    return at_once(dst, src.as_strided(src.shape, src.stride(), src.storage_offset() - start))


def by_value(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """Not bit by bit: NaN becomes another NaN, and large integers others."""
    wide = src.float() + 0.0
    return at_once(dst, (wide if src.is_floating_point() else wide.clamp(-(2.0**30), 2.0**30)).to(src.dtype))


_first: dict[tuple[int, int], torch.Tensor] = {}


def first_content(dst: torch.Tensor, src: torch.Tensor) -> Event:
    """What these addresses held when they were copied first."""
    key = dst.data_ptr(), src.data_ptr()
    if key not in _first or (_first[key].shape, _first[key].dtype) != (src.shape, src.dtype):
        _first[key] = src.clone()
    return at_once(dst, _first[key])


def nothing(dst: torch.Tensor, src: torch.Tensor) -> Event:
    return Event()


def _both(kind: str, *copies: Copy) -> None:
    CATALOGUE.extend(Mutant(row, copy.__name__, kind, copy) for copy in copies for row in ("h2d", "d2h"))


_both("wrong", no_fence, wait_is_no_fence, synchronize_is_no_fence, whole_words, last_element_lost, first_4096_bytes)
_both("wrong", aligned_down, by_value)
_both("cheat", strides_ignored, first_content, nothing)
_both("right", on_a_thread, late, twice, in_parts, refuses_views)
