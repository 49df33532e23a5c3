"""Whole training on ALE Breakout beside stable-baselines3's DQN, 8 samples learned per step.

    python -m benchmarks.end_to_end [--seconds S] [--json FILE]

Both train from pixels on the same cores, each alone, by turns, and only time after learning has
begun counts. Ours is Ape-X DQfD: batches of 192 agent and 64 expert items, the standard dueling
network, prioritized replay, consistency and imitation losses; the demonstrations are random play
(without Minari to hold them, 256 agent items). Theirs is DQN with its default settings, given
whatever is fastest here: its own environments or ale-py's vector environment, 1 thread or all,
found by short trials. It is run twice: with one environment, its default, and with as many as
suit it best.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import (
    Contestant,
    confine,
    format_missing,
    format_table,
    installed_version,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)

GAME = "ALE/Breakout-v5"
SAMPLES_PER_STEP = 8.0
FILL = 10.0  # seconds our replay may take to fill before learning begins
LENGTH_FACTORS = (1, 2, 4)  # times the seconds asked for, until enough is learned to measure


class LookFurtherTraining:
    """lookfurther.train, as a user calls it."""

    def __init__(self, name: str, fill_seconds: float, **settings: Any) -> None:
        from lookfurther import preset

        self.fill_seconds = fill_seconds  # seconds until learning has begun, at most
        self.config = preset(name, run__checkpoint_period=0, **settings)

    def round(self, warm: float, seconds: float) -> dict[str, float]:
        """Rates over so many seconds of learning; where a machine is too slow, over more."""
        for longer in LENGTH_FACTORS:
            rows = self.metric_rows(warm, longer * seconds)
            if len(rows) > 1:
                return self.rates(rows[0], rows[-1])
            print(f"too little was learned in {longer * seconds:.0f} s", flush=True)
        raise RuntimeError("too little was learned: raise --seconds")

    def metric_rows(self, warm: float, seconds: float) -> list[dict[str, float]]:
        """What a training run tells of so many seconds of learning, without the first `warm`."""
        from lookfurther import replace, train
        from lookfurther.training.metrics import read_metrics

        with (
            tempfile.TemporaryDirectory() as folder,
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
        ):
            if self.config.learner.expert_items:
                demos = save_random_demos(self.config, Path(folder))
                self.config = replace(self.config, demos=(str(demos),))
            minutes = (self.fill_seconds + warm + seconds) / 60
            train(replace(self.config, run__folder=f"{folder}/run", run__minutes=minutes))
            rows = [
                row for row in read_metrics(Path(folder, "run", "metrics.jsonl")) if row["updates"]
            ]
        begun = rows[0]["minutes"] + warm / 60 if rows else 0
        return [row for row in rows if begun <= row["minutes"] <= begun + seconds / 60]

    def rates(self, first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
        """From one row to another."""
        spent = 60 * (last["minutes"] - first["minutes"])
        steps, updates = last["step"] - first["step"], last["updates"] - first["updates"]
        return {
            "steps_per_second": steps / spent,
            "updates_per_second": updates / spent,
            "samples_per_step": self.config.batch_size * updates / steps,
            "measured_seconds": spent,
        }


def two_core_training(lanes: int) -> LookFurtherTraining:
    return LookFurtherTraining(
        "apex-dqfd" if installed_version("minari") else "no-demos",
        FILL,
        env=GAME,
        actor__lanes=lanes,
        replay__capacity=50_000,
        replay__learning_starts=1_000,
        learner__samples_per_insert=SAMPLES_PER_STEP,
        run__device="cpu",
        run__log_period=8 * lanes,
    )


def save_random_demos(config: Any, root: Path) -> Path:
    """A set of two short random episodes, where `demos` finds it."""
    from lookfurther.demos.episode import Episode
    from lookfurther.demos.storage import save_episodes
    from lookfurther.envs import make_envs

    envs = make_envs(config.env, config.environment, lanes=1, seed=1, threads=1)
    random, episodes = np.random.default_rng(0), []
    for _ in range(2):
        actions = random.integers(0, envs.spec.actions, 200)
        steps = [envs.reset()]
        while len(steps) <= len(actions) and not steps[-1].terminal[0]:
            envs.send(actions[len(steps) - 1 : len(steps)])
            steps.append(envs.recv())
        planes = np.concatenate([step.observation[:, -1:] for step in steps])
        rewards = np.concatenate([step.reward for step in steps[1:]])
        ended = bool(steps[-1].terminal[0])
        episodes.append(Episode(planes, actions[: len(rewards)], rewards, ended))
    envs.close()
    return save_episodes("random-v0", episodes, envs.spec, "random play", root)


def stable_baselines_training(source: str, count: int, threads: int, cores: int) -> Any:
    from benchmarks.stable_baselines import DefaultDQN

    return DefaultDQN(source, count, threads, cores)


def measure_once(options: argparse.Namespace, seconds: float, build: Any, *arguments: Any) -> dict:
    """The figures of one training in a fresh process; {"absent": why} where it cannot run."""
    with closing(Contestant(build, *arguments)) as trial:
        if trial.absent:
            return {"absent": trial.absent}
        figures = trial.call("round", options.warm, seconds)
    print(f"{build.__name__} {arguments}: {figures['steps_per_second']:.1f} steps/s", flush=True)
    return figures


def choose_peer_settings(options: argparse.Namespace) -> tuple[dict[str, tuple], list[dict]]:
    """The fastest ways to run stable-baselines3 here, and the trials that found them."""
    if not installed_version("stable-baselines3"):
        return {}, [{"absent": "stable-baselines3 is not installed"}]
    threads = sorted({1, options.cores})
    trials = []
    for way in itertools.product(("ale-py", "wrappers"), (1, 8, 32), threads):
        figures = measure_once(
            options, options.seconds / 4, stable_baselines_training, *way, options.cores
        )
        trials.append({"environment": way[0], "count": way[1], "threads": way[2], **figures})
    ways = {}
    for name, counts in (("stable-baselines3", (1,)), ("stable-baselines3, many", (8, 32))):
        able = [t for t in trials if t["count"] in counts and "absent" not in t]
        if able:
            best = max(able, key=lambda trial: trial["steps_per_second"])
            ways[name] = (best["environment"], best["count"], best["threads"], options.cores)
    return ways, trials


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The figures of both, turn about."""
    ways: dict[str, tuple] = {"lookfurther": (two_core_training, options.lanes)}
    figures: dict[str, dict[str, Any]] = {"lookfurther": {}}
    found_ways, trials = choose_peer_settings(options)
    if not found_ways:
        figures["stable-baselines3"] = {"absent": trials[0]["absent"]}
    for name, way in found_ways.items():
        ways[name] = (stable_baselines_training, *way)
        figures[name] = {"way": way, "trials": trials}
    rounds: dict[str, list] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, arguments in ways.items():
            rounds[name].append(measure_once(options, options.seconds, *arguments))
    for name, found in rounds.items():
        if "absent" in found[0]:
            sys.exit(f"{name}: {found[0]['absent']}")
        figures[name] |= median_of_rounds(found) | {"rounds": found}
    return figures


