"""The committed lists are those of the cases, and no two cases share a name."""

from conformance import engine, mustpass
from conformance.kernels import all_exams
from core.kernels.table import TABLE


def test_lists_are_current() -> None:
    for level in mustpass.LEVELS:
        assert [case.name for case in mustpass.cases(level)] == mustpass.listed(level), "python -m conformance.mustpass"


def test_names_are_unique() -> None:
    names = mustpass.names("engine")
    assert len(names) == len(set(names))
    assert set(mustpass.names("kernel")) < set(names)
    assert set(mustpass.names("quick")) < set(names)


def test_every_row_of_the_table_is_examined() -> None:
    assert set(TABLE) <= set(all_exams())
    assert engine.ROW not in all_exams()
    assert {name.partition("/")[0] for name in mustpass.names("quick")} == set(all_exams())
