"""Where an agent leaves its demonstration: greedy games played on from moments along it.

    python -m analysis.moments DEMOS RUN [--every N] [--steps N] [--json FILE]

At every N-th step of the best episode an emulator is set down in the human's place and the run's
best weights play on, without exploration. Printed are the step at which they first take another
action than the human, what both actions are valued at there (in h space), whether the picture is
still the human's own, and the points of agent and human over the same steps.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.values import stacked_observations
from benchmarks.measure import add_json_option, format_table, machine_info, write_report
from lookfurther import Agent
from lookfurther.demos import catalog, metadata, playback
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import LookFurtherError


class Divergence(NamedTuple):
    """The first step at which agent and human do not do the same."""

    step: int
    own: float  # value of the agent's action, in h space
    human: float
    same_picture: bool


class GreedyRollout:
    """One game, from a moment of the demonstration on."""

    def __init__(self, emulator: Emulator, state: bytes, start: int, seen: np.ndarray) -> None:
        self.emulator = emulator
        emulator.restore_state(state)
        self.start = self.step = start
        self.observation, self.score = seen, 0.0
        self.divergence: Divergence | None = None

    def greedy_step(self, q: np.ndarray, episode: Episode, pictures: np.ndarray) -> None:
        """One greedy step by values q [A]."""
        if self.emulator.is_over:
            return
        action = int(q.argmax())
        if self.divergence is None and self.step < len(episode.actions):
            human = int(episode.actions[self.step])
            if action != human:
                same = bool(np.array_equal(self.observation, pictures[self.step]))
                self.divergence = Divergence(self.step, float(q[action]), float(q[human]), same)
        plane, reward, _ = self.emulator.step(action)
        self.observation = np.concatenate([self.observation[len(plane) :], plane])
        self.score += reward
        self.step += 1


def emulator_states(episode: Episode, emulator: Emulator, every: int) -> dict[int, bytes]:
    """The emulator's state at every `every`-th step of an episode."""
    if episode.input_log is None:
        raise LookFurtherError("these demonstrations have no tapes: only Atari's can be played on")
    found = {0: emulator.clone_state()}
    for i, _ in enumerate(playback.play_log(episode.input_log, emulator), 1):
        if i % (every * emulator.action_repeat) == 0 and i // emulator.action_repeat < len(
            episode.actions
        ):
            found[i // emulator.action_repeat] = emulator.clone_state()
    return found


def play_from_moments(
    agent: Agent, episode: Episode, every: int, steps: int
) -> list[GreedyRollout]:
    """Games from all moments, side by side."""
    pictures = stacked_observations(episode, agent.spec).numpy()
    emulator = partial(Emulator, agent.spec.env, agent.config.environment.action_repeat)
    moments = emulator_states(episode, emulator(), every)
    games = [
        GreedyRollout(emulator(), state, start, pictures[start]) for start, state in moments.items()
    ]
    for _ in range(steps):
        q = agent.q_values(np.stack([game.observation for game in games]))
        for game, values in zip(games, q, strict=True):
            game.greedy_step(values, episode, pictures)
    return games


def rollout_row(game: GreedyRollout, episode: Episode, steps: int) -> dict[str, Any]:
    human = float(episode.rewards[game.start : game.start + steps].sum())
    parting = game.divergence._asdict() if game.divergence else None
    return {"start": game.start, "parting": parting, "agent": game.score, "human": human}


def format_row(found: dict[str, Any]) -> list[Any]:
    words: list[Any] = ["never", "", ""]
    if parting := found["parting"]:
        words = [
            parting["step"],
            f"{parting['own']:.2f} against {parting['human']:.2f}",
            "the human's" if parting["same_picture"] else "another",
        ]
    return [found["start"], *words, found["agent"], found["human"]]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("demos")
    options.add_argument("run", type=Path)
    options.add_argument("--every", type=int, default=100, help="steps from moment to moment")
    options.add_argument("--steps", type=int, default=500, help="steps to play from each")
    add_json_option(options)
    asked = options.parse_args()
    try:
        held, agent = catalog.open_set(asked.demos), Agent.load(asked.run)
        metadata.check_compatible(held.name, held.description, agent.spec, agent.config.environment)
        episode = held.episodes[best_episode_index(held.episodes)]
        games = play_from_moments(agent, episode, asked.every, asked.steps)
    except LookFurtherError as error:
        sys.exit(str(error))
    found = [rollout_row(game, episode, asked.steps) for game in games]
    heads = ["from step", "leaves at", "valued at", "picture", "agent's points", "human's"]
    text = format_table(heads, [format_row(each) for each in found])
    where = machine_info(["torch", "ale-py"])
    write_report(
        f"{asked.run.name} from moments of {held.name}, {asked.steps} steps each",
        {"found": found, "surroundings": where},
        text,
        asked.json,
    )


if __name__ == "__main__":
    main()
