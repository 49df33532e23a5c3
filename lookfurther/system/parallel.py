"""Work on many things at once, a process for each core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from lookfurther.system.cores import count_cores
from lookfurther.system.processes import safe_import_path

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """The function's results in order, each as soon as it is there."""
    crew = min(count_cores(), len(items))
    if crew <= 1:
        yield from map(function, items)
        return
    with safe_import_path():  # the pool itself starts a process, and `map` starts the others
        pool = ProcessPoolExecutor(crew, get_context("spawn"))
        results = pool.map(function, items)
    with pool:
        try:
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)
