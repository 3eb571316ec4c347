"""Building the compiled kernels, choosing among them, and what the device says where there are none."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.engine.build import describe
from core.errors import ConfigError
from core.plugin import DeviceFacts, Unavailable
from devices.cpu import machine
from devices.cpu.device import CpuDevice
from devices.cpu.native import build, library
from devices.cpu.native.library import find_native

ROOT = Path(__file__).parents[3]
FUZZ = Path(__file__).parent / "native_fuzz.cpp"


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has forced a variant, and what was found before is forgotten."""
    monkeypatch.delenv(library.VARIABLE, raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    library._why_missing.cache_clear()
    library._library.cache_clear()


def arch() -> str:
    facts = CpuDevice().probe()
    assert isinstance(facts, DeviceFacts)
    return facts.arch


def test_the_best_variant_is_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("avx2",))
    assert find_native().variant == library.variants()[0] != library.PORTABLE
    assert arch().endswith(f"; native kernels: {library.variants()[0]}")


@pytest.mark.parametrize("variant", library.variants())
def test_each_can_be_forced(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, variant)
    assert find_native().variant == variant


def test_off_and_unknown_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "off")
    assert arch().endswith("no native kernels: CORE_CPU_NATIVE is off")
    monkeypatch.setenv(library.VARIABLE, "mmx")
    with pytest.raises(ConfigError, match=r"CORE_CPU_NATIVE is mmx: choose among .*generic, off"):
        find_native()
    refused = CpuDevice().probe()
    assert isinstance(refused, Unavailable)
    assert "mmx" in refused.reason


def test_torch_is_kept_where_it_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "variants", lambda: ("avx512", library.PORTABLE))
    monkeypatch.setattr(library, "_why_no_tiles", lambda: "compiled without AMX")
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("avx2", "amx_bf16"))
    assert (
        find_native().describe()
        == "no native kernels: torch uses AMX and they were compiled without AMX; CORE_CPU_NATIVE=avx512 takes them"
    )
    monkeypatch.setattr(machine, "instruction_sets", lambda: ())
    monkeypatch.setattr(library, "variants", lambda: (library.PORTABLE,))
    assert "this processor has no AVX2" in find_native().describe()


REFUSED = """
import ctypes
from devices.cpu.device import CpuDevice
from devices.cpu.native import library
class Stack(ctypes.Structure):
    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
memory = ctypes.create_string_buffer(4096)
small = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(small), None) == 0
print(*library.variants(), CpuDevice().probe().arch, sep="; ")
"""


@pytest.mark.skipif("amx_bf16" not in machine.instruction_sets(), reason="this processor has no AMX")
def test_where_the_system_refuses_tiles_the_next_variant_is_used_and_said() -> None:
    """It refuses them where a signal's stack is too small for them."""
    command, env = [sys.executable, "-c", REFUSED], os.environ | {library.VARIABLE: ""}
    said = subprocess.run(command, env=env, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert said.startswith("avx512_bf16; ")
    assert said.endswith("native kernels: avx512_bf16 (the system refuses AMX to this process)\n")


def test_where_nothing_is_built_the_plan_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "HERE", tmp_path)
    assert arch().endswith("no native kernels: not built: pip compiles them with the package")
    forget()
    (tmp_path / build.REASON).write_text("no C++ compiler (g++)\n")
    plan = describe(EngineConfig(model="smollm2", dtype="bfloat16"))
    assert plan.arch.endswith("no native kernels: not built: no C++ compiler (g++)")
    assert {b.provider for b in plan.bindings if b.row == "linear"} == {"cpu"}
    monkeypatch.setenv(library.VARIABLE, "avx2")
    with pytest.raises(ConfigError, match=r"CORE_CPU_NATIVE is avx2: choose among off \(not built"):
        find_native()


def test_a_library_that_this_system_cannot_load_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / build.LIBRARY).write_text("of another system")
    monkeypatch.setattr(library, "HERE", tmp_path)
    assert "no native kernels: cannot be loaded: " in arch()


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "sources_hash", lambda: "other")
    assert "not built from these sources: install the package again" in find_native().describe()


def test_without_a_compiler_the_reason_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / build.LIBRARY).write_text("of an earlier build")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = build.build(tmp_path)
    assert made == tmp_path / build.REASON
    assert made.read_text() == "no C++ compiler (g++, clang++, c++)\n"
    assert not (tmp_path / build.LIBRARY).exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [("false", "false failed: exit code 1"), ("no-such-compiler", "no-such-compiler: No such file or directory")],
)
def test_a_compiler_that_fails_is_named(
    program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", program)
    assert build.build(tmp_path).read_text() == f"{reason}\n"


@pytest.mark.heavy
def test_a_build_takes_the_place_of_an_older_one_and_has_the_same_bytes_again(tmp_path: Path) -> None:
    """A certificate names the library by its hash."""
    (tmp_path / build.REASON).write_text("no C++ compiler")
    made = []
    for _ in range(2):
        assert build.build(tmp_path) == tmp_path / build.LIBRARY
        assert [path.name for path in tmp_path.iterdir()] == [build.LIBRARY]
        made.append((tmp_path / build.LIBRARY).read_bytes())
    assert made[0] == made[1]


@pytest.mark.heavy
@pytest.mark.skipif(not set(library.variants()) & {"avx2"}, reason="what is left out is for x86")
def test_a_compiler_that_knows_no_amx_makes_the_other_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = tmp_path / "older"
    older.write_text(
        '#!/bin/sh\ncase "$*" in *-mamx*) echo "error: unrecognized option -mamx-tile" >&2; exit 1;; esac\n'
        f'exec {shutil.which("g++")} "$@"\n'
    )
    older.chmod(0o755)
    monkeypatch.setenv("CXX", str(older))
    assert build.build(tmp_path) == tmp_path / build.LIBRARY
    before = library.variants()
    monkeypatch.setattr(library, "HERE", tmp_path)
    forget()
    assert library.variants() == tuple(name for name in before if name != "amx")
    assert library._why_no_tiles() == "compiled without AMX"


@pytest.mark.heavy
def test_a_wheel_made_without_a_compiler_runs_and_says_so(tmp_path: Path) -> None:
    """Of any platform, and unpacked where the source tree is not."""
    env = os.environ | {"CXX": "no-such-compiler"}
    env.pop("PYTHONPATH", None)
    build_wheel = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build_wheel, env=env, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "there")
    program = "from devices.cpu.device import CpuDevice; print(CpuDevice().probe().arch)"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "there")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "no native kernels: not built: no-such-compiler: No such file or directory" in said.stdout


@pytest.mark.heavy
def test_no_kernel_leaves_its_memory(tmp_path: Path) -> None:
    """Every variant, on random sizes in memory that ends where arrays end, under AddressSanitizer and UBSan."""
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    objects = build.compile_objects("g++", tmp_path, *checks)
    program = str(tmp_path / "fuzz")
    build.run("g++", "-std=c++17", *checks, f"-I{build.HERE}", str(FUZZ), *objects, "-fopenmp", "-o", program)
    done = subprocess.run([program, "400"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{name}:400" for name in library.variants()]
