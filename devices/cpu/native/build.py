"""Compiles the native kernels: beside this file for an editable install, into the wheel otherwise.

How it works. `variant.cpp` is compiled once for each set of instructions, each with its own flags, and `entry.cpp`
once; the library chooses among the variants when it runs. A compiler that knows no AMX makes the others. It is plain C
to the outside and includes nothing of torch, so one build serves every torch. Where it cannot be built, a file says why
instead, and the device uses torch's own operators. Runs while a package is built (`hook.py`), so it imports nothing of
this one.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY, REASON = "libcore_cpu.so", "not_built.txt"
COMPILERS = ("g++", "clang++", "c++")

# A sum must be the same in every block that it is computed in, so the compiler may not fuse or reorder operations.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl")
_BF16 = (*_AVX512, "-mavx512bf16")
_X86 = {"avx2": _AVX2, "avx512": _AVX512, "avx512_bf16": _BF16}
_AMX = (*_BF16, "-mamx-tile", "-mamx-bf16")


class CompileError(Exception):
    """What the compiler said."""


def build(folder: Path) -> Path:
    """Compile into `folder`: the library, or a file with the reason why it cannot be."""
    library, reason = folder / LIBRARY, folder / REASON
    failure = _compile(library)
    if failure is None:
        reason.unlink(missing_ok=True)
        return library
    library.unlink(missing_ok=True)
    reason.write_text(failure + "\n")
    return reason


def sources_hash() -> str:
    """SHA-256 of what the library is compiled from."""
    files = sorted(path for path in HERE.iterdir() if path.suffix in (".cpp", ".h"))
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def _compile(library: Path) -> str | None:
    """Why it failed, or None. The library is replaced at once: a process may have the old one loaded."""
    if platform.system() != "Linux":
        return f"they are for Linux, and this is {platform.system()}"
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return f"no C++ compiler ({', '.join(COMPILERS)})"
    with tempfile.TemporaryDirectory() as scratch:
        made, staged = Path(scratch, LIBRARY), library.with_suffix(".new")
        try:
            objects = compile_objects(compiler, Path(scratch))
            run(compiler, "-shared", "-Wl,--as-needed", "-o", str(made), *objects)
        except CompileError as error:
            return str(error)
        shutil.copyfile(made, staged)
        staged.replace(library)
    return None


def compile_objects(compiler: str, folder: Path, *more: str) -> list[str]:
    """Compile every source with the flags `more` added: the object files, in `folder`. Raises: CompileError."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    amx = x86 and _knows(compiler, *_AMX)
    have = (*(("-DHAVE_X86",) if x86 else ()), *(("-DHAVE_AMX",) if amx else ()))
    common = (compiler, *_FLAGS, *more, *have, "-c")
    commands = {"entry": (*common, f'-DSOURCES="{sources_hash()}"', str(HERE / "entry.cpp"))}
    variants = {"generic": (), **(_X86 if x86 else {}), **({"amx": _AMX} if amx else {})}
    for name, flags in variants.items():
        defines = (f"-DVARIANT=kernels_{name}", f'-DSIMD_HEADER="simd_{name}.h"')
        commands[name] = (*common, *flags, *defines, str(HERE / "variant.cpp"))
    objects = [str(folder / f"{name}.o") for name in commands]
    compiling = [(*command, "-o", out) for command, out in zip(commands.values(), objects, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: run(*command), compiling))
    return objects


def _knows(compiler: str, *flags: str) -> bool:
    """Whether the compiler takes these flags: g++ and clang++ know AMX since their 11."""
    try:
        run(compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull)
    except CompileError:
        return False
    return True


def run(*command: str) -> None:
    """Run a compiler. Raises: CompileError with its first complaint."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.splitlines()
        raise CompileError(
            f"{command[0]} failed: " + next((line for line in lines if "error" in line), f"exit code {done.returncode}")
        )
