"""The run of `core bench peers`: the machine's limits before and after, and the comparison in between."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from core.config import EngineConfig
from server.compare import compare
from server.measure import Case
from server.models import open_model
from server.peers.kinds import Peer
from server.peers.limits import bound, measure_limits, sizes
from server.peers.report import Report

VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "OPENBLAS_", "MALLOC_", "LD_PRELOAD")


def run(
    config: EngineConfig,
    wanted: Sequence[Case],
    repetitions: int,
    peers: Sequence[Peer],
    logs: Path | None,
    time_limit_s: float,
) -> Report:
    """Everything is measured. Raises: ConfigError for a peer that does not open, ends, or takes too long."""
    packed = config.weights == "packed"
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    limits = measure_limits(dtype)
    comparison = compare(config, wanted, repetitions, peers, logs, time_limit_s)
    for name, rates in measure_limits(dtype).items():
        limits[name] += rates
    model = sizes(open_model(config.model), None if packed else getattr(torch, dtype).itemsize)
    matmul = "int8" if packed else dtype
    return Report(
        model=config.model,
        weights="packed" if packed else dtype,
        threads=torch.get_num_threads(),
        environment={name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
        limits=limits,
        bounds=[bound(case, limits, model, matmul) for case in wanted],
        comparison=comparison,
    )
