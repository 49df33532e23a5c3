"""Prioritized replay compared with cpprb, tianshou and TorchRL on the same trajectories.

    python -m benchmarks.replay [--steps N] [--seconds S] [--json FILE]

Every candidate gets trajectories of `lanes` lanes with 84 x 84 planes, one step of all lanes per
call, and returns batches of 256 items, half of horizon 1 and half of horizon 10: x and x' as uint8
[256, 4, 84, 84], actions, n-step rewards, discounts and weights. Batches are compared with the
trajectories pixel by pixel before anything is timed. The peers have less to do: cpprb and TorchRL
store full transitions (two rows per step, one per horizon) and get them ready-made, so stacking and
n-step sums cost them nothing; tianshou keeps one priority per step and uses horizon 1 for one half
of a batch and horizon 10 for the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from benchmarks.buffers import BUFFERS, Buffer
from benchmarks.measure import (
    BenchmarkProcess,
    available_memory,
    format_missing,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    resident_bytes,
    write_report,
)
from benchmarks.synthetic_trajectories import (
    BATCH,
    HORIZONS,
    PIXELS,
    STACK,
    LaneStep,
    SyntheticTrajectories,
)

BYTES_PER_STEP = 2 * len(HORIZONS) * STACK * PIXELS  # of two full transitions


class BufferTrial:
    """One candidate, filled and checked; runs in its own process."""

    def __init__(self, build: Callable[[int, int], Buffer], steps: int, lanes: int) -> None:
        self.trajectories, self.time, self.steps = (
            SyntheticTrajectories(lanes),
            0,
            steps - steps % lanes,
        )
        self._warm(build(16 * lanes, lanes))
        before = resident_bytes()
        self.buffer = build(steps, lanes)
        for _ in range(steps // lanes):
            self.buffer.add(self._next())
        self.resident = resident_bytes() - before
        for _ in range(10):
            batch, weight, item = self.buffer.sample()
            assert len(weight) == BATCH
            self.trajectories.check_batch(batch, self.time - 1)
            self.buffer.update(item, self._priorities())

    def bytes_per_step(self) -> dict[str, float]:
        return {
            "bytes_per_step": self.buffer.bytes / self.steps,
            "resident_bytes_per_step": self.resident / self.steps,
        }

    def round(self, seconds: float) -> dict[str, float]:
        """Rates of adding in a quarter of the time, then of sampling and updating."""
        for _ in range(4):  # warm-up: caches are cold after a pause
            self.buffer.add(self._next())
            self.buffer.update(self.buffer.sample()[2], self._priorities())
        adds, adding = 0, 0.0
        while adding < seconds / 4:
            moments = [self._next() for _ in range(16)]
            start = time.perf_counter()
            for moment in moments:
                self.buffer.add(moment)
            adding += time.perf_counter() - start
            adds += len(moments) * self.trajectories.lanes
        batches, sampling, updating = 0, 0.0, 0.0
        while sampling + updating < seconds * 3 / 4:
            priority = self._priorities()
            start = time.perf_counter()
            _, _, item = self.buffer.sample()
            middle = time.perf_counter()
            self.buffer.update(item, priority)
            sampling += middle - start
            updating += time.perf_counter() - middle
            batches += 1
        return {
            "adds_per_second": adds / adding,
            "samples_per_second": BATCH * batches / sampling,
            "updates_per_second": BATCH * batches / updating,
            "seconds_per_batch": (sampling + updating) / batches,
        }

    def _warm(self, buffer: Buffer) -> None:
        """Use a small buffer first, so that resident memory then grows by the buffer alone."""
        for t in range(32):
            buffer.add(self.trajectories.lane_step(t))
        buffer.update(buffer.sample()[2], self._priorities())

    def _next(self) -> LaneStep:
        self.time += 1
        return self.trajectories.lane_step(self.time - 1)

    def _priorities(self) -> np.ndarray:
        return self.trajectories.rng.lognormal(0, 1, BATCH).astype(np.float32)


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Figures of every candidate, in alternating rounds."""
    need = options.steps * (2 * BYTES_PER_STEP + 2 * PIXELS) + 4 * 2**30
    if need > available_memory():
        sys.exit(f"{options.steps} steps need {need / 2**30:.0f} GiB of memory: lower --steps")
    with ExitStack() as stack:
        trials: dict[str, BenchmarkProcess] = {}
        figures: dict[str, dict[str, Any]] = {}
        for name, build in BUFFERS.items():
            trial = BenchmarkProcess(BufferTrial, build, options.steps, options.lanes)
            stack.enter_context(closing(trial))
            if trial.missing_reason:
                figures[name] = {"absent": trial.missing_reason}
            else:
                trials[name] = trial
        if len(trials) == 1 and not options.allow_missing:
            sys.exit("no peer found: pip install cpprb tianshou torchrl, or use --allow-missing")
        rounds: dict[str, list] = {name: [] for name in trials}
        for _ in range(options.rounds):
            for name, trial in trials.items():
                rounds[name].append(trial.call("round", options.seconds))
        for name, trial in trials.items():
            size = trial.call("bytes_per_step")
            figures[name] = median_of_rounds(rounds[name]) | size | {"rounds": rounds[name]}
    return {name: figures[name] for name in BUFFERS}


def main() -> None:
    options = make_parser(__doc__, seconds=2.0)
    options.add_argument("--steps", type=int, default=50_000, help="steps stored by each")
    options.add_argument("--lanes", type=int, default=32)
    options.add_argument("--allow-missing", action="store_true", help="run without any peer")
    options = options.parse_args()
    limit_cores(options.cores)
    machine = machine_info(["torch", "numpy", "cpprb", "tianshou", "torchrl"])
    figures = measure(options)
    peers = [
        f["seconds_per_batch"] for n, f in figures.items() if n != "lookfurther" and "rounds" in f
    ]
    ours = figures["lookfurther"]
    result = {
        "speedup_over_fastest_peer": min(peers) / ours["seconds_per_batch"] if peers else None,
        "bytes_per_step": ours["bytes_per_step"],
        "steps": options.steps,
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": machine,
    }
    write_report(
        f"Prioritized replay of {options.steps:,} steps",
        result,
        _format_figures(figures),
        options.json,
    )


def _format_figures(figures: dict[str, dict[str, Any]]) -> str:
    header = [
        "",
        "adds/s",
        "samples/s",
        "updates/s",
        "ms/batch",
        "x ours",
        "bytes/step",
        "resident",
    ]
    ours = figures["lookfurther"]["seconds_per_batch"]
    rows = []
    for name, f in figures.items():
        if "absent" in f:
            continue
        rates = [f["adds_per_second"], f["samples_per_second"], f["updates_per_second"]]
        batch = f["seconds_per_batch"]
        size = [f["bytes_per_step"], f["resident_bytes_per_step"]]
        rows.append([name, *rates, batch * 1e3, batch / ours, *size])
    return format_table(header, rows) + format_missing(figures)


if __name__ == "__main__":
    main()
