"""Score against emulator frames of a search for demonstrations.

    python -m benchmarks.search [ENV] [--minutes M] [--budget F] [--seed S] [--json FILE]
                                [--demonstration FILE.npz]

Searches until the minutes or the frames are over, with one process for each of --cores; the curve
has a point wherever the best score rose. The play found is replayed from power-on, and written as
an action sequence with its audit beside it, as those in lookfurther/demos/shipped were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import add_json, confine, report, surroundings, table, version
from lookfurther.demos.episode import Episode
from lookfurther.demos.go_explore import Progress, SearchOptions, run_search
from lookfurther.demos.importers import action_sequence
from lookfurther.envs.emulator import game_of, rom_digest

SPOKEN = 60  # seconds after which an unchanged score is printed again


class Curve:
    """The points at which the best score rose, and the last of all."""

    def __init__(self) -> None:
        self.points: list[Progress] = []
        self.last = Progress(0, 0.0, 0, 0.0, 0)
        self.spoken = 0.0

    def __call__(self, progress: Progress) -> None:
        rose = progress.score > self.last.score
        self.last = progress
        if rose:
            self.points.append(progress)
        if rose or progress.seconds > self.spoken + SPOKEN:
            self.spoken = progress.seconds
            print(line(progress), flush=True)


def line(progress: Progress) -> str:
    return (
        f"{progress.frames:12,} frames {progress.seconds:7.0f} s {progress.cells:8,} cells"
        f" {progress.score:8,.0f} points in {progress.steps:,} steps"
    )


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("env", nargs="?", default="ALE/MontezumaRevenge-v5")
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--budget", type=int, default=100_000_000, help="emulator frames")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cores", type=int, default=2, help="cores to use, and processes")
    options.add_argument("--demonstration", type=Path, help="write the best play to this .npz")
    add_json(options)
    return options.parse_args()


def main() -> None:
    given = arguments()
    confine(given.cores)
    where, curve = surroundings(["numpy", "ale-py"]), Curve()
    options = SearchOptions(given.env, given.budget, given.minutes, given.cores, given.seed)
    best = run_search(options, curve)[0]
    result = {
        "env": given.env,
        "seed": given.seed,
        "processes": given.cores,
        "replayed_score": best.score,
        "demonstration_steps": len(best),
        "frames_per_second": curve.last.frames / curve.last.seconds,
        "curve": [point._asdict() for point in [*curve.points, curve.last]],
        "surroundings": where,
    }
    text = table(Progress._fields, [*curve.points, curve.last])
    report(f"{given.env}, {given.cores} processes", result, text, given.json)
    if given.demonstration:
        write(given.demonstration, best, options, curve.last)


def write(path: Path, episode: Episode, options: SearchOptions, last: Progress) -> None:
    """A play as an action sequence, and a JSON file that says where it comes from."""
    action_sequence.write(path, episode, options.env)
    assert episode.audit is not None
    game = game_of(options.env)
    told = {
        "env": options.env,
        "score": episode.score,
        "steps": len(episode),
        "terminal": episode.terminal,
        "audit": asdict(episode.audit),
        "found_by": {"frames": last.frames, "cells": last.cells}
        | {name: getattr(options, name) for name in ("processes", "seed")},
        "emulator": {"game": game, "rom_sha256": rom_digest(game), "ale_py": version("ale-py")},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    path.with_suffix(".json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
