"""Subprocesses, and how many of them this machine can run at once.

Subprocesses do not import from the working directory. `python -m` and `python -c`, which
multiprocessing uses too, put the working directory first on the import path. In a data folder that
contains a select.py, they would run it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from lookfurther.system import cgroups

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
PACKAGE_FOLDER = Path(__file__).parents[2]

T = TypeVar("T")
R = TypeVar("R")


def count_cores(root: Path = cgroups.FILESYSTEM_ROOT) -> int:
    """Processor cores that this process may use, by its CPU affinity and its container's limit.

    A container's limit is rounded to whole cores, halves up, and is at least one.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limit = cgroups.cpu_limit(root)
    return cores if limit is None else min(cores, max(1, int(limit + 0.5)))


def parallel_map(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The function's results in order, each as soon as it is ready, from one process per core."""
    workers = min(count_cores(), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    with safe_import_path():  # the pool itself starts a process, and `map` starts the others
        pool = ProcessPoolExecutor(workers, get_context("spawn"))
        results = pool.map(function, items)
    with pool:
        try:
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)


def python_command(*arguments: str) -> list[str]:
    """The command line of another Python process; start it with `subprocess_environment`."""
    return [sys.executable, "-P", *arguments]


def subprocess_environment(user_modules: bool = False) -> dict[str, str]:
    """Environment variables of a process that finds the same packages as this one.

    A process that needs the user's own modules also searches the working directory, but only if
    this process does.
    """
    working_dir = Path.cwd()
    paths = [path or str(working_dir) for path in sys.path if not path or Path(path).is_absolute()]
    if not (user_modules or working_dir == PACKAGE_FOLDER):
        paths = [path for path in paths if Path(path).absolute() != working_dir]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def safe_import_path() -> Iterator[None]:
    """Start processes of multiprocessing without the working directory on the import path.

    They then receive the import path of this process, which has the user's modules.
    """
    previous = os.environ.get(SAFE_PATH_VARIABLE)
    os.environ[SAFE_PATH_VARIABLE] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[SAFE_PATH_VARIABLE]
        else:
            os.environ[SAFE_PATH_VARIABLE] = previous
