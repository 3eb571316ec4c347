"""What runs in a peer's own environment: `python answer.py NAME`, in which NAME_peer.py beside this file is the peer.

Imports nothing of core. Each line on stdin is a JSON object and is answered by one line on stdout:
1. what to open {"model": PATH, "scratch": PATH, "threads": N, ...} -> {"versions": {...}, "settings": {...}}
2. any number of {"prompts": [[id, ...], ...], "num_tokens": N} -> {"first_s", "total_s", "num_decoded", "num_drawn"}
The end of stdin ends the process. An error ends it, too, with its traceback on stderr.

A peer is a class `Peer(asked)` with `versions`, `settings` and `generate(prompts, num_tokens, watch)`, which continues
every prompt, as one batch, greedily, by exactly `num_tokens`, and tells the `Watch` what is drawn.
"""

import importlib
import json
import os
import sys
import time
from typing import Any


class Watch:
    """Times a run. Tokens that are decoded count from the moment at which every sequence has its first one."""

    def __init__(self, num_sequences: int) -> None:
        self._drawn = [0] * num_sequences
        self._num_at_first = 0
        self._first_s = 0.0
        self._start_s = 0.0

    def start(self) -> None:
        """What is prepared for a case comes before, all else after."""
        self._start_s = time.perf_counter()

    def drawn(self, sequence: int, count: int = 1) -> None:
        """`count` more tokens of a sequence are there."""
        self._drawn[sequence] += count

    def step_done(self) -> None:
        """All tokens of a step are told."""
        if not self._num_at_first and all(self._drawn):
            self._num_at_first = sum(self._drawn)
            self._first_s = time.perf_counter() - self._start_s

    def answer(self) -> dict[str, Any]:
        """Everything is drawn."""
        total_s = time.perf_counter() - self._start_s
        num_decoded = sum(self._drawn) - self._num_at_first
        return {"first_s": self._first_s, "total_s": total_s, "num_decoded": num_decoded, "num_drawn": self._drawn}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is no answer
    peer = importlib.import_module(f"{sys.argv[1]}_peer").Peer(json.loads(sys.stdin.readline()))
    answer = {"versions": peer.versions, "settings": peer.settings}
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        watch = Watch(len(asked["prompts"]))
        peer.generate(asked["prompts"], asked["num_tokens"], watch)
        answer = watch.answer()


if __name__ == "__main__":
    main()
