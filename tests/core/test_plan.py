"""What a plan shows of the steps that a device takes."""

import pytest

from core.plan import _show
from core.plugin.facts import ShapePolicy


def test_shapes_are_shown_with_what_padding_costs() -> None:
    # Of sizes 1 to 4, padded to 2 and 4: a half, nothing, a quarter, nothing. Of 1 to 8, padded to 8: 28 / 64.
    shown = _show(ShapePolicy(tokens=(2, 4), seqs=(8,), blocks=(1,)))
    assert shown == (
        "tokens 2, 4 (padding 19% on average, 50% at most); sequences 8 (padding 44% on average, 88% at most); "
        "blocks 1 (padding 0% on average, 0% at most)"
    )


@pytest.mark.parametrize(
    ("shapes", "shown"),
    [(ShapePolicy(), "any"), (ShapePolicy(seqs=(1,)), "tokens any; sequences 1 (padding 0% on average, 0% at most);")],
)
def test_sizes_without_buckets(shapes: ShapePolicy, shown: str) -> None:
    assert _show(shapes).startswith(shown)