def main() -> None:
    options = make_parser(__doc__, seconds=60.0)
    options.add_argument("--warm", type=float, default=5.0, help="seconds of learning not counted")
    options.add_argument("--lanes", type=int, default=32)
    options.add_argument("--allow-missing", action="store_true", help="run without the peer")
    options = options.parse_args()
    confine(options.cores)
    packages = ["torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "minari"]
    where = machine_info(packages)
    if not where["versions"]["stable-baselines3"] and not options.allow_missing:
        sys.exit("no peer is installed: pip install stable-baselines3, or --allow-missing")
    figures = measure(options)
    result = {
        "speed_ratio": speed_ratio(figures, "stable-baselines3"),
        "speed_ratio_many_environments": speed_ratio(figures, "stable-baselines3, many"),
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": where,
    }
    write_report(f"Training on {GAME}", result, _format_figures(figures), options.json)


def speed_ratio(figures: dict[str, dict[str, Any]], peer: str) -> float | None:
    """Our environment steps per second over the peer's."""
    theirs = figures.get(peer, {}).get("steps_per_second")
    return figures["lookfurther"]["steps_per_second"] / theirs if theirs else None


def _format_figures(figures: dict[str, dict[str, Any]]) -> str:
    keys = ["steps_per_second", "updates_per_second", "samples_per_step"]
    ours = figures["lookfurther"]["steps_per_second"]
    rows = []
    for name, f in figures.items():
        if "absent" in f:
            continue
        label = (
            f"{name} ({f['way'][1]} x {f['way'][0]}, {f['way'][2]} threads)" if "way" in f else name
        )
        rows.append([label, *(f[key] for key in keys), ours / f["steps_per_second"]])
    header = ["", "steps/s", "updates/s", "samples/step", "ours is faster by"]
    return format_table(header, rows) + format_missing(figures)


if __name__ == "__main__":
    main()
