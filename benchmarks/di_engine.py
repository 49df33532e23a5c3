"""DQfD on CartPole compared with DI-engine's, with the same demonstrations.

    python -m benchmarks.di_engine [--seeds N] [--steps N] [--json FILE]

Three parts: the loss terms of one batch in both libraries, the scores of evaluated episodes during
training, and the CPU time of an update of pre-training with one thread. Both train with one
environment, the same network, batch size, learning rate, ratio of updates to steps and three
episodes of the scripted expert of `experiments`. The settings are ours (those of the study in
`experiments`), then those of DI-engine's CartPole configuration. The number of updates of
pre-training is an option; it is 10 in that configuration.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.measure import (
    add_json_option,
    format_table,
    machine_info,
    write_report,
)
from experiments.experts import TASKS
from lookfurther import Config, preset, replace, train
from lookfurther.config import EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.episode import Episode
from lookfurther.demos.storage import save_episodes
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.callbacks import Callback, RunContext
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.run_dir import package_version
from lookfurther.types import Spec

TASK = TASKS["CartPole"]
SYSTEMS = ("lookfurther", "DI-engine")
# Of DI-engine's CartPole configuration, as far as we have them: its network shares the first
# layers of both streams, and its epsilon falls exponentially from 0.95.
PEER_SETTINGS: dict[str, Any] = {
    "actor__lanes": 8,
    "actor__epsilon_schedule": "linear",
    "actor__epsilon_end": 0.1,
    "actor__epsilon_steps": 10_000,
    "replay__horizons": (1, 3),
    "network__hidden": (128, 128, 64),
    "learner__gamma": 0.97,
    "learner__im_weight": 3.0,
    "learner__l2_weight": 0.0,
    "learner__agent_items": 128,  # 64 steps of two horizons
    "learner__samples_per_insert": 48.0,  # 3 updates per 8 steps
    "learner__target_period": 100,
}


def make_config(pretraining: int, steps: int, period: int, seed: int) -> Config:
    """`dqfd` with the sizes of experiments/hour_baselines.toml and one lane."""
    return preset(
        "dqfd",
        "small",
        env=TASK.env,
        actor__lanes=1,
        replay__capacity=50_000,
        replay__learning_starts=128,
        network__name="mlp",
        network__hidden=(64, 64),
        learner__agent_items=256,  # 128 steps of two horizons
        learner__learning_rate=1e-3,
        learner__target_period=50,
        learner__samples_per_insert=32.0,
        learner__pretraining_updates=pretraining,
        run__steps=steps,
        run__seed=seed,
        run__threads=1,
        run__device="cpu",
        run__precision="float32",
        run__evaluate_period=period,
        run__evaluate_episodes=10,
        run__log_period=period,
        run__checkpoint_period=0,
        run__checkpoint_minutes=0.0,
    )


class CurveRecorder(Callback):
    """Records the evaluations: steps and mean score."""

    def __init__(self) -> None:
        self.scores: list[tuple[int, float]] = []

    def on_evaluation(self, run: RunContext, score: float) -> None:
        self.scores.append((run.step, score))


def train_ours(config: Config, episodes: list[Episode], spec: Spec) -> dict[str, Any]:
    """The evaluations of a run, its updates and the time of an update of pre-training."""
    recorder, seconds, updates = CurveRecorder(), 0.0, 0
    pretrain = TrainingLoop.pretrain

    def timed_pretrain(loop: TrainingLoop, count: int) -> None:
        nonlocal seconds, updates
        start = time.process_time()
        pretrain(loop, count)
        seconds, updates = seconds + time.process_time() - start, updates + count

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(TrainingLoop, "pretrain", timed_pretrain),
    ):
        demos = save_episodes(
            "cartpole-v0", episodes, spec, "scripted expert", Path(folder, "sets")
        )
        settings = {"demos": (str(demos),), "run__folder": f"{folder}/run"}
        summary = train(replace(config, **settings), callbacks=[recorder], quiet=True)
    return {
        "curve": recorder.scores,
        "updates": summary.updates,
        "seconds_per_update": seconds / updates,
    }


def train_peer(
    config: Config, episodes: list[Episode], spec: Spec, is_matched: bool
) -> dict[str, Any]:
    """The same of DI-engine; without `is_matched` with its own settings and network."""
    from benchmarks.di_engine_pipeline import matched_settings, run_pipeline

    torch.manual_seed(config.run.seed)
    network = make_network_builder(config.network)(spec) if is_matched else None
    settings = matched_settings() if is_matched else {"learn": {}}
    settings["learn"]["per_train_iter_k"] = config.learner.pretraining_updates
    budget = config.run.steps, config.run.evaluate_period
    return run_pipeline(episodes, settings, network, budget, config.run.seed)


def measure_runs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per run: system, pre-training, seed, curve, updates and seconds per update."""
    episodes, spec = collect_episodes(TASK.env, EnvConfig(), TASK.expert, TASK.demo_seeds)
    runs = []
    for seed in range(options.seeds):
        config = make_config(options.pretraining, options.steps, options.period, seed)
        peer_config = replace(config, **PEER_SETTINGS)
        candidates = {
            ("lookfurther", "ours"): partial(train_ours, config),
            ("DI-engine", "ours"): partial(train_peer, config, is_matched=True),
            ("lookfurther", "DI-engine's"): partial(train_ours, peer_config),
            ("DI-engine", "DI-engine's"): partial(train_peer, config, is_matched=False),
        }
        for (system, settings), train_system in candidates.items():
            figures = train_system(episodes=episodes, spec=spec)
            scores = " ".join(f"{score:.0f}" for _, score in figures["curve"])
            print(f"{system}, settings: {settings}, seed {seed}: {scores}", flush=True)
            runs.append({"system": system, "settings": settings, "seed": seed, **figures})
    return runs


