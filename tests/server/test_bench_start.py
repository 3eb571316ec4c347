"""`core bench start`: real servers, started and stopped; what does not start is an error that says why."""

import json

import psutil
import pytest
from processes import run_core

from core.errors import ConfigError
from server.start_cost import measure


def test_times_of_a_start() -> None:
    """Both are there, in their order, and nothing is left running."""
    before = set(psutil.Process().children(recursive=True))
    done = run_core("bench", "start", "--num-iters", "1", "--json", "--", "smollm2", "--device", "null")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["ready_s", "first_s"]
    for times in found.values():
        assert times["all"] == [times["median"]]
    assert found["ready_s"]["median"] > 0.3  # no interpreter loads the server and an engine faster
    assert 0 < found["first_s"]["median"] < 60
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_server_that_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"core serve ended with code 2: error: .*nothing-here"):
        measure(["./nothing-here"], 60)


def test_a_server_that_takes_too_long() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ConfigError, match="not ready in time: raise --time-limit"):
        measure(["smollm2", "--device", "null"], 0.1)
    assert set(psutil.Process().children(recursive=True)) == before
