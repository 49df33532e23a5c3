"""Where an agent leaves its demonstration: greedy rollouts from steps along it.

    python -m analysis.moments DEMOS RUN [--every N] [--steps N] [--json FILE]

Starts a greedy rollout of the run's best weights from the emulator state of every N-th step of the
best episode. Prints the first step at which the agent's action differs from the human's, the values
of both actions there (in h space), whether the observation is still the human's, and the scores of
agent and human over the same steps.
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
    """The first step at which the actions of agent and human differ."""

    step: int
    own: float  # value of the agent's action, in h space
    human: float
    same_picture: bool


class GreedyRollout:
    """One rollout from a step of the demonstration."""

    def __init__(
        self, emulator: Emulator, state: bytes, start: int, observation: np.ndarray
    ) -> None:
        self.emulator = emulator
        emulator.restore_state(state)
        self.start = self.step = start
        self.observation, self.score = observation, 0.0
        self.divergence: Divergence | None = None

    def greedy_step(self, q: np.ndarray, episode: Episode, observations: np.ndarray) -> None:
        """One greedy step by Q-values q [A]."""
        if self.emulator.is_over:
            return
        action = int(q.argmax())
        if self.divergence is None and self.step < len(episode.actions):
            human = int(episode.actions[self.step])
            if action != human:
                same = bool(np.array_equal(self.observation, observations[self.step]))
                self.divergence = Divergence(self.step, float(q[action]), float(q[human]), same)
        plane, reward, _ = self.emulator.step(action)
        self.observation = np.concatenate([self.observation[len(plane) :], plane])
        self.score += reward
        self.step += 1


def emulator_states(episode: Episode, emulator: Emulator, every: int) -> dict[int, bytes]:
    """The emulator's state at every `every`-th step of an episode."""
    if episode.input_log is None:
        raise LookFurtherError(
            "these demonstrations have no input logs: only Atari demonstrations work"
        )
    states = {0: emulator.clone_state()}
    for frame, _ in enumerate(playback.play_log(episode.input_log, emulator), 1):
        step, is_mid_step = divmod(frame, emulator.action_repeat)
        if not is_mid_step and step % every == 0 and step < len(episode.actions):
            states[step] = emulator.clone_state()
    return states


def play_from_moments(
    agent: Agent, episode: Episode, every: int, steps: int
) -> list[GreedyRollout]:
    """Rollouts from every `every`-th step, all in one batch."""
    observations = stacked_observations(episode, agent.spec).numpy()
    emulator = partial(Emulator, agent.spec.env, agent.config.environment.action_repeat)
    states = emulator_states(episode, emulator(), every)
    rollouts = [
        GreedyRollout(emulator(), state, start, observations[start])
        for start, state in states.items()
    ]
    for _ in range(steps):
        q = agent.q_values(np.stack([rollout.observation for rollout in rollouts]))
        for rollout, values in zip(rollouts, q, strict=True):
            rollout.greedy_step(values, episode, observations)
    return rollouts


def rollout_row(rollout: GreedyRollout, episode: Episode, steps: int) -> dict[str, Any]:
    human = float(episode.rewards[rollout.start : rollout.start + steps].sum())
    parting = rollout.divergence._asdict() if rollout.divergence else None
    return {"start": rollout.start, "parting": parting, "agent": rollout.score, "human": human}


def format_row(row: dict[str, Any]) -> list[Any]:
    cells: list[Any] = ["never", "", ""]
    if divergence := row["parting"]:
        cells = [
            divergence["step"],
            f"{divergence['own']:.2f} against {divergence['human']:.2f}",
            "the human's" if divergence["same_picture"] else "another",
        ]
    return [row["start"], *cells, row["agent"], row["human"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("demos")
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=100, help="steps between rollouts")
    parser.add_argument("--steps", type=int, default=500, help="steps per rollout")
    add_json_option(parser)
    options = parser.parse_args()
    try:
        demo_set, agent = catalog.open_set(options.demos), Agent.load(options.run)
        metadata.check_compatible(
            demo_set.name, demo_set.description, agent.spec, agent.config.environment
        )
        episode = demo_set.episodes[best_episode_index(demo_set.episodes)]
        rollouts = play_from_moments(agent, episode, options.every, options.steps)
    except LookFurtherError as error:
        sys.exit(str(error))
    rows = [rollout_row(rollout, episode, options.steps) for rollout in rollouts]
    header = ["from step", "leaves at", "values", "observation", "agent's score", "human's"]
    text = format_table(header, [format_row(row) for row in rows])
    machine = machine_info(["torch", "ale-py"])
    write_report(
        f"{options.run.name} from moments of {demo_set.name}, {options.steps} steps each",
        {"found": rows, "surroundings": machine},
        text,
        options.json,
    )


if __name__ == "__main__":
    main()
