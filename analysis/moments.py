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

from analysis.values import observations
from benchmarks.measure import add_json, report, surroundings, table
from lookfurther import Agent
from lookfurther.demos import catalog, metadata, playback
from lookfurther.demos.episode import Episode, best
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import LookFurtherError


class Parting(NamedTuple):
    """The first step at which agent and human do not do the same."""

    step: int
    own: float  # value of the agent's action, in h space
    human: float
    same_picture: bool


class Game:
    """One game, from a moment of the demonstration on."""

    def __init__(self, emulator: Emulator, state: bytes, start: int, seen: np.ndarray) -> None:
        self.emulator = emulator
        emulator.restore(state)
        self.start = self.step = start
        self.seen, self.points = seen, 0.0
        self.parting: Parting | None = None

    def advance(self, q: np.ndarray, episode: Episode, pictures: np.ndarray) -> None:
        """One greedy step by values q [A]."""
        if self.emulator.over:
            return
        action = int(q.argmax())
        if self.parting is None and self.step < len(episode.actions):
            human = int(episode.actions[self.step])
            if action != human:
                same = bool(np.array_equal(self.seen, pictures[self.step]))
                self.parting = Parting(self.step, float(q[action]), float(q[human]), same)
        plane, reward, _ = self.emulator.step(action)
        self.seen = np.concatenate([self.seen[len(plane) :], plane])
        self.points += reward
        self.step += 1


def states(episode: Episode, emulator: Emulator, every: int) -> dict[int, bytes]:
    """The emulator's state at every `every`-th step of an episode."""
    if episode.tape is None:
        raise LookFurtherError("these demonstrations have no tapes: only Atari's can be played on")
    found = {0: emulator.state()}
    for i, _ in enumerate(playback.play(episode.tape, emulator), 1):
        if i % (every * emulator.repeat) == 0 and i // emulator.repeat < len(episode.actions):
            found[i // emulator.repeat] = emulator.state()
    return found


def played(agent: Agent, episode: Episode, every: int, steps: int) -> list[Game]:
    """Games from all moments, side by side."""
    pictures = observations(episode, agent.spec).numpy()
    emulator = partial(Emulator, agent.spec.env, agent.config.environment.repeat)
    moments = states(episode, emulator(), every)
    games = [Game(emulator(), state, start, pictures[start]) for start, state in moments.items()]
    for _ in range(steps):
        q = agent.values(np.stack([game.seen for game in games]))
        for game, values in zip(games, q, strict=True):
            game.advance(values, episode, pictures)
    return games


def row(game: Game, episode: Episode, steps: int) -> dict[str, Any]:
    human = float(episode.rewards[game.start : game.start + steps].sum())
    parting = game.parting._asdict() if game.parting else None
    return {"start": game.start, "parting": parting, "agent": game.points, "human": human}


def line(found: dict[str, Any]) -> list[Any]:
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
    add_json(options)
    asked = options.parse_args()
    try:
        held, agent = catalog.opened(asked.demos), Agent.load(asked.run)
        metadata.fits(held.name, held.description, agent.spec, agent.config.environment)
        episode = held.episodes[best(held.episodes)]
        games = played(agent, episode, asked.every, asked.steps)
    except LookFurtherError as error:
        sys.exit(str(error))
    found = [row(game, episode, asked.steps) for game in games]
    heads = ["from step", "leaves at", "valued at", "picture", "agent's points", "human's"]
    text = table(heads, [line(each) for each in found])
    where = surroundings(["torch", "ale-py"])
    report(
        f"{asked.run.name} from moments of {held.name}, {asked.steps} steps each",
        {"found": found, "surroundings": where},
        text,
        asked.json,
    )


if __name__ == "__main__":
    main()
