"""Speed of evaluation, and scores of random play compared with published ones.

    python -m benchmarks.evaluation [--lanes M] [--seconds S] [--json FILE]
    python -m benchmarks.evaluation --random GAME ... [--episodes N] [--json FILE]

The first command steps Montezuma's Revenge: ale-py's vector environment with random actions, then
full episodes of `lookfurther.rollout` with random weights of the standard network, from no-op
starts and from human starts. Episodes end after 800 frames, so that a round has several. The time
of 200 episodes is given for episodes of 1,000 steps.

The second command plays at random and compares with the published scores, once with the paper's
settings (all 18 actions, 4 frames per action) and once with those of the published figures (the
game's own actions, 6 frames per action, 5 minutes per episode; Mnih et al. 2015).
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from dataclasses import replace
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
from lookfurther.config import EnvConfig

GAME = "ALE/MontezumaRevenge-v5"
MAX_FRAMES = 800  # frames
EPISODES, EPISODE_STEPS = 200, 1000  # for the printed time
PUBLISHED_EPISODES = 30  # per published score
PUBLISHED_ENV = EnvConfig(
    action_repeat=6, full_actions=False, max_episode_length=18_000, episode_length_unit="frames"
)


class BareEnvironment:
    """The vector environment with random actions."""

    def __init__(self, lanes: int, cores: int) -> None:
        from lookfurther.evaluation.evaluate import evaluation_env_config, make_noop_envs

        self.envs = make_noop_envs(
            GAME, replace(evaluation_env_config(EnvConfig()), threads=cores), lanes, 0
        )
        self.rng = np.random.default_rng(0)
        self.envs.reset()

    def round(self, seconds: float) -> dict[str, float]:
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < seconds:
            self.envs.send(self.rng.integers(18, size=self.envs.lanes))
            self.envs.recv()
            calls += 1
        return {"steps_per_second": calls * self.envs.lanes / (time.perf_counter() - start)}

    def close(self) -> None:
        self.envs.close()


class NoopEvaluation:
    """Episodes with the standard network, from no-op starts."""

    def __init__(self, lanes: int, cores: int) -> None:
        import torch

        from lookfurther.config import NetworkConfig
        from lookfurther.evaluation.evaluate import evaluation_env_config
        from lookfurther.networks.dueling import make_network_builder
        from lookfurther.rollout import epsilon_greedy_policy

        torch.manual_seed(0)
        settings = evaluation_env_config(EnvConfig())
        self.settings = replace(
            settings, max_episode_length=MAX_FRAMES, threads=cores, processes=cores, frame_stack=4
        )
        self.envs = self.make_evaluation_envs(lanes)
        self.policy = epsilon_greedy_policy(
            make_network_builder(NetworkConfig())(self.envs.spec).eval(), 0.001, 0
        )

    def make_evaluation_envs(self, lanes: int) -> Any:
        from lookfurther.evaluation.evaluate import make_noop_envs

        return make_noop_envs(GAME, replace(self.settings, processes=0), lanes, 0)

    def round(self, seconds: float) -> dict[str, float]:
        from lookfurther.rollout import play_episodes

        steps, start = 0, time.perf_counter()
        while not steps or time.perf_counter() - start < seconds:
            steps += sum(p.steps for p in play_episodes(self.policy, self.envs, self.envs.lanes))
        return {"steps_per_second": steps / (time.perf_counter() - start)}

    def close(self) -> None:
        self.envs.close()  # otherwise its worker processes would outlive this process


class HumanStartEvaluation(NoopEvaluation):
    """The same from human starts; here they are the start of the game."""

    def make_evaluation_envs(self, lanes: int) -> Any:
        from lookfurther.envs.emulator import Emulator
        from lookfurther.envs.human_starts import HumanStart, make_human_start_envs

        return make_human_start_envs(
            GAME, [HumanStart(Emulator(GAME).clone_state(), 0)], self.settings, lanes, 0
        )


EVALUATIONS = {
    "bare": BareEnvironment,
    "no-op starts": NoopEvaluation,
    "human starts": HumanStartEvaluation,
}


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Figures of each, in alternating rounds."""
    with ExitStack() as stack:
        trials = {
            name: stack.enter_context(
                closing(BenchmarkProcess(build, options.lanes, options.cores))
            )
            for name, build in EVALUATIONS.items()
        }
        rounds: dict[str, list] = {name: [] for name in trials}
        for _ in range(options.rounds):
            for name, trial in trials.items():
                rounds[name].append(trial.call("round", options.seconds))
        for trial in trials.values():
            trial.call("close")
    return {name: median_of_rounds(r) | {"rounds": r} for name, r in rounds.items()}


def measure_speed(options: argparse.Namespace) -> None:
    """Steps per second, and minutes per 200 episodes."""
    machine = machine_info(["torch", "numpy", "ale-py"])
    figures = measure(options)
    rates = {name: f["steps_per_second"] for name, f in figures.items()}
    shares = {name: rate / rates["bare"] for name, rate in rates.items()}
    minutes = {name: EPISODES * EPISODE_STEPS / rate / 60 for name, rate in rates.items()}
    result = {
        "share_of_bare_environment": shares,
        "minutes_of_200_episodes": minutes,
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": machine,
    }
    rows = [[name, rates[name], shares[name], minutes[name]] for name in rates]
    text = format_table(["", "steps/s", "share of bare", "minutes of 200 episodes"], rows)
    write_report(f"{GAME}, {options.lanes} lanes", result, text, options.json)


def compare_random_scores(options: argparse.Namespace) -> None:
    """Random play compared with the published scores; z is the difference in standard errors.

    The published means are of 30 episodes; their standard deviation is assumed to equal ours.
    """
    from lookfurther.envs.naming import game_of
    from lookfurther.evaluation.evaluate import evaluate_random, evaluation_env_config
    from lookfurther.evaluation.paper_scores import reference_scores

    machine = machine_info(["numpy", "ale-py"])
    rows, result = [], {}
    for game in options.random:
        known = reference_scores(game, "noop")
        if known is None:
            raise SystemExit(f"{game_of(game) or game}: no score is published")
        for how, settings in {
            "paper": evaluation_env_config(EnvConfig()),
            "published": PUBLISHED_ENV,
        }.items():
            settings = replace(settings, threads=options.cores)
            played = evaluate_random(game, settings, episodes=options.episodes, lanes=options.lanes)
            mean, spread = played.scores.mean(), played.scores.std(ddof=1)
            error = spread / options.episodes**0.5
            both = spread * (1 / options.episodes + 1 / PUBLISHED_EPISODES) ** 0.5
            z = (mean - known.random) / both if both else None
            rows.append([f"{game} {how}", mean, error, known.random, z])
            result[f"{game} {how}"] = {"mean": mean, "error": error, "z": z} | known._asdict()
            print(format_table(["", "mean", "error", "published", "z"], rows[-1:]), flush=True)
    text = format_table(["", "mean", "error", "published", "z"], rows)
    write_report("random play", {"games": result, "surroundings": machine}, text, options.json)


def main() -> None:
    options = make_parser(__doc__, seconds=10.0)
    options.add_argument("--lanes", type=int, default=20)
    options.add_argument("--random", nargs="+", default=[], help="games to play at random instead")
    options.add_argument(
        "--episodes", type=int, default=40, help="episodes of random play per setting"
    )
    options = options.parse_args()
    limit_cores(options.cores)
    compare_random_scores(options) if options.random else measure_speed(options)


if __name__ == "__main__":
    main()
