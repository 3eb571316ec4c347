"""Where one path is tried in many ways, the quick tests try some of them, and the heavy ones all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_of(every: Iterable[Any], *quick: Any) -> list[Any]:
    """The parameters `every` (tuples: of several names), of which all but `quick` are marked heavy.

    Raises: ValueError where `quick` is empty or names what is not there, so that a renamed case leaves no test out.
    """
    cases = list(every)
    if not quick or any(case not in cases for case in quick):
        raise ValueError(f"{quick} must be among {cases}: name at least one of them")
    heavy = pytest.mark.heavy
    each = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*values, marks=() if case in quick else heavy) for case, values in zip(cases, each, strict=True)
    ]


def one_in(num: int, every: Iterable[Any]) -> list[Any]:
    """The parameters `every`, of which all but the first of each `num` are marked heavy."""
    return [pytest.param(case, marks=pytest.mark.heavy) if i % num else case for i, case in enumerate(every)]
