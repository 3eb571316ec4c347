"""What to ask and when: made at random, or replayed from a trace.

Traces, told apart by name and first line:
- Mooncake's: JSON lines {timestamp (ms), input_length, output_length, hash_ids}; an id is 512 tokens of prefix.
- Azure's: CSV with TIMESTAMP, ContextTokens, GeneratedTokens; nothing is known of prefixes.
- coding agents': JSON lines, gzipped or not, a session each {id, block_size, requests: [{t (s), in, out, runs}]}, where
  runs are [first id, count] of prefix blocks that mean something within the session alone.

Equal blocks become equal text, so a prefix cache finds what it would have found. Source: Mooncake, FAST 2025 (first
format); Splitwise, ISCA 2024 (second).
"""

import csv
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from core.errors import ConfigError
from server.load.words import words

MOONCAKE_BLOCK = 512


@dataclass(frozen=True)
class Ask:
    """One request: when, counted from the start, and of what lengths in tokens.

    own          names the text that is this request's alone: what blocks leave
    scope        within which an id of a block means the same text
    runs         (first id, count) of the blocks that its text begins with, of `block_size` tokens each
    """

    at_s: float
    num_in: int
    num_out: int
    own: str
    scope: str = ""
    runs: tuple[tuple[int, int], ...] = ()
    block_size: int = MOONCAKE_BLOCK

    def prompt(self) -> str:
        """The text. Made when it is sent: a trace's texts together would fill the memory."""
        ids = (i for first, count in self.runs for i in range(first, first + count))
        whole = list(islice(ids, self.num_in // self.block_size))
        shared = "".join(words(f"{self.scope} {i}", self.block_size) for i in whole)
        return (shared + words(self.own, self.num_in - len(whole) * self.block_size)).lstrip()


def at_random(
    count: int, num_in: int, num_out: int, rate: float | None, burstiness: float, seed: int, prefix_len: int = 0
) -> list[Ask]:
    """Requests of one size, all at once or `rate` in a second: apart by a gamma distribution, whose shape is
    `burstiness` (1: a Poisson process; less: in bursts). The first `prefix_len` tokens are the same for all."""
    draw = random.Random(seed)
    at_s, asks = 0.0, []
    for i in range(count):
        shared = ((0, 1),) if prefix_len else ()
        asks.append(Ask(at_s, prefix_len + num_in, num_out, f"{seed}.{i}", f"{seed}", shared, max(1, prefix_len)))
        if rate is not None:
            at_s += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return asks


def from_trace(path: Path, count: int | None, speed: float, longest: int | None) -> tuple[list[Ask], int]:
    """The first `count` requests, `speed` times as fast, and how many were left out because prompt and output are
    longer than `longest`. Raises: ConfigError when the file cannot be read as a trace."""
    try:
        found = sorted(_read(path), key=lambda ask: ask.at_s)
    except (OSError, EOFError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no trace that is known ({type(error).__name__}: {error}); see --help") from None
    fitting = [ask for ask in found if longest is None or ask.num_in + ask.num_out <= longest]
    taken = fitting[:count]
    if not taken:
        raise ConfigError(f"{path} has no request of at most {longest} tokens: raise --max-model-len")
    start_s = taken[0].at_s
    moved = [replace(ask, at_s=(ask.at_s - start_s) / speed) for ask in taken]
    return moved, len(found) - len(fitting)


def _read(path: Path) -> Iterator[Ask]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        if path.name.removesuffix(".gz").endswith(".csv"):
            yield from _azure(csv.DictReader(lines))
            return
        for number, line in enumerate(lines):
            entry = msgspec.json.decode(line)
            if "requests" in entry:
                yield from _session(entry, entry["requests"], 0.0, f"{entry['id']}")
            else:
                yield _mooncake(entry, f"{number}")


def _azure(rows: Iterator[dict[str, str]]) -> Iterator[Ask]:
    for number, row in enumerate(rows):
        at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield Ask(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]), f"own {number}")


def _mooncake(entry: dict[str, Any], name: str) -> Ask:
    runs = tuple((i, 1) for i in entry["hash_ids"])
    return Ask(entry["timestamp"] / 1000, entry["input_length"], entry["output_length"], f"own {name}", runs=runs)


def _session(session: dict[str, Any], requests: list[dict[str, Any]], start_s: float, name: str) -> Iterator[Ask]:
    for number, request in enumerate(requests):
        at_s, own = start_s + request["t"], f"{name} own {number}"
        if "requests" in request:  # a sub-agent, whose times count from its own start
            yield from _session(session, request["requests"], at_s, own)
            continue
        runs = tuple((first, count) for first, count in request["runs"])
        yield Ask(at_s, request["in"], request["out"], own, session["id"], runs, session["block_size"])
