"""Work on many things at once, a process for each core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from lookfurther.cores import cores

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """The function's results in order, each as soon as it is there."""
    crew = min(cores(), len(things))
    if crew <= 1:
        yield from map(function, things)
        return
    with ProcessPoolExecutor(crew, get_context("spawn")) as pool:
        try:
            yield from pool.map(function, things)
        finally:
            pool.shutdown(cancel_futures=True)
