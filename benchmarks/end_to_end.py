"""Training on ALE Breakout compared with stable-baselines3's DQN, 8 samples per step.

    python -m benchmarks.end_to_end [--seconds S] [--json FILE]

Both train from pixels on the same cores, in alternating rounds, one at a time. Only the time after
learning has started counts. Ours is Ape-X DQfD: batches of 192 agent and 64 expert items, the
standard dueling network, prioritized replay, consistency and imitation losses; the demonstrations
are random play (without Minari, 256 agent items). The peer is DQN with its default settings and the
fastest environments and threads on this machine, found by short trials: its own environments or
ale-py's vector environment, one thread or all. It runs twice: with one environment, its default,
and with the best number of environments.
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
    BenchmarkProcess,
    format_missing,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)
from lookfurther.training.run_dir import package_version

GAME = "ALE/Breakout-v5"
SAMPLES_PER_STEP = 8.0
FILL = 10.0  # seconds until the replay is filled and learning starts
LENGTH_FACTORS = (1, 2, 4)  # multiples of --seconds to try until there are enough updates


class LookFurtherTraining:
    """`lookfurther.train`, as a user calls it."""

    def __init__(self, name: str, fill_seconds: float, **settings: Any) -> None:
        from lookfurther import preset

        self.fill_seconds = fill_seconds  # at most, until learning starts
        self.config = preset(name, run__checkpoint_period=0, **settings)

    def round(self, warm: float, seconds: float) -> dict[str, float]:
        """Rates over `seconds` of learning, or longer on a slow machine."""
        for factor in LENGTH_FACTORS:
            rows = self.metric_rows(warm, factor * seconds)
            if len(rows) > 1:
                return self.rates(rows[0], rows[-1])
            print(f"too few updates in {factor * seconds:.0f} s", flush=True)
        raise RuntimeError("too few updates: raise --seconds")

    def metric_rows(self, warm: float, seconds: float) -> list[dict[str, float]]:
        """The metrics of `seconds` of learning, after the first `warm` seconds."""
        from lookfurther import replace, train
        from lookfurther.training.monitoring.metrics import read_metrics

        with (
            tempfile.TemporaryDirectory() as folder,
            Path(os.devnull).open("w") as devnull,
            redirect_stdout(devnull),
        ):
            if self.config.uses_demos:
                demos = save_random_demos(self.config, Path(folder))
                self.config = replace(self.config, demos=(str(demos),))
            minutes = (self.fill_seconds + warm + seconds) / 60
            train(replace(self.config, run__folder=f"{folder}/run", run__minutes=minutes))
            rows = [
                row for row in read_metrics(Path(folder, "run", "metrics.jsonl")) if row["updates"]
            ]
        start = rows[0]["minutes"] + warm / 60 if rows else 0
        return [row for row in rows if start <= row["minutes"] <= start + seconds / 60]

    def rates(self, first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
        """Rates between two rows of metrics."""
        seconds = 60 * (last["minutes"] - first["minutes"])
        steps, updates = last["step"] - first["step"], last["updates"] - first["updates"]
        return {
            "steps_per_second": steps / seconds,
            "updates_per_second": updates / seconds,
            "samples_per_step": self.config.batch_size * updates / steps,
            "measured_seconds": seconds,
        }


def two_core_training(lanes: int) -> LookFurtherTraining:
    return LookFurtherTraining(
        "apex-dqfd" if package_version("minari") else "no-demos",
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
    """Save a set of two short random episodes and return its path."""
    from lookfurther.demos.episode import Episode
    from lookfurther.demos.storage import save_episodes
    from lookfurther.envs import make_envs

    envs = make_envs(config.env, config.environment, lanes=1, seed=1, threads=1)
    rng, episodes = np.random.default_rng(0), []
    for _ in range(2):
        actions = rng.integers(0, envs.spec.actions, 200)
        steps = [envs.reset()]
        while len(steps) <= len(actions) and not steps[-1].terminal[0]:
            envs.send(actions[len(steps) - 1 : len(steps)])
            steps.append(envs.recv())
        planes = np.concatenate([step.observation[:, -1:] for step in steps])
        rewards = np.concatenate([step.reward for step in steps[1:]])
        is_terminal = bool(steps[-1].terminal[0])
        episodes.append(Episode(planes, actions[: len(rewards)], rewards, is_terminal))
    envs.close()
    return save_episodes("random-v0", episodes, envs.spec, "random play", root)


def stable_baselines_training(source: str, count: int, threads: int, cores: int) -> Any:
    from benchmarks.stable_baselines import DefaultDQN

    return DefaultDQN(source, count, threads, cores)


def measure_once(options: argparse.Namespace, seconds: float, build: Any, *arguments: Any) -> dict:
    """Figures of one training in a new process; {"absent": reason} if it cannot run."""
    with closing(BenchmarkProcess(build, *arguments)) as trial:
        if trial.missing_reason:
            return {"absent": trial.missing_reason}
        figures = trial.call("round", options.warm, seconds)
    print(f"{build.__name__} {arguments}: {figures['steps_per_second']:.1f} steps/s", flush=True)
    return figures


def choose_peer_settings(options: argparse.Namespace) -> tuple[dict[str, tuple], list[dict]]:
    """The fastest settings of stable-baselines3 on this machine, and the trials."""
    if not package_version("stable-baselines3"):
        return {}, [{"absent": "stable-baselines3 is not installed"}]
    threads = sorted({1, options.cores})
    trials = []
    for setting in itertools.product(("ale-py", "wrappers"), (1, 8, 32), threads):
        figures = measure_once(
            options, options.seconds / 4, stable_baselines_training, *setting, options.cores
        )
        trials.append(
            {"environment": setting[0], "count": setting[1], "threads": setting[2], **figures}
        )
    settings = {}
    for name, counts in (("stable-baselines3", (1,)), ("stable-baselines3, many", (8, 32))):
        usable = [t for t in trials if t["count"] in counts and "absent" not in t]
        if usable:
            best = max(usable, key=lambda trial: trial["steps_per_second"])
            settings[name] = (best["environment"], best["count"], best["threads"], options.cores)
    return settings, trials


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Figures of both, in alternating rounds."""
    candidates: dict[str, tuple] = {"lookfurther": (two_core_training, options.lanes)}
    figures: dict[str, dict[str, Any]] = {"lookfurther": {}}
    peer_settings, trials = choose_peer_settings(options)
    if not peer_settings:
        figures["stable-baselines3"] = {"absent": trials[0]["absent"]}
    for name, setting in peer_settings.items():
        candidates[name] = (stable_baselines_training, *setting)
        figures[name] = {"way": setting, "trials": trials}
    rounds: dict[str, list] = {name: [] for name in candidates}
    for _ in range(options.rounds):
        for name, arguments in candidates.items():
            rounds[name].append(measure_once(options, options.seconds, *arguments))
    for name, measured in rounds.items():
        if "absent" in measured[0]:
            sys.exit(f"{name}: {measured[0]['absent']}")
        figures[name] |= median_of_rounds(measured) | {"rounds": measured}
    return figures


