"""Runs the tests of `examined` for the rows of the file that imports them; the catalogue's kernels on one thread."""

from collections.abc import Iterator

import pytest
import torch

from tests.conformance.examined import mutants_of, name_of
from tests.shares import one_in

WRONG_IN_QUICK, RIGHT_IN_QUICK = 12, 4
"""Of so many kernels, or devices' rows, one is tried among the quick tests, and the others among the heavy ones."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows = getattr(metafunc.module, "ROWS", ())
    if "wrong_kernel" in metafunc.fixturenames:
        wrong = mutants_of(rows, "wrong", "cheat")
        metafunc.parametrize("wrong_kernel", one_in(WRONG_IN_QUICK, wrong), ids=[name_of(m) for m in wrong])
    if "right_kernel" in metafunc.fixturenames:
        right = mutants_of(rows, "right")
        metafunc.parametrize("right_kernel", one_in(RIGHT_IN_QUICK, right), ids=[name_of(m) for m in right])
    if "examined_row" in metafunc.fixturenames:
        metafunc.parametrize("examined_row", one_in(RIGHT_IN_QUICK, rows))


@pytest.fixture(autouse=True)
def one_thread_for_the_catalogue(request: pytest.FixtureRequest) -> Iterator[None]:
    """As `core mutants` does: two processes whose threads wait for each other take more than twice as long."""
    before = torch.get_num_threads()
    if {"wrong_kernel", "right_kernel", "mutant"} & set(request.fixturenames):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
