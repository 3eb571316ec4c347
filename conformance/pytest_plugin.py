"""Kernel cases as items of pytest, in a vendor's own repository. One line of its pytest settings does it:

    addopts = "-p conformance.pytest_plugin --core-device mychip"

and `--core-level kernel` runs all cases instead of the quick ones. A case that the device does not support is no item.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.child import Task
from conformance.declare import declare
from conformance.exam import examine, pairs
from conformance.kernels import all_exams
from conformance.mustpass import KERNEL_LEVELS
from conformance.target import Target, open_target


class CaseFailed(Exception):
    """A kernel did not pass a case; the message has the findings."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("core", "conformance of device plugins")
    group.addoption("--core-device", metavar="NAME", help="examine the kernels of this device plugin")
    group.addoption("--core-level", default="quick", choices=KERNEL_LEVELS, help="which cases (default: quick)")
    group.addoption("--core-seed", default="", metavar="TEXT", help="seed of inputs; default: a random one, shown")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.getoption("--core-device"):
        return None
    if not config.getoption("--core-seed"):
        config.option.core_seed = secrets.token_hex(8)
    return f"core device: {config.getoption('--core-device')}, --core-seed {config.getoption('--core-seed')}"


@pytest.hookimpl(tryfirst=True)  # before items are chosen by -k
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds an item for every supported case with every provider."""
    device = config.getoption("--core-device")
    if device:
        items += _items(session, open_target(device), config.getoption("--core-level"), config.getoption("--core-seed"))


def _items(session: pytest.Session, target: Target, level: str, seed: str) -> Iterator[pytest.Item]:
    cases = {
        Task(row, case.name, provider): case
        for row, exam in all_exams().items()
        for case, provider in pairs(exam, target)
    }
    for declared in declare(target, level):
        if not declared.unsupported:
            name = f"{declared.case} ({declared.provider})"
            case = cases[declared.task]
            yield KernelItem.from_parent(
                session, name=name, case=case, target=target, provider=declared.provider, seed=seed
            )


class KernelItem(pytest.Item):
    """One case with one provider's kernel."""

    def __init__(self, *, case: Any, target: Target, provider: str, seed: str, **more: Any) -> None:
        super().__init__(**more)
        self._case, self._target, self._provider, self._seed = case, target, provider, seed

    def runtest(self) -> None:
        exam = all_exams()[self._case.row]
        result, _ = examine(exam, self._case, self._target, self._provider, self._seed.encode())
        if result.status != "pass":
            raise CaseFailed(result.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, None, str]:
        return self.path, None, self.name
