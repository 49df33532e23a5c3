"""Best score over emulator frames of a Go-Explore search for demonstrations.

    python -m benchmarks.search [ENV] [--minutes M] [--budget F] [--seed S] [--json FILE]
                                [--demonstration FILE.npz]

Searches until the minutes or the frames are used up, with one process per core. The curve has a
point at every new best score. The best play is replayed from power-on and written as an action
sequence with its audit in a JSON file, like those in lookfurther/demos/shipped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import (
    add_json_option,
    format_table,
    limit_cores,
    machine_info,
    write_report,
)
from lookfurther.demos.episode import Episode
from lookfurther.demos.go_explore import SearchConfig, SearchProgress, run_search
from lookfurther.demos.importers import action_sequence
from lookfurther.envs.emulator import rom_digest
from lookfurther.envs.factory import find_game
from lookfurther.training.run_dir import package_version

PRINT_PERIOD = 60  # seconds between lines while the score does not change


class SearchCurve:
    """The points with a new best score, and the last point."""

    def __init__(self) -> None:
        self.points: list[SearchProgress] = []
        self.last = SearchProgress(0, 0.0, 0, 0.0, 0)
        self.last_printed = 0.0

    def __call__(self, progress: SearchProgress) -> None:
        is_best = progress.best_score > self.last.best_score
        self.last = progress
        if is_best:
            self.points.append(progress)
        if is_best or progress.seconds > self.last_printed + PRINT_PERIOD:
            self.last_printed = progress.seconds
            print(format_progress(progress), flush=True)


def format_progress(progress: SearchProgress) -> str:
    return (
        f"{progress.frames:12,} frames {progress.seconds:7.0f} s {progress.num_cells:8,} cells"
        f" {progress.best_score:8,.0f} points in {progress.best_steps:,} steps"
    )


def parse_arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("env", nargs="?", default="ALE/MontezumaRevenge-v5")
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--budget", type=int, default=100_000_000, help="emulator frames")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cores", type=int, default=2, help="cores to use, and processes")
    options.add_argument("--demonstration", type=Path, help="write the best play to this .npz")
    add_json_option(options)
    return options.parse_args()


def main() -> None:
    arguments = parse_arguments()
    limit_cores(arguments.cores)
    machine, curve = machine_info(["numpy", "ale-py"]), SearchCurve()
    options = SearchConfig(
        arguments.env, arguments.budget, arguments.minutes, arguments.cores, arguments.seed
    )
    best = run_search(options, curve)[0]
    result = {
        "env": arguments.env,
        "seed": arguments.seed,
        "processes": arguments.cores,
        "replayed_score": best.score,
        "demonstration_steps": len(best),
        "frames_per_second": curve.last.frames / curve.last.seconds,
        "curve": [point._asdict() for point in [*curve.points, curve.last]],
        "surroundings": machine,
    }
    text = format_table(SearchProgress._fields, [*curve.points, curve.last])
    write_report(f"{arguments.env}, {arguments.cores} processes", result, text, arguments.json)
    if arguments.demonstration:
        write_demonstration(arguments.demonstration, best, options, curve.last)


def write_demonstration(
    path: Path, episode: Episode, options: SearchConfig, last: SearchProgress
) -> None:
    """Write a play as an action sequence, and its origin as a JSON file."""
    action_sequence.write_action_sequence(path, episode, options.env)
    assert episode.audit is not None
    game = find_game(options.env)
    origin = {
        "env": options.env,
        "score": episode.score,
        "steps": len(episode),
        "terminal": episode.terminal,
        "audit": asdict(episode.audit),
        "found_by": {"frames": last.frames, "cells": last.num_cells}
        | {name: getattr(options, name) for name in ("processes", "seed")},
        "emulator": {
            "game": game,
            "rom_sha256": rom_digest(game),
            "ale_py": package_version("ale-py"),
        },
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    path.with_suffix(".json").write_text(json.dumps(origin, indent=2) + "\n")


if __name__ == "__main__":
    main()
