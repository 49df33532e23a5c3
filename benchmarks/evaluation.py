"""Evaluation beside the bare environment, and random play beside published scores.

    python -m benchmarks.evaluation [--lanes M] [--seconds S] [--json FILE]
    python -m benchmarks.evaluation --random GAME ... [--episodes N] [--json FILE]

The first steps Montezuma's Revenge: ale-py's vector environment with random actions, then whole
episodes of `lookfurther.rollout` with random weights of the standard network, from no-op starts and
from human starts. Episodes are cut after 800 frames, so that a round holds some. The time of 200
episodes is given for episodes of 1,000 steps.

The second plays at random and compares with the published scores, once as the paper's agents play
(all 18 actions, held for 4 frames) and once as the published figures were made (the game's own
actions, held for 6 frames, 5 minutes an episode; Mnih et al. 2015).
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.measure import Contestant, confine, medians, parser, report, surroundings, table
from lookfurther.config import Environment

GAME = "ALE/MontezumaRevenge-v5"
CUT = 800  # frames
EPISODES, LENGTH = 200, 1000  # of the time that is given
THEIRS = 30  # episodes behind a published score of random play
PUBLISHED = Environment(repeat=6, full_actions=False, cap=18_000, cap_unit="frames")


class Bare:
    """The vector environment with random actions."""

    def __init__(self, lanes: int, cores: int) -> None:
        from lookfurther.evaluation.evaluate import lanes_of, regime

        self.envs = lanes_of(GAME, replace(regime(Environment()), threads=cores), lanes, 0)
        self.random = np.random.default_rng(0)
        self.envs.reset()

    def round(self, seconds: float) -> dict[str, float]:
        turns, start = 0, time.perf_counter()
        while not turns or time.perf_counter() - start < seconds:
            self.envs.send(self.random.integers(18, size=self.envs.lanes))
            self.envs.recv()
            turns += 1
        return {"steps_per_second": turns * self.envs.lanes / (time.perf_counter() - start)}

    def close(self) -> None:
        self.envs.close()


class Evaluating:
    """Whole episodes with the standard network, from no-op starts."""

    def __init__(self, lanes: int, cores: int) -> None:
        import torch

        from lookfurther.config import Network
        from lookfurther.evaluation.evaluate import regime
        from lookfurther.networks import builder
        from lookfurther.rollout import greedy

        torch.manual_seed(0)
        settings = regime(Environment())
        self.settings = replace(settings, cap=CUT, threads=cores, processes=cores, stack=4)
        self.envs = self.make(lanes)
        self.policy = greedy(builder(Network())(self.envs.spec).eval(), 0.001, 0)

    def make(self, lanes: int) -> Any:
        from lookfurther.evaluation.evaluate import lanes_of

        return lanes_of(GAME, replace(self.settings, processes=0), lanes, 0)

    def round(self, seconds: float) -> dict[str, float]:
        from lookfurther.rollout import play

        steps, start = 0, time.perf_counter()
        while not steps or time.perf_counter() - start < seconds:
            steps += sum(p.steps for p in play(self.policy, self.envs, self.envs.lanes))
        return {"steps_per_second": steps / (time.perf_counter() - start)}

    def close(self) -> None:
        self.envs.close()  # its processes would outlive a spawned one's end


class Restarting(Evaluating):
    """The same from human starts, here the beginning of the game."""

    def make(self, lanes: int) -> Any:
        from lookfurther.envs.emulator import Emulator
        from lookfurther.envs.human_starts import Start, make_started

        return make_started(GAME, [Start(Emulator(GAME).state(), 0)], self.settings, lanes, 0)


CONTESTANTS = {"bare": Bare, "no-op starts": Evaluating, "human starts": Restarting}


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The figures of each, turn about."""
    with ExitStack() as stack:
        trials = {
            name: stack.enter_context(closing(Contestant(build, options.lanes, options.cores)))
            for name, build in CONTESTANTS.items()
        }
        rounds: dict[str, list] = {name: [] for name in trials}
        for _ in range(options.rounds):
            for name, trial in trials.items():
                rounds[name].append(trial.call("round", options.seconds))
        for trial in trials.values():
            trial.call("close")
    return {name: medians(r) | {"rounds": r} for name, r in rounds.items()}


def speed(options: argparse.Namespace) -> None:
    """Steps a second, and the minutes that 200 episodes take."""
    where = surroundings(["torch", "numpy", "ale-py"])
    figures = measure(options)
    rates = {name: f["steps_per_second"] for name, f in figures.items()}
    shares = {name: rate / rates["bare"] for name, rate in rates.items()}
    minutes = {name: EPISODES * LENGTH / rate / 60 for name, rate in rates.items()}
    result = {
        "share_of_bare_environment": shares,
        "minutes_of_200_episodes": minutes,
        "lanes": options.lanes,
        "contestants": figures,
        "surroundings": where,
    }
    rows = [[name, rates[name], shares[name], minutes[name]] for name in rates]
    text = table(["", "steps/s", "share of bare", "minutes of 200 episodes"], rows)
    report(f"{GAME}, {options.lanes} lanes", result, text, options.json)


def random_scores(options: argparse.Namespace) -> None:
    """Random play beside the published scores; z is their distance in standard errors of both.

    The published means are of 30 episodes; their spread is taken to be ours.
    """
    from lookfurther.evaluation.evaluate import assess_random, regime
    from lookfurther.evaluation.paper_scores import game_of, reference

    where = surroundings(["numpy", "ale-py"])
    rows, result = [], {}
    for game in options.random:
        known = reference(game, "noop")
        if known is None:
            raise SystemExit(f"{game_of(game) or game}: no score is published")
        for how, settings in {"paper": regime(Environment()), "published": PUBLISHED}.items():
            settings = replace(settings, threads=options.cores)
            played = assess_random(game, settings, episodes=options.episodes, lanes=options.lanes)
            mean, spread = played.scores.mean(), played.scores.std(ddof=1)
            error = spread / options.episodes**0.5
            both = spread * (1 / options.episodes + 1 / THEIRS) ** 0.5
            z = (mean - known.random) / both if both else None
            rows.append([f"{game} {how}", mean, error, known.random, z])
            result[f"{game} {how}"] = {"mean": mean, "error": error, "z": z} | known._asdict()
            print(table(["", "mean", "error", "published", "z"], rows[-1:]), flush=True)
    text = table(["", "mean", "error", "published", "z"], rows)
    report("random play", {"games": result, "surroundings": where}, text, options.json)


def main() -> None:
    options = parser(__doc__, seconds=10.0)
    options.add_argument("--lanes", type=int, default=20)
    options.add_argument("--random", nargs="+", default=[], help="games to play at random instead")
    options.add_argument("--episodes", type=int, default=40, help="of random play, each way")
    options = options.parse_args()
    confine(options.cores)
    random_scores(options) if options.random else speed(options)


if __name__ == "__main__":
    main()
