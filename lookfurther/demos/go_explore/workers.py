"""Explorers in this process or in processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import numpy as np

from lookfurther.demos.go_explore.archive import Entry, Trip
from lookfurther.demos.go_explore.explorer import Explorer, Game, Start
from lookfurther.errors import EnvironmentFault
from lookfurther.system.processes import safe_import_path

Build = Callable[[], Game]  # must pickle where there are several processes
Choose = Callable[[], list[Entry]]  # gives the starts of a few trips
Trips = Generator[tuple[Entry, Trip]]  # each with its start


def trips(build: Build, seeds: Sequence[np.random.SeedSequence], choose: Choose) -> Trips:
    """Trips without end, by one explorer for each seed."""
    if len(seeds) == 1:
        return _alone(Explorer(build(), seeds[0]), choose)
    return _together(build, seeds, choose)


def _alone(explorer: Explorer, choose: Choose) -> Trips:
    while True:
        for entry in choose():
            yield entry, explorer.explore(_start(entry))


def _together(build: Build, seeds: Sequence[np.random.SeedSequence], choose: Choose) -> Trips:
    """Whoever has come back is sent out again before its trips are given on."""
    with contextlib.ExitStack() as stack:
        crew = dict(stack.enter_context(_member(build, seed)) for seed in seeds)
        given: dict[Connection, list[Entry]] = {}
        for pipe in crew:
            given[pipe] = _send(pipe, choose())
        while True:
            for pipe in wait(list(crew)):
                assert isinstance(pipe, Connection)
                made, starts = _hear(pipe, crew[pipe]), given[pipe]
                given[pipe] = _send(pipe, choose())
                yield from zip(starts, made, strict=True)


def _start(entry: Entry) -> Start:
    return Start(entry.score, entry.steps, entry.state)


def _send(pipe: Connection, entries: list[Entry]) -> list[Entry]:
    pipe.send([_start(entry) for entry in entries])
    return entries


def _hear(pipe: Connection, process: SpawnProcess) -> list[Trip]:
    """The trips of a batch, or the fault that ended them."""
    try:
        answer = pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise EnvironmentFault(f"a search process died (exit code {process.exitcode})") from None
    if isinstance(answer, str):
        raise EnvironmentFault(f"a search process failed: {answer}")
    return answer


@contextlib.contextmanager
def _member(
    build: Build, seed: np.random.SeedSequence
) -> Iterator[tuple[Connection, SpawnProcess]]:
    """A process that explores whatever starts come down the pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, build, seed), daemon=True)
    with safe_import_path():
        process.start()
    there.close()
    try:
        yield here, process
    finally:
        here.close()
        process.kill()  # it holds nothing but the trips of a batch nobody waits for
        process.join()


def _work(pipe: Connection, build: Build, seed: np.random.SeedSequence) -> None:
    """Explore until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the search as a whole
    try:
        explorer = Explorer(build(), seed)
        while True:
            pipe.send([explorer.explore(start) for start in pipe.recv()])
    except (EOFError, ConnectionError):
        return  # the search is over, or gone
    except Exception:
        pipe.send(traceback.format_exc().strip().splitlines()[-1])
