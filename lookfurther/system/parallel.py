"""Work on many things at once, a process for each core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from lookfurther.system.cores import cores
from lookfurther.system.processes import safe_import_path

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """The function's results in order, each as soon as it is there."""
    crew = min(cores(), len(things))
    if crew <= 1:
        yield from map(function, things)
        return
    with safe_import_path():  # the pool itself starts a process, and `map` starts the others
        pool = ProcessPoolExecutor(crew, get_context("spawn"))
        results = pool.map(function, things)
    with pool:
        try:
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)
