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

from lookfurther.demos.go_explore.archive import ArchiveEntry, Exploration
from lookfurther.demos.go_explore.explorer import ExplorationGame, ExplorationStart, Explorer
from lookfurther.errors import EnvironmentFault
from lookfurther.system.processes import safe_import_path

GameFactory = Callable[[], ExplorationGame]  # must pickle where there are several processes
StartSampler = Callable[[], list[ArchiveEntry]]  # gives the starts of a few trips
Explorations = Generator[tuple[ArchiveEntry, Exploration]]  # each with its start


def iter_explorations(
    make_game: GameFactory, seeds: Sequence[np.random.SeedSequence], sample_starts: StartSampler
) -> Explorations:
    """Trips without end, by one explorer for each seed."""
    if len(seeds) == 1:
        return _explore_in_this_process(Explorer(make_game(), seeds[0]), sample_starts)
    return _explore_in_workers(make_game, seeds, sample_starts)


def _explore_in_this_process(explorer: Explorer, sample_starts: StartSampler) -> Explorations:
    while True:
        for entry in sample_starts():
            yield entry, explorer.explore(_to_start(entry))


def _explore_in_workers(
    make_game: GameFactory, seeds: Sequence[np.random.SeedSequence], sample_starts: StartSampler
) -> Explorations:
    """Whoever has come back is sent out again before its trips are given on."""
    with contextlib.ExitStack() as stack:
        crew = dict(stack.enter_context(_start_worker(make_game, seed)) for seed in seeds)
        given: dict[Connection, list[ArchiveEntry]] = {}
        for pipe in crew:
            given[pipe] = _send_starts(pipe, sample_starts())
        while True:
            for pipe in wait(list(crew)):
                assert isinstance(pipe, Connection)
                made, starts = _receive_explorations(pipe, crew[pipe]), given[pipe]
                given[pipe] = _send_starts(pipe, sample_starts())
                yield from zip(starts, made, strict=True)


def _to_start(entry: ArchiveEntry) -> ExplorationStart:
    return ExplorationStart(entry.score, entry.steps, entry.state)


def _send_starts(pipe: Connection, entries: list[ArchiveEntry]) -> list[ArchiveEntry]:
    pipe.send([_to_start(entry) for entry in entries])
    return entries


def _receive_explorations(pipe: Connection, process: SpawnProcess) -> list[Exploration]:
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
def _start_worker(
    make_game: GameFactory, seed: np.random.SeedSequence
) -> Iterator[tuple[Connection, SpawnProcess]]:
    """A process that explores whatever starts come down the pipe."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run_worker, args=(there, make_game, seed), daemon=True)
    with safe_import_path():
        process.start()
    there.close()
    try:
        yield here, process
    finally:
        here.close()
        process.kill()  # it holds nothing but the trips of a batch nobody waits for
        process.join()


def _run_worker(pipe: Connection, make_game: GameFactory, seed: np.random.SeedSequence) -> None:
    """Explore until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the search as a whole
    try:
        explorer = Explorer(make_game(), seed)
        while True:
            pipe.send([explorer.explore(start) for start in pipe.recv()])
    except (EOFError, ConnectionError):
        return  # the search is over, or gone
    except Exception:
        pipe.send(traceback.format_exc().strip().splitlines()[-1])
