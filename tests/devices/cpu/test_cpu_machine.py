"""What the machine allows, read from folders laid out as the kernel does."""

import os

import psutil
import pytest

from devices.cpu import machine


def lay_out(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_instruction_sets_of_x86_and_arm(tmp_path):
    x86 = lay_out(
        tmp_path / "a", {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Chip 9\nflags\t\t: sse2 amx_bf16 avx2\n"}
    )
    assert machine.instruction_sets(x86) == ("avx2", "amx_bf16")
    assert machine.model_name(x86) == "Chip 9"
    arm = lay_out(tmp_path / "b", {"proc/cpuinfo": "Features\t: fp asimd bf16\n"})
    assert machine.instruction_sets(arm) == ("asimd", "bf16")
    assert machine.instruction_sets(tmp_path / "none") == ()
    assert machine.model_name(tmp_path / "none")


def test_memory_without_limits_is_the_machine(tmp_path):
    free, total = machine.memory_bytes(tmp_path)
    assert total == psutil.virtual_memory().total
    assert 0 < free <= total


def test_memory_in_version_2_is_the_tightest_of_the_parents(tmp_path):
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/task\n",
            "sys/fs/cgroup/slice/task/memory.max": "max\n",
            "sys/fs/cgroup/slice/task/memory.current": "5\n",
            "sys/fs/cgroup/slice/memory.max": "1000000\n",
            "sys/fs/cgroup/slice/memory.current": "400000\n",
            "sys/fs/cgroup/slice/memory.stat": "anon 300000\ninactive_file 50000\n",
        },
    )
    assert machine.memory_bytes(root) == (650000, 1000000)


def test_memory_in_version_1(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/host/path\n3:cpu,cpuacct:/\n0::/\n",
        # The host's path is not visible from within a container: its limits are at the top.
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200000\n",
    }
    assert machine.memory_bytes(lay_out(tmp_path, files)) == (0, 1000000)
    files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(2**63 - 4096)
    assert machine.memory_bytes(lay_out(tmp_path, files))[1] == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "20000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_processors_by_affinity_and_quota(tmp_path, files, most):
    usable = len(os.sched_getaffinity(0))
    assert machine.num_cpus(lay_out(tmp_path, files)) == (most or usable)
