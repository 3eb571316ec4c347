"""The page that vendors read is current, and says all it should of every kernel."""

from conformance import kernel_page
from core.kernels.cost import COSTS
from core.kernels.row import Group
from core.kernels.table import TABLE


def test_it_is_current() -> None:
    assert kernel_page.PATH.read_text() == kernel_page.page(), "python -m conformance.kernel_page"


def test_every_kernel_is_described_and_examined() -> None:
    sections = kernel_page.page().split("\n### `")[1:]
    assert [section.partition("`")[0] for section in sections] == [
        row.name for group in Group for row in TABLE.values() if row.group is group
    ]
    for section in sections:
        assert "- bound: " in section
        assert "- examined: " in section
        assert "- examined: \n" not in section


def test_costs_are_of_kernels_and_count_what_they_must() -> None:
    assert set(COSTS) <= set(TABLE)
    assert {row.name for row in TABLE.values() if row.production} <= set(COSTS)
    assert COSTS["linear"]({"T": 2, "N": 3, "K": 5, "e": 2, "w": 1}) == (60.0, 2 * (10 + 6) + 15.0)
    decode = {"T": 1, "H": 8, "Hkv": 2, "D": 64, "P": 100, "C": 100, "e": 2}
    assert COSTS["attn_paged"](decode) == (4 * 100 * 8 * 64, 2 * (2 * 8 * 64 + 2 * 100 * 2 * 64))