def main() -> None:
    options = make_parser(__doc__, seconds=60.0)
    options.add_argument(
        "--warm", type=float, default=5.0, help="seconds of learning that do not count"
    )
    options.add_argument("--lanes", type=int, default=32)
    options.add_argument("--allow-missing", action="store_true", help="run without the peer")
    options = options.parse_args()
    limit_cores(options.cores)
    packages = ["torch", "numpy", "gymnasium", "ale-py", "stable-baselines3", "minari"]
    machine = machine_info(packages)
    if not machine["versions"]["stable-baselines3"] and not options.allow_missing:
        sys.exit("stable-baselines3 is missing: pip install it, or use --allow-missing")
    figures = measure(options)
    result = {
        "speed_ratio": speed_ratio(figures, "stable-baselines3"),
        "speed_ratio_many_environments": speed_ratio(figures, "stable-baselines3, many"),
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": machine,
    }
    write_report(f"Training on {GAME}", result, _format_figures(figures), options.json)


def speed_ratio(figures: dict[str, dict[str, Any]], peer: str) -> float | None:
    """Our environment steps per second divided by those of the peer."""
    peer_rate = figures.get(peer, {}).get("steps_per_second")
    return figures["lookfurther"]["steps_per_second"] / peer_rate if peer_rate else None


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
    header = ["", "steps/s", "updates/s", "samples/step", "ours / theirs"]
    return format_table(header, rows) + format_missing(figures)


if __name__ == "__main__":
    main()
