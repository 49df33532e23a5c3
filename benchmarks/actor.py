"""Speed of the actor compared with the bare environment.

    python -m benchmarks.actor [--lanes M] [--seconds S] [--json FILE]

Both step ALE Breakout with the paper's preprocessing in ale-py's vector environment, in alternating
rounds. The bare environment gets random actions. The actor runs the standard dueling network on
every observation, acts epsilon-greedily, and produces chunks with initial priorities. Nothing
learns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from benchmarks.measure import (
    BenchmarkProcess,
    format_table,
    limit_cores,
    machine_info,
    make_parser,
    median_of_rounds,
    write_report,
)

GAME = "ALE/Breakout-v5"


class BareEnvironment:
    """ale-py's AtariVectorEnv with random actions."""

    def __init__(self, lanes: int, cores: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self.lanes = lanes
        self.envs = AtariVectorEnv(
            "breakout",
            lanes,
            num_threads=cores,
            max_num_frames_per_episode=200_000,
            full_action_space=True,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self.envs.reset(seed=0)
        self.rng = np.random.default_rng(0)

    def step_lanes(self) -> None:
        self.envs.step(self.rng.integers(0, 18, self.lanes))

    def round(self, seconds: float) -> dict[str, float]:
        return _measure_rate(self.step_lanes, self.lanes, seconds)


class ActingNetwork:
    """`lookfurther.actor.Actor` in the actor pool that training uses."""

    def __init__(self, lanes: int, cores: int) -> None:
        from lookfurther import preset
        from lookfurther.actor import Actor
        from lookfurther.envs import make_envs
        from lookfurther.master_weights import MasterWeights
        from lookfurther.networks.dueling import make_network_builder
        from lookfurther.training.actors import ActorGroup, ActorPool
        from lookfurther.training.hardware import Hardware

        config = preset("apex-dqfd", env=GAME, actor__lanes=lanes, run__device="cpu")
        envs = make_envs(GAME, config.environment, lanes, seed=0, threads=cores)
        hardware = Hardware.resolve(config)
        hardware.configure_torch()
        network = make_network_builder(config.network)(envs.spec)
        weights = MasterWeights(network, hardware.precision)
        self.lanes = lanes
        group = ActorGroup(envs, Actor(weights, envs.spec, config, range(lanes)))
        self.actor_pool = ActorPool([group], weights)

    def step_lanes(self) -> None:
        self.actor_pool.start_step()
        self.actor_pool.collect_chunk()

    def round(self, seconds: float) -> dict[str, float]:
        return _measure_rate(self.step_lanes, self.lanes, seconds)


def _measure_rate(step_lanes: Callable[[], None], lanes: int, seconds: float) -> dict[str, float]:
    """Agent steps per second, after two warm-up calls."""
    step_lanes()
    step_lanes()
    calls, start = 0, time.perf_counter()
    while not calls or time.perf_counter() - start < seconds:
        step_lanes()
        calls += 1
    return {"steps_per_second": calls * lanes / (time.perf_counter() - start)}


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Figures of both, in alternating rounds."""
    with ExitStack() as stack:
        trials: dict[str, BenchmarkProcess] = {}
        for name, build in {"bare": BareEnvironment, "actor": ActingNetwork}.items():
            trials[name] = BenchmarkProcess(build, options.lanes, options.cores)
            stack.enter_context(closing(trials[name]))
            if trials[name].missing_reason:
                raise SystemExit(f"{name}: {trials[name].missing_reason}")
        rounds: dict[str, list] = {name: [] for name in trials}
        for _ in range(options.rounds):
            for name, trial in trials.items():
                rounds[name].append(trial.call("round", options.seconds))
    return {name: median_of_rounds(r) | {"rounds": r} for name, r in rounds.items()}


def main() -> None:
    options = make_parser(__doc__, seconds=5.0)
    options.add_argument("--lanes", type=int, default=32)
    options = options.parse_args()
    limit_cores(options.cores)
    machine = machine_info(["torch", "numpy", "ale-py"])
    figures = measure(options)
    rates = {name: f["steps_per_second"] for name, f in figures.items()}
    result = {
        "share_of_bare_environment": rates["actor"] / rates["bare"],
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": machine,
    }
    rows = [[name, rate, 4 * rate, rate / rates["bare"]] for name, rate in rates.items()]
    text = format_table(["", "steps/s", "frames/s", "share of bare"], rows)
    write_report(f"{GAME}, {options.lanes} lanes", result, text, options.json)


if __name__ == "__main__":
    main()
