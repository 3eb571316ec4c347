"""The run of `core bench peers`: the machine's limits before and after, and the comparison in between."""

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import msgspec
import torch

from core.config import EngineConfig
from core.engine.models import find_model, read_config
from server.compare import compare
from server.measure import Case
from server.peers.kinds import Peer
from server.peers.limits import Limits, bound, measure_limits, sizes
from server.peers.report import Report
from server.peers.weights import requantise

VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "OPENBLAS_", "MALLOC_", "LD_PRELOAD")


def run(
    config: EngineConfig,
    wanted: Sequence[Case],
    repetitions: int,
    peers: Sequence[Peer],
    logs: Path | None,
    time_limit_s: float,
    packed_type: str | None = None,
) -> Report:
    """Everything is measured. Raises: ConfigError for a peer that does not open, ends, or takes too long.

    packed_type   with config.weights "packed": the GGUF type in which all have the matrices; None: as they are stored
    """
    name = config.model
    with ExitStack() as opened:
        if packed_type is not None:
            scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            config = msgspec.structs.replace(config, model=str(requantise(name, packed_type, scratch)))
        return _measure(config, name, wanted, repetitions, peers, logs, time_limit_s, packed_type)


def _measure(
    config: EngineConfig,
    name: str,
    wanted: Sequence[Case],
    repetitions: int,
    peers: Sequence[Peer],
    logs: Path | None,
    time_limit_s: float,
    packed_type: str | None,
) -> Report:
    packed = config.weights == "packed"
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    limits = _limits(dtype)
    comparison = compare(config, wanted, repetitions, peers, logs, time_limit_s)
    for limit, rates in _limits(dtype).items():
        limits[limit] += rates
    source, spec = find_model(config.model)
    groups = read_config(source, spec, config.max_model_len).kv_groups
    element_bytes = getattr(torch, dtype).itemsize
    model = sizes(source, None if packed else element_bytes, groups, element_bytes)
    matmul = "int8" if packed else dtype
    return Report(
        model=name,
        weights=" ".join(filter(None, ("packed", packed_type))) if packed else dtype,
        threads=torch.get_num_threads(),
        environment={name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
        limits=limits,
        bounds=[bound(case, limits, model, matmul) for case in wanted],
        comparison=comparison,
    )


def _limits(dtype: str) -> Limits:
    """In a process of its own: torch's threads for this one would stay beside those of core's launch thread, and where
    there are more threads than processors, OpenMP's let go of the processor at once. It would slow down core alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure_limits, dtype).result()
