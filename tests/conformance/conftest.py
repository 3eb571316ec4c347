"""Runs the tests of `examined` for the rows of the file that imports them."""

import pytest

from tests.conformance.examined import mutants_of, name_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows = getattr(metafunc.module, "ROWS", ())
    if "wrong_kernel" in metafunc.fixturenames:
        metafunc.parametrize("wrong_kernel", mutants_of(rows, "wrong", "cheat"), ids=name_of)
    if "right_kernel" in metafunc.fixturenames:
        metafunc.parametrize("right_kernel", mutants_of(rows, "right"), ids=name_of)
    if "examined_row" in metafunc.fixturenames:
        metafunc.parametrize("examined_row", rows)
