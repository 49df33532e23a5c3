"""A container's limits on cores and memory, read from folders like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lookfurther.system import cgroups
from lookfurther.system.processes import count_cores
from lookfurther.training import hardware

GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712


def write_machine(root: Path, groups: str, files: dict[str, str], available_gib: int = 64) -> Path:
    """Write a root folder with this process's groups, control group files and free memory."""
    proc = {"proc/self/cgroup": groups, "proc/meminfo": f"MemAvailable: {available_gib << 20} kB\n"}
    mounted = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (proc | mounted).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


# Quota in microseconds per period of 100 ms -> cores, of 8 on the machine.
CORES_BY_QUOTA = {
    "max": 8,
    "1000": 1,
    "50000": 1,
    "149000": 1,
    "150000": 2,
    "190000": 2,
    "1600000": 8,
}


@pytest.mark.parametrize(("quota", "expected"), CORES_BY_QUOTA.items())
@pytest.mark.parametrize("version", [1, 2])
def test_core_count_follows_container_quota(
    version: int, quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    if version == 2:
        root = write_machine(tmp_path, "0::/\n", {"cpu.max": f"{quota} 100000\n"})
    else:
        files = {
            "cpu/cpu.cfs_quota_us": quota.replace("max", "-1"),
            "cpu/cpu.cfs_period_us": "100000",
        }
        root = write_machine(tmp_path, "3:cpu,cpuacct:/\n0::/\n", files)
    assert count_cores(root) == expected


def test_core_count_follows_smaller_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 7}, raising=False)
    assert count_cores(write_machine(tmp_path, "0::/\n", {"cpu.max": "400000 100000\n"})) == 2


@pytest.mark.parametrize("tightest", ["", "slice/", "slice/box/"])
def test_smallest_limit_on_path_applies(tightest: str, tmp_path: Path) -> None:
    files = {"other/cpu.max": "1000 100000", "other/memory.max": "1"}  # not on the path
    for group in ("", "slice/", "slice/box/"):
        files[f"{group}cpu.max"] = "250000 100000" if group == tightest else "400000 100000"
        files[f"{group}memory.max"] = str((2 if group == tightest else 3) * GIB)
        files[f"{group}memory.current"] = str(GIB // 2)
    root = write_machine(tmp_path, "0::/slice/box\n", files)
    assert cgroups.cpu_limit(root) == 2.5
    assert cgroups.memory_below_limit(root) == 2 * GIB - GIB // 2


def test_container_group_at_mount_is_limited(tmp_path: Path) -> None:
    """Version 1 gives the host's path, which the container cannot open; ".." is outside."""
    files = {
        "cpu/cpu.cfs_quota_us": "300000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(GIB),
        "memory/memory.usage_in_bytes": str(GIB // 4),
    }
    root = write_machine(tmp_path, "5:memory:/docker/0a1b\n3:cpu,cpuacct:/../0a1b\n", files)
    assert cgroups.cpu_limit(root) == 3
    assert cgroups.memory_below_limit(root) == GIB - GIB // 4


@pytest.mark.parametrize("name", ["inactive_file", "total_inactive_file"])
def test_inactive_file_cache_counts_as_free(name: str, tmp_path: Path) -> None:
    files = {
        "memory.max": str(4 * GIB),
        "memory.current": str(3 * GIB),
        "memory.stat": f"anon 17\n{name} {2 * GIB}\n",
    }
    assert cgroups.memory_below_limit(write_machine(tmp_path, "0::/\n", files)) == 3 * GIB


def test_without_limit_machine_memory_counts(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    none = write_machine(tmp_path / "none", "", {})
    assert cgroups.cpu_limit(none) is None
    assert cgroups.memory_below_limit(none) is None
    for groups, files in (
        ("0::/\n", {"memory.max": "max\n"}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(NO_LIMIT_V1)}),
    ):
        root = write_machine(tmp_path / groups[0], groups, files)
        assert hardware.available_memory(cpu, root) == 64 * GIB


def test_available_memory_is_container_limit(tmp_path: Path) -> None:
    root = write_machine(tmp_path, "0::/box\n", {"box/memory.max": str(2 * GIB)})
    assert hardware.available_memory(torch.device("cpu"), root) == 2 * GIB
    small = write_machine(
        tmp_path / "small", "0::/\n", {"memory.max": str(2 * GIB)}, available_gib=1
    )
    assert hardware.available_memory(torch.device("cpu"), small) == GIB
