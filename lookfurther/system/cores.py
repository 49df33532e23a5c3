"""How much of the machine there is."""

from __future__ import annotations

import os
from pathlib import Path

from lookfurther.system import cgroups


def count_cores(root: Path = cgroups.FILESYSTEM_ROOT) -> int:
    """Processor cores this process may use: those it may run on, or what its container pays for.

    A container's limit is rounded to whole cores, halves up, and is at least one.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cgroups.cpu_limit(root)
    return here if limit is None else min(here, max(1, int(limit + 0.5)))
