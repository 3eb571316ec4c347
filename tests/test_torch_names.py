"""Core uses only names of torch that torch 2.5 has: vendors' builds lag behind.

Every `torch.<dotted>` name in core, under whatever name it was imported, stands in torch_names.txt; each of those is in
torch 2.5. Methods of tensors are not seen in the source: references use old ones only.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTED = (Path(__file__).parent / "torch_names.txt").read_text().split()


def names_in(source: str) -> set[str]:
    """Full names, the longest chains: of `F.linear`, `torch.nn.functional.linear`."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.partition(".")[0] == "torch":
                    known[item.asname or "torch"] = item.name if item.asname else "torch"
                    found.add(item.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            for item in node.names:
                known[item.asname or item.name] = f"{node.module}.{item.name}"
                found.add(f"{node.module}.{item.name}")
    _Chains(known, found).visit(tree)
    return found - {"torch"}


class _Chains(ast.NodeVisitor):
    """Collects attribute chains that begin at a name of torch."""

    def __init__(self, known: dict[str, str], found: set[str]) -> None:
        self._known, self._found = known, found

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        here: ast.expr = node
        while isinstance(here, ast.Attribute):
            parts.append(here.attr)
            here = here.value
        if isinstance(here, ast.Name) and here.id in self._known:
            self._found.add(".".join([self._known[here.id], *reversed(parts)]))
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Annotations may be strings."""
        if isinstance(node.value, str) and "torch." in node.value and " " not in node.value:
            try:
                self.visit(ast.parse(node.value, mode="eval"))
            except SyntaxError:
                return


def names_of_core() -> set[str]:
    return set[str]().union(*(names_in(path.read_text()) for path in (ROOT / "core").rglob("*.py")))


def test_names_are_listed() -> None:
    used = names_of_core()
    assert len(used) > 30
    assert sorted(used - set(LISTED)) == [], "is it in torch 2.5? Then add it to torch_names.txt"
    assert sorted(set(LISTED) - used) == [], "no longer used: remove it from torch_names.txt"


def test_the_list_is_sorted() -> None:
    assert sorted(set(LISTED)) == LISTED


def test_listed_names_exist_here() -> None:
    for name in LISTED:
        place, rest = importlib.import_module("torch"), name.split(".")[1:]
        for i, part in enumerate(rest):
            if not hasattr(place, part):
                importlib.import_module(".".join(["torch", *rest[: i + 1]]))
            place = getattr(place, part)


def test_names_are_found_however_they_are_written() -> None:
    source = """
import torch
import torch.nn.functional as F
import torch.distributed
from torch import distributed as dist
from torch.utils import cpp_extension

x: "torch.Tensor" = torch.zeros(2).to(torch.float32)
y = F.silu(x) + getattr(dist, "get_rank")(dist.group.WORLD)
not_torch.zeros(cpp_extension.load)
"""
    assert names_in(source) == {
        "torch.nn.functional", "torch.distributed", "torch.utils.cpp_extension", "torch.Tensor", "torch.zeros",
        "torch.float32", "torch.nn.functional.silu", "torch.distributed.group.WORLD", "torch.utils.cpp_extension.load",
    }  # fmt: skip
