"""Training alone and next to busy processes, for several thread settings.

    python -m benchmarks.load [--busy N] [--tasks TASK ...] [--seconds S] [--json FILE]

Each setting trains in its own process. The settings take turns, first alone, then next to N
processes that never sleep. A fair scheduler gives training C / (C + N) of C cores. The remaining
speed is given as a fraction of the speed alone, and of that fair share.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import (
    BenchmarkProcess,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)
from lookfurther import Config, preset, replace
from lookfurther.system.openmp import BRIEF_WAITS, WAIT_VARIABLES

CAPACITY = 20_000  # steps in the replay, small enough for several replays


class ThreadSettings(NamedTuple):
    """Threads of the learner and of OpenBLAS, 0 for all cores, and the wait policy of OpenMP."""

    threads: int
    openblas_threads: int
    environment_variables: dict[str, str]


THREAD_SETTINGS = {
    "brief waits, OpenBLAS with one thread (ours)": ThreadSettings(0, 1, BRIEF_WAITS),
    "brief waits": ThreadSettings(0, 0, BRIEF_WAITS),
    "passive waits": ThreadSettings(0, 0, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "spinning, the libraries' default": ThreadSettings(0, 0, {"GOMP_SPINCOUNT": "300000"}),
    "one thread": ThreadSettings(1, 1, BRIEF_WAITS),
}


def task_config(name: str) -> Config:
    """The configuration of a task, at the small scale."""
    if name == "UnlockPickup":
        from examples.unlock_pickup import make_config

        config = make_config(Path("noise"), Path("none"))
    else:
        config = preset("no-demos", "small", env=TASKS[name])
    return replace(config, replay__capacity=CAPACITY, run__device="cpu")


TASKS = {"CartPole": "CartPole-v1", "UnlockPickup": "", "Pong": "ALE/Pong-v5"}


class TrainingRun:
    """A run after its first update."""

    def __init__(self, name: str, threads: int, openblas: int) -> None:
        from lookfurther.training import hardware
        from lookfurther.training.throughput import ThroughputBenchmark

        bench = ThroughputBenchmark(replace(task_config(name), run__threads=threads), 0.0)
        hardware.limit_openblas_threads(openblas or hardware.count_cores())
        self.loop = bench.build_learning_loop()

    def round(self, seconds: float) -> dict[str, float]:
        """Rates over `seconds`, for at least one iteration."""
        before, wall, processor = self.loop.step, time.perf_counter(), time.process_time()
        while True:
            self.loop.run_iteration()
            if (elapsed := time.perf_counter() - wall) >= seconds:
                break
        steps = self.loop.step - before
        return {
            "steps_per_second": steps / elapsed,
            "steps_per_processor_second": steps / (time.process_time() - processor),
        }


@contextmanager
def wait_policy(variables: dict[str, str]) -> Iterator[None]:
    """Processes started here use these variables, and no others, for their wait policy."""
    before = {name: os.environ.pop(name) for name in WAIT_VARIABLES if name in os.environ}
    os.environ.update(variables)
    yield
    for name in variables:
        del os.environ[name]
    os.environ.update(before)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that never sleep."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(name: str, options: Any) -> dict[str, dict[str, float]]:
    """Figures of each setting on a task."""
    with ExitStack() as stack:
        runs = {}
        for setting, (threads, openblas, variables) in THREAD_SETTINGS.items():
            with wait_policy(variables):
                run = BenchmarkProcess(TrainingRun, name, threads, openblas)
            runs[setting] = stack.enter_context(closing(run))

        def rounds() -> dict[str, dict[str, float]]:
            measured = [
                {setting: run.call("round", options.seconds) for setting, run in runs.items()}
                for _ in range(options.rounds)
            ]
            return {
                setting: median_of_rounds([figures[setting] for figures in measured])
                for setting in runs
            }

        alone = rounds()
        with busy_processes(options.busy):
            loaded = rounds()
    fair = options.cores / (options.cores + options.busy)
    figures = {}
    for setting in runs:
        kept = loaded[setting]["steps_per_second"] / alone[setting]["steps_per_second"]
        figures[setting] = {
            **{f"alone_{key}": value for key, value in alone[setting].items()},
            **{f"busy_{key}": value for key, value in loaded[setting].items()},
            "kept": kept,
            "share_of_fair": kept / fair,
        }
    return figures


def main() -> None:
    options = make_parser(__doc__, seconds=3.0)
    options.add_argument("--busy", type=int, default=4, help="processes that never sleep")
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = options.parse_args()
    limit_cores(options.cores)
    result: dict[str, Any] = {
        "surroundings": machine_info(["lookfurther", "torch", "ale-py"]),
        "busy": options.busy,
        "tasks": {name: measure(name, options) for name in options.tasks},
    }
    keys = ("alone_steps_per_second", "busy_steps_per_second", "kept", "share_of_fair")
    keys += ("busy_steps_per_processor_second",)
    rows = [
        [f"{name}: {setting}", *(figures[key] for key in keys)]
        for name, settings in result["tasks"].items()
        for setting, figures in settings.items()
    ]
    header = ["", "steps/s alone", f"next to {options.busy}", "kept", "of the fair share"]
    text = format_table([*header, "steps per processor second"], rows)
    write_report("Training next to other load", result, text, options.json)


if __name__ == "__main__":
    main()
