"""Runs the tests of `examined` for the rows of the file that imports them; the catalogue's kernels on one thread."""

from collections.abc import Iterator

import pytest
import torch

from tests.conformance.examined import mutants_of, name_of

IN_QUICK = 6
"""Of so many wrong kernels, one is tried among the quick tests, and all are among the heavy ones."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows = getattr(metafunc.module, "ROWS", ())
    if "wrong_kernel" in metafunc.fixturenames:
        wrong = mutants_of(rows, "wrong", "cheat")
        some = [pytest.param(m, marks=pytest.mark.heavy) if i % IN_QUICK else m for i, m in enumerate(wrong)]
        metafunc.parametrize("wrong_kernel", some, ids=[name_of(m) for m in wrong])
    if "right_kernel" in metafunc.fixturenames:
        metafunc.parametrize("right_kernel", mutants_of(rows, "right"), ids=name_of)
    if "examined_row" in metafunc.fixturenames:
        metafunc.parametrize("examined_row", rows)


@pytest.fixture(autouse=True)
def one_thread_for_the_catalogue(request: pytest.FixtureRequest) -> Iterator[None]:
    """As `core mutants` does: two processes whose threads wait for each other take more than twice as long."""
    before = torch.get_num_threads()
    if {"wrong_kernel", "right_kernel", "mutant"} & set(request.fixturenames):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
