"""A figure as it stands on the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """With its heading and a line that says how to read it. `name` is its id on the page."""

    name: str
    title: str
    note: str
    svg: str
