"""Runs a comparison: opens what is measured, measures, and says what it was."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from core.config import EngineConfig
from server.measure import Case, Result, measure
from server.peers.idle import Counted, Turn, turns
from server.peers.kinds import Peer
from server.peers.process import PeerProcess
from server.peers.weights import prepare
from server.runners import CoreRunner
from server.show import progress

TIME_LIMIT_S = 1800.0


@dataclass(frozen=True)
class Comparison:
    """Results of each case, one for each runner, core first; and what the runners were.

    arch   of the processor that core ran on, as its device plugin names it
    """

    results: list[list[Result]]
    runners: list[Turn]
    arch: str


def compare(
    config: EngineConfig,
    wanted: Sequence[Case],
    repetitions: int,
    peers: Sequence[Peer] = (),
    logs: Path | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Comparison:
    """Core alone, or beside peers on the same weights, with as many threads each.

    logs           folder for what the peers say; None: kept no longer than the run
    time_limit_s   for a peer to open, and for each of its runs
    """
    import torch

    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        files: dict[str, Path] = {}
        if peers:
            config, files = prepare(config, peers, scratch)
        core = opened.enter_context(CoreRunner(config))
        runners: list[Counted] = [core]
        for peer in peers:
            asked = {
                "model": str(files[peer.name]),
                "scratch": str(scratch),
                "threads": torch.get_num_threads(),
                "dtype": core.dtype,
            }
            log = (logs or scratch) / f"{peer.name}.log"
            runners.append(opened.enter_context(PeerProcess(peer, asked, log, time_limit_s)))
        tick = opened.enter_context(progress("Measuring"))
        each = turns(runners)
        results = list(measure(each, wanted, repetitions, core.llm.tokenizer.vocab_size, tick))
        return Comparison(results, each, core.llm.plan.arch)
