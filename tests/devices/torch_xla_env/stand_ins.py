"""Stand-ins for the CUDA libraries that a torch wheel for CUDA links, so that it loads where they are not installed.

    python stand_ins.py SITE_PACKAGES/torch/lib

torch_xla is made for such a wheel, whose libraries take 4 GB and are never called here. Each one that the loader does
not find becomes an empty library of the same name, with the symbols and symbol versions that torch wants of it. All of
them say "no device" (`no_device.c`). For tests: nothing on a CUDA device works with them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NO_DEVICE = Path(__file__).parent / "no_device.c"
RUNTIME = "libcudart.so"


class Wanted(NamedTuple):
    """A symbol that a library does not define itself. `version` is empty where it names none."""

    name: str
    version: str


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(path: Path, which: str) -> Iterator[Wanted]:
    for line in output("nm", "-D", f"--{which}-only", path).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield Wanted(name, version.lstrip("@"))


def missing(libraries: list[Path]) -> set[str]:
    """Names of the libraries that the loader does not find."""
    return {name for path in libraries for name in re.findall(r"(\S+) => not found", output("ldd", path))}


def version_owners(path: Path) -> dict[str, str]:
    """Symbol version -> the library that it must come from, as `path` states it."""
    owners, owner = {}, ""
    for line in output("readelf", "--version-info", "--wide", path).splitlines():
        if found := re.search(r"File: (\S+)", line):
            owner = found[1]
        elif owner and (found := re.search(r"Name: (\S+)", line)):
            owners[found[1]] = owner
    return owners


def wanted_of(libraries: list[Path], absent: set[str]) -> dict[str, set[Wanted]]:
    """What each absent library has to define. Symbols without a version may come from any: the first one has them."""
    found: dict[str, set[Wanted]] = {name: set() for name in sorted(absent)}
    loose: set[Wanted] = set()
    for path in libraries:
        owners = version_owners(path)
        for symbol in symbols(path, "undefined"):
            owner = owners.get(symbol.version)
            if owner in found:
                found[owner].add(symbol)
            elif not symbol.version:
                loose.add(symbol)
    system = {Path(p) for path in libraries for p in re.findall(r"=> (/\S+)", output("ldd", path))}
    defined = {symbol.name for path in {*libraries, *system} for symbol in symbols(path, "defined")}
    next(iter(found.values())).update(symbol for symbol in loose if symbol.name not in defined)
    return found


def build(target: Path, wanted: set[Wanted]) -> None:
    """One stand-in. Every function returns 100, cudaErrorNoDevice."""
    source = NO_DEVICE.read_text() if target.name.startswith(RUNTIME) else ""
    written = set(re.findall(r"(\w+)\(", source))
    source += "".join(f"int {name}() {{ return 100; }}\n" for name in sorted({w.name for w in wanted} - written))
    by_version = defaultdict(list)
    for symbol in sorted(wanted):
        by_version[symbol.version].append(symbol.name)
    versions = "".join(f"{v} {{ global: {'; '.join(names)}; }};\n" for v, names in by_version.items() if v)
    with tempfile.TemporaryDirectory() as folder:
        code, script = Path(folder) / "code.c", Path(folder) / "versions"
        code.write_text(source)
        script.write_text(versions)
        options = [f"-Wl,--version-script,{script}"] if versions else []
        output("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", *options, code, "-o", target)


def main(folder: Path) -> None:
    libraries = sorted(folder.glob("*.so*"))
    absent = missing(libraries)
    if absent:
        for name, wanted in wanted_of(libraries, absent).items():
            build(folder / name, wanted)
    if still := missing(libraries):
        raise SystemExit(f"not found, and no stand-in helps: {', '.join(sorted(still))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
