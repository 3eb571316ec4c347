"""The simulator's own parts, C++ without torch: a program for each file of cases, and a test for each case."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import devices.kunlun.sim

CASES = Path(__file__).parent / "sim_engine"
ENGINE = Path(devices.kunlun.sim.__file__).parent / "engine"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Test programs by the name of their source. They are compiled at once."""
    folder = tmp_path_factory.mktemp("sim_engine")
    built = {source.stem: folder / source.stem for source in CASES.glob("*.cpp")}
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{ENGINE}"]
    compilers = [
        subprocess.Popen(["g++", *flags, str(CASES / f"{name}.cpp"), "-o", str(program)])
        for name, program in built.items()
    ]
    assert [compiler.wait() for compiler in compilers] == [0] * len(built)
    return built


def cases() -> Iterator[tuple[str, str]]:
    for source in sorted(CASES.glob("*.cpp")):
        for name in re.findall(r'^CASE\("(.*)"\)', source.read_text(), re.MULTILINE):
            yield source.stem, name


@pytest.mark.heavy
@pytest.mark.parametrize(("program", "case"), list(cases()))
def test_engine(programs: dict[str, Path], program: str, case: str) -> None:
    done = subprocess.run([programs[program], case], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_files_of_the_simulator_stay_readable() -> None:
    sources = [path for path in ENGINE.parent.rglob("*") if path.suffix in (".h", ".cpp")]
    assert len(sources) > 10
    for path in sources:
        lines = path.read_text().splitlines()
        assert len(lines) <= 300, path
        assert max(map(len, lines)) <= 120, path
