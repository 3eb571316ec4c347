"""What this machine lets this process use: processors, memory, instruction sets.

Reads the kernel's own files; refuses nothing: what cannot be read does not limit. Imports no torch.
`root` stands for "/" in tests.
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")

# In the order in which people should read them.
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
BF16_SETS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def instruction_sets(root: Path = ROOT) -> tuple[str, ...]:
    """Those of INSTRUCTION_SETS that the processor has; none where the system does not say."""
    fields = _cpuinfo(root)
    flags = set(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())
    return tuple(name for name in INSTRUCTION_SETS if name in flags)


def model_name(root: Path = ROOT) -> str:
    """The processor's name for people."""
    return _cpuinfo(root).get("model name") or platform.processor() or platform.machine()


def num_cpus(root: Path = ROOT) -> int:
    """Processors this process may use at once: by affinity, and by quota of its cgroups; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    usable = len(affinity(0)) if affinity else os.cpu_count() or 1
    for group in _groups("cpu", root):
        quota, period = _quota(group)
        if quota > 0 and period > 0:
            usable = min(usable, quota // period)
    return max(usable, 1)


def num_threads(root: Path = ROOT) -> int:
    """Threads for torch: as many as OMP_NUM_THREADS says, as everywhere in torch; else one per processor."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # nested levels follow the comma
    # OpenMP itself warns about what is no number when torch is loaded.
    return int(asked) if asked.isdigit() and int(asked) > 0 else num_cpus(root)


def memory_bytes(root: Path = ROOT) -> tuple[int, int]:
    """Free and total memory for this process: the machine's, or less where a cgroup says so.

    Cached file pages that can be dropped count as free.
    """
    machine = psutil.virtual_memory()
    free, total = machine.available, machine.total
    for group in _groups("memory", root):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        # The older interface says "no limit" with a number near 2**63.
        if limit is not None and used is not None and limit < machine.total:
            droppable = _fields(group / "memory.stat", " ").get("inactive_file", "0")
            free, total = min(free, limit - used + int(droppable)), min(total, limit)
    return max(free, 0), total


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's cgroups that may limit `controller`, parents too; versions 1 and 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers and controller)
        folder = top / path.lstrip("/")
        # In a container the path may be the host's: only what can be seen from here is there.
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(top) and f.is_dir())


def _quota(group: Path) -> tuple[int, int]:
    """Microseconds of processor time per period, and the period; (0, 0) for no limit."""
    both = _read(group / "cpu.max").split()
    if len(both) == 2 and both[0].isdigit():
        return int(both[0]), int(both[1])
    return _number(group / "cpu.cfs_quota_us") or 0, _number(group / "cpu.cfs_period_us") or 0


def _number(*files: Path) -> int | None:
    """The number in the first of `files` that holds one."""
    for file in files:
        text = _read(file).strip()
        if text.isdigit():
            return int(text)
    return None


def _cpuinfo(root: Path) -> dict[str, str]:
    return _fields(root / "proc/cpuinfo", ":")


def _fields(file: Path, separator: str) -> dict[str, str]:
    pairs = (line.split(separator, 1) for line in _read(file).splitlines() if separator in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _read(file: Path) -> str:
    """The file's text; empty where there is none or it may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
