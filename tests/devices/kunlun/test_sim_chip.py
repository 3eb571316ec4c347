"""What is simulated, as text; and the build's refusals. Nothing is built here."""

from pathlib import Path

import pytest

from core.errors import ConfigError, PluginError
from devices.kunlun.sim.chip import Chip, parse_schedule


def test_text_gives_a_chip() -> None:
    text = "count=2, memory_mib=512,pcie_bytes_per_s=16e9,schedule=seed:3,strict=0"
    assert Chip.parse(text) == Chip(
        count=2, memory_bytes=512 << 20, pcie_bytes_per_s=16e9, schedule="seed:3", strict=False
    )
    assert Chip.parse("1") == Chip.parse("") == Chip()
    assert Chip.parse("memory_bytes=8192").memory_bytes == 8192


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory=5", "'memory', which is not known: choose among count, memory_bytes"),
        ("lazy", "'lazy': write key=value"),
        ("count=two", "count=two: write a whole number"),
        ("flops_per_s=fast", "flops_per_s=fast: write a number"),
        ("strict=no", "strict=no: write 0 or 1"),
        ("count=0", "count of the simulated chip is 0: it must be above 0"),
        ("count=65", "65: it must be between 1 and 64"),
        ("memory_bytes=1000", "1000: use a multiple of 4096"),
        ("memory_mib=1,memory_bytes=4096", "memory_bytes twice"),
        ("bytes_per_s=nan", "bytes_per_s of the simulated chip is nan"),
        ("schedule=random", "schedule 'random' is not known: use eager, lazy, or seed:"),
    ],
)
def test_wrong_text_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Chip.parse(text)


def test_schedules() -> None:
    assert [parse_schedule(text) for text in ("eager", "lazy", "seed:7")] == [("eager", 0), ("lazy", 0), ("seed", 7)]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from devices.kunlun.sim.build import load_extension

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PluginError, match=r"there is no no-such-compiler, .*: install g\+\+, or set CXX"):
        load_extension()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from devices.kunlun.sim.build import load_extension

    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(PluginError, match="out of luck"):
        load_extension()
    assert not list(tmp_path.rglob("*.so"))
