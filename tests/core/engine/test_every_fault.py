"""The Nth kernel call, allocation and copy fails, for every N: see test_faults.py, which has a spread of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.engine.faults import ERRORS, EVERYONE, NUM_ALL, Bench, faulty_device


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def bench(request, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with faulty_device(tmp_path_factory.mktemp("plugin") / "faulty") as fuse:
        made = Bench(tiny_llama_dir, request.param, fuse)
        yield made
        made.engine.close()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ERRORS)
def test_every_n(bench: Bench, kind: str) -> None:
    failed = [bench.run_into_fault(kind, nth) for nth in range(1, NUM_ALL + 1)]
    assert sum(map(bool, failed)) > NUM_ALL / 2
    assert set().union(*failed) == set(EVERYONE)
