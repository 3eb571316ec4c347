"""The grammar seam: what a grammar engine is to core, and the thread that compiles.

How it works. A request with a grammar is compiled beside the engine's loop and waits outside of the queue meanwhile;
what cannot be compiled is refused. Its sequence then owns a `Matcher`. While a step computes logits the engine's thread
fills one mask for each draw of such a sequence; the step draws when the masks have come. The id drawn goes back into
the matcher, so nothing of a sequence with a grammar is scheduled while a draw of it is in flight. Preemption leaves the
matcher alone: it follows the ids, not the cache.

Refuses to guess: a grammar that the engine cannot enforce in full is an error of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
import numpy.typing as npt

from core.errors import RequestError
from core.request import Request, Structured

Words = npt.NDArray[np.int32]


class Matcher(Protocol):
    """Where one output is in its grammar. Used by one thread at a time."""

    @property
    def fault(self) -> str | None:
        """Why the output cannot go on: the grammar became too complex, or allows nothing. It stays."""

    @property
    def is_done(self) -> bool:
        """Whether the output is complete and nothing can follow."""

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""

    def fill(self, words: Words) -> None:
        """Write what may be drawn next: bit i of int32 word w stands for id 32 w + i; ids past the vocabulary are 0.

        Ids that end the output are among it where it is complete, and nowhere else. With a fault, all bits are 1: what
        is drawn is thrown away.
        """

    def accept(self, ids: Sequence[int]) -> int:
        """Go on by these ids, as far as the grammar allows them; returns how many. None of them ends the output."""

    def rollback(self, num_ids: int) -> None:
        """Go back by so many ids that were accepted; a fault that came after them is gone, if that can be."""


class Compiler(Protocol):
    """Makes matchers for one tokenizer."""

    def compile(self, structured: Structured, stop_ids: Sequence[int]) -> Matcher:
        """`stop_ids` end the output. Raises: RequestError for what cannot be enforced, or allows no output."""


def fill_masks(draws: Sequence[tuple[Matcher, list[int]]], vocab_size: int) -> bytes:
    """Masks of the next draws, int32 [N, ceil(V / 32)]: one of each matcher, and one after each of its drafts. It
    accepts them.

    Where a matcher has a fault after a draft, this draft and those after it are taken from its list: the draw in its
    place counts, and the fault is found again once the draw is known.
    """
    words = np.zeros((sum(1 + len(drafts) for _, drafts in draws), -(-vocab_size // 32)), np.int32)
    start = 0
    for matcher, drafts in draws:
        rows = words[start : start + 1 + len(drafts)]
        start += len(rows)
        matcher.fill(rows[0])
        if drafts:
            _fill_ahead(matcher, drafts, rows[1:])
    return words.tobytes()


def _fill_ahead(matcher: Matcher, drafts: list[int], rows: npt.NDArray[np.int32]) -> None:
    num = 0
    while num < len(drafts) and matcher.fault is None:
        matcher.accept([drafts[num]])
        matcher.fill(rows[num])
        num += 1
    is_faulty = matcher.fault is not None
    matcher.rollback(num)
    if is_faulty and num:
        del drafts[num - 1 :]


class Grammars:
    """Compiles the grammars of one engine, one after the other, on a thread of its own.

    open_compiler   is called on that thread, when the first grammar comes
    """

    def __init__(self, open_compiler: Callable[[], Compiler]) -> None:
        self._open_compiler = open_compiler
        self._compiler: Compiler | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._begun: dict[str, Future[Matcher]] = {}

    def begin(self, request: Request) -> None:
        """Compile the grammar of a request that has one."""
        self._begun[request.request_id] = self._thread.submit(self._compile, request)

    def _compile(self, request: Request) -> Matcher:
        assert request.structured is not None
        if self._compiler is None:
            self._compiler = self._open_compiler()
        return self._compiler.compile(request.structured, request.stop_ids)

    def take_done(self) -> Iterator[tuple[str, Matcher | RequestError]]:
        """Every request that has its matcher now, or the reason why it gets none."""
        for request_id in [key for key, future in self._begun.items() if future.done()]:
            future = self._begun.pop(request_id)
            error = future.exception()
            if error is None:
                yield request_id, future.result()
            elif isinstance(error, RequestError):
                yield request_id, error
            else:
                yield request_id, RequestError(f"structured cannot be compiled: {error}", "structured")

    def wait(self, timeout_s: float) -> None:
        """Until a grammar is done, or for so long; not at all when none is being compiled."""
        wait(self._begun.values(), timeout_s, FIRST_COMPLETED)

    def drop(self, request_id: str) -> None:
        """Forget a request that has ended."""
        future = self._begun.pop(request_id, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Stop. What is being compiled is finished first."""
        self._begun.clear()
        self._thread.shutdown(cancel_futures=True)
