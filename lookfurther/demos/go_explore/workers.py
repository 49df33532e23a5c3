"""Run explorers in this process or in worker processes.

This module uses pipes instead of concurrent.futures. An explorer stays in its worker with its seed
and best ranks, a worker that dies is reported with its exit code, and the end of a search kills
workers at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import numpy as np

from lookfurther.demos.go_explore.archive import ArchiveEntry, ExplorationResult
from lookfurther.demos.go_explore.explorer import ExplorationGame, ExplorationStart, Explorer
from lookfurther.errors import EnvironmentFault
from lookfurther.system.processes import safe_import_path

GameFactory = Callable[[], ExplorationGame]  # must be picklable for several processes
StartSampler = Callable[[], list[ArchiveEntry]]  # samples the starts of a batch
Explorations = Generator[tuple[ArchiveEntry, ExplorationResult]]  # each with its start


def iter_explorations(
    make_game: GameFactory, seeds: Sequence[np.random.SeedSequence], sample_starts: StartSampler
) -> Explorations:
    """Yield explorations without end, made by one explorer per seed."""
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
    """Send a worker its next batch before its results are yielded, so that it never waits."""
    with contextlib.ExitStack() as stack:
        workers = dict(stack.enter_context(_start_worker(make_game, seed)) for seed in seeds)
        starts = {pipe: _send_starts(pipe, sample_starts()) for pipe in workers}
        while True:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                explorations = _receive_explorations(pipe, workers[pipe])
                finished, starts[pipe] = starts[pipe], _send_starts(pipe, sample_starts())
                yield from zip(finished, explorations, strict=True)


def _to_start(entry: ArchiveEntry) -> ExplorationStart:
    return ExplorationStart(entry.score, entry.steps, entry.state)


def _send_starts(pipe: Connection, entries: list[ArchiveEntry]) -> list[ArchiveEntry]:
    pipe.send([_to_start(entry) for entry in entries])
    return entries


def _receive_explorations(pipe: Connection, process: SpawnProcess) -> list[ExplorationResult]:
    """Receive a batch of explorations; raise if the worker failed or died."""
    try:
        response = pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise EnvironmentFault(f"a search process died (exit code {process.exitcode})") from None
    if isinstance(response, str):
        raise EnvironmentFault(f"a search process failed: {response}")
    return response


@contextlib.contextmanager
def _start_worker(
    make_game: GameFactory, seed: np.random.SeedSequence
) -> Iterator[tuple[Connection, SpawnProcess]]:
    """Start a process that explores from the starts it receives; kill it on exit."""
    context = multiprocessing.get_context("spawn")
    pipe, worker_pipe = context.Pipe()
    process = context.Process(target=_run_worker, args=(worker_pipe, make_game, seed), daemon=True)
    with safe_import_path():
        process.start()
    worker_pipe.close()
    try:
        yield pipe, process
    finally:
        pipe.close()
        process.kill()  # it holds only a batch that is not needed any more
        process.join()


def _run_worker(pipe: Connection, make_game: GameFactory, seed: np.random.SeedSequence) -> None:
    """Explore until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    try:
        explorer = Explorer(make_game(), seed)
        while True:
            pipe.send([explorer.explore(start) for start in pipe.recv()])
    except (EOFError, ConnectionError):
        return  # the search has ended
    except Exception:
        pipe.send(traceback.format_exc().strip().splitlines()[-1])
