"""The limits of control groups, by which containers share a machine: processors and memory.

Both versions of control groups are read. The smallest limit on the path from a process's group to
the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FILESYSTEM_ROOT = Path("/")


def cpu_limit(root: Path = FILESYSTEM_ROOT) -> float | None:
    """Processors' worth of time that this process may use; None where nothing limits it."""
    limits = []
    for group in _group_folders("cpu", root):
        quota = _read_number(group / "cpu.max", 0) or _read_number(group / "cpu.cfs_quota_us", 0)
        period = _read_number(group / "cpu.max", 1) or _read_number(group / "cpu.cfs_period_us", 0)
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_below_limit(root: Path = FILESYSTEM_ROOT) -> int | None:
    """Bytes that this process may still take; None where nothing limits it.

    Cached files that were not used lately are given back under pressure: they count as free.
    Version 1 writes "no limit" as a number that is larger than any memory.
    """
    left = []
    for group in _group_folders("memory", root):
        limit = _read_number(group / "memory.max", 0) or _read_number(
            group / "memory.limit_in_bytes", 0
        )
        used = _read_number(group / "memory.current", 0) or _read_number(
            group / "memory.usage_in_bytes", 0
        )
        if limit is not None:
            left.append(
                max(0, limit - max(0, (used or 0) - _inactive_file_bytes(group / "memory.stat")))
            )
    return min(left, default=None)


def _group_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's groups, from the innermost to where they are mounted.

    A container often sees its own group at the mount, under the path that it has outside: folders
    that are not there are left out, the mount never is.
    """
    mounted = root / "sys/fs/cgroup"
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):  # version 1: a hierarchy for each controller
            mounts = [mounted / controller, mounted / names]
        elif not names:  # version 2
            mounts = [mounted, mounted / "unified"]
        else:
            continue
        inside = [part for part in path.split("/") if part]
        depth = 0 if ".." in inside else len(inside)
        for mount in mounts:
            for length in range(depth, -1, -1):
                if (group := mount.joinpath(*inside[:length])).is_dir():
                    yield group


def _read_text(path: Path) -> str:
    """The text of a file; empty where there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _read_number(path: Path, index: int) -> int | None:
    """A word of a file as a positive number; None where it says "max", -1 or nothing."""
    words = _read_text(path).split()
    return int(words[index]) if len(words) > index and words[index].isdigit() else None


def _inactive_file_bytes(path: Path) -> int:
    """Bytes of the group's files that were not used lately, those of the groups in it included."""
    counts = dict(line.split() for line in _read_text(path).splitlines())
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
