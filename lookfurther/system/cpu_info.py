"""The processor, as Linux describes it."""

from __future__ import annotations

import platform
from pathlib import Path

from lookfurther.system.cgroups import FILESYSTEM_ROOT


def read_cpu_flags(root: Path = FILESYSTEM_ROOT) -> set[str]:
    """The processor's features as Linux names them; empty on other systems."""
    return {flag for key in ("flags", "Features") for flag in _read_value(root, key).split()}


def find_cpu_model(root: Path = FILESYSTEM_ROOT) -> str | None:
    """The name of the processor, if the system gives it."""
    return _read_value(root, "model name") or platform.processor() or None


def _read_value(root: Path, key: str) -> str:
    """The first value of a key in /proc/cpuinfo; empty if there is none."""
    info = root / "proc/cpuinfo"
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
