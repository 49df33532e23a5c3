"""CPU and memory limits of control groups, which containers set.

Both versions of control groups are supported. The smallest limit on the path from a process's
group to the root applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FILESYSTEM_ROOT = Path("/")


def cpu_limit(root: Path = FILESYSTEM_ROOT) -> float | None:
    """The number of processors whose time this process may use; None without a limit."""
    limits = []
    for group in _group_folders("cpu", root):
        quota = _read_number(group / "cpu.max", 0) or _read_number(group / "cpu.cfs_quota_us", 0)
        period = _read_number(group / "cpu.max", 1) or _read_number(group / "cpu.cfs_period_us", 0)
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_below_limit(root: Path = FILESYSTEM_ROOT) -> int | None:
    """Bytes that this process may still allocate; None without a limit.

    The kernel frees cached files that were not used recently when memory is short: they count as
    free. Version 1 writes "no limit" as a number larger than any memory.
    """
    free = []
    for group in _group_folders("memory", root):
        limit = _read_first_number(group, "memory.max", "memory.limit_in_bytes")
        used = _read_first_number(group, "memory.current", "memory.usage_in_bytes") or 0
        if limit is not None:
            in_use = max(0, used - _inactive_file_bytes(group / "memory.stat"))
            free.append(max(0, limit - in_use))
    return min(free, default=None)


def _group_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's groups, from the innermost to the mount point.

    A container often has its own group at the mount point, but reads the path that the group has
    on the host. Folders that do not exist are skipped; the mount point never is.
    """
    cgroup_dir = root / "sys/fs/cgroup"
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):  # version 1: one hierarchy per controller
            mounts = [cgroup_dir / controller, cgroup_dir / names]
        elif not names:  # version 2
            mounts = [cgroup_dir, cgroup_dir / "unified"]
        else:
            continue
        parts = [part for part in path.split("/") if part]
        depth = 0 if ".." in parts else len(parts)
        for mount in mounts:
            for length in range(depth, -1, -1):
                if (group := mount.joinpath(*parts[:length])).is_dir():
                    yield group


def _read_text(path: Path) -> str:
    """The text of a file; empty if it is absent or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _read_number(path: Path, index: int) -> int | None:
    """A word of a file as a positive number; None if it is "max", -1 or absent."""
    words = _read_text(path).split()
    return int(words[index]) if len(words) > index and words[index].isdigit() else None


def _read_first_number(group: Path, *names: str) -> int | None:
    """The number in the first of these files that has one other than 0."""
    number = None
    for name in names:
        number = number or _read_number(group / name, 0)
    return number


def _inactive_file_bytes(path: Path) -> int:
    """Bytes of cached files not used recently, in this group and the groups inside it."""
    counts = dict(line.split() for line in _read_text(path).splitlines())
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