def summarise_runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each system: scores of all evaluations and of the last one, updates, ms per update."""
    summary = []
    for system, settings in dict.fromkeys((run["system"], run["settings"]) for run in runs):
        group = [r for r in runs if (r["system"], r["settings"]) == (system, settings)]
        means = [statistics.mean(score for _, score in run["curve"]) for run in group]
        seconds = statistics.median(run["seconds_per_update"] for run in group)
        figures = {
            "score": statistics.mean(means),
            "lowest": min(means),
            "highest": max(means),
            "last": statistics.mean(run["curve"][-1][1] for run in group),
            "updates": statistics.mean(run["updates"] for run in group),
            "ms_per_update": 1000 * seconds,
        }
        summary.append({"system": system, "settings": settings, **figures})
    return summary


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(options)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--pretraining", type=int, default=500, help="updates before the steps")
    options.add_argument("--steps", type=int, default=4_000)
    options.add_argument("--period", type=int, default=1_000, help="steps between evaluations")
    options = options.parse_args()
    if not package_version("DI-engine"):
        sys.exit("DI-engine is missing: pip install DI-engine==0.5.3")
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    machine = machine_info(["torch", "numpy", "gymnasium", "DI-engine", "gym"])
    config = make_config(options.pretraining, options.steps, options.period, 0)
    from benchmarks.di_engine_losses import compare_equations

    equations = compare_equations(config)
    runs = measure_runs(options)
    summary = summarise_runs(runs)
    ours, peer = summary[:2]
    result = {
        "update_time_ratio": peer["ms_per_update"] / ours["ms_per_update"],
        "pretraining": options.pretraining,
        "equations": equations,
        "systems": summary,
        "runs": runs,
        "surroundings": machine,
    }
    terms = [[system, *equations[system].values()] for system in SYSTEMS]
    rows = [list(row.values()) for row in summary]
    tables = format_table(["", *equations[SYSTEMS[0]]], terms), format_table(list(ours), rows)
    write_report(f"DQfD on {TASK.env}", result, "\n\n".join(tables), options.json)


if __name__ == "__main__":
    main()
