"""Demonstrations without a demonstrator: Go-Explore's first phase (Ecoffet et al., 2019).

An archive holds the best known way to each cell, a cell being all screens that look alike when
small and grey. Again and again a seldom seen cell is chosen, its saved state restored, and random
actions lead on from there; new cells and better ways to old ones enter the archive. It works
because the emulator can be put back; what it finds is an ordinary sequence of actions from
power-on, which needs no saved state to be played again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from lookfurther.demos.episode import Audit, Episode, Tape
from lookfurther.demos.go_explore.archive import TAIL, Archive, Entry, actions
from lookfurther.demos.go_explore.cells import REPEAT, AtariGame, fitted
from lookfurther.demos.go_explore.workers import Build, trips
from lookfurther.demos.playback import play, unroll
from lookfurther.envs.emulator import Emulator, game_of
from lookfurther.errors import ConfigError, DemonstrationError, EnvironmentFault
from lookfurther.system.cores import cores

BATCH = 8  # trips begun at a time: about half a second


@dataclass(frozen=True)
class SearchOptions:
    """Find demonstrations of an Atari game without a player, by exploring from saved states."""

    env: str
    """the game, such as ALE/MontezumaRevenge-v5"""
    budget: int = 10_000_000
    """emulator frames to play"""
    minutes: float = 0.0
    """stop after so many minutes even if frames are left; 0: never"""
    processes: int = 0
    """processes that explore; 0: one for each core. Only with 1 does a seed repeat a search"""
    seed: int = 0
    """of the choices of cells and actions"""
    episodes: int = 1
    """how many plays to keep, no two of them alike in their first half"""

    def __post_init__(self) -> None:
        least = {"budget": 1, "minutes": 0, "processes": 0, "seed": 0, "episodes": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be at least {bound}, not {getattr(self, name)}")


class Progress(NamedTuple):
    """How far a search has come."""

    frames: int  # emulator frames played
    seconds: float
    cells: int
    score: float  # of the best play so far
    steps: int  # it took to its last reward


Report = Callable[[Progress], None]


def search(
    env: str, budget: int, processes: int = 0, seed: int = 0, report: Report | None = None
) -> list[Tape]:
    """The best play found within so many emulator frames; empty if nothing was ever scored."""
    options = SearchOptions(env, budget, processes=processes, seed=seed)
    return [tape(entry, env) for entry in discover(_builder(options), options, report)]


def run_search(options: SearchOptions, report: Report | None = None) -> list[Episode]:
    """The plays of a search as verified demonstrations, best first."""
    played = 0

    def follow(progress: Progress) -> None:
        nonlocal played
        played = progress.frames
        if report:
            report(progress)

    found = discover(_builder(options), options, follow)
    if not found:
        more = f"give more than {options.budget:,} frames"
        if options.minutes and played < options.budget:
            more = f"give more than {options.minutes:g} minutes, or a faster machine"
        raise DemonstrationError(
            f"nothing was scored in {options.env} in {played:,} frames: {more}"
        )
    return [_episode(tape(entry, options.env), options.env) for entry in found]


def discover(build: Build, options: SearchOptions, report: Report | None) -> list[Entry]:
    """Search the game that `build` makes; the best plays first.

    Ctrl-C ends a search early: what it has found so far is kept.
    """
    game = build()
    archive = Archive(game.reset(), game.state())
    seeds = np.random.SeedSequence(options.seed).spawn(1 + (options.processes or cores()))
    random = np.random.default_rng(seeds[0])
    made = trips(build, seeds[1:], lambda: archive.choose(random, BATCH))
    begun, frames = time.monotonic(), 0
    limit = 60 * options.minutes or math.inf
    with contextlib.closing(made), contextlib.suppress(KeyboardInterrupt):
        for start, trip in made:
            archive.add(start, trip)
            frames += REPEAT * len(trip.actions)
            top, seconds = archive.top, time.monotonic() - begun
            if report:
                report(Progress(frames, seconds, len(archive), top.score, top.rewarded))
            if frames >= options.budget or seconds >= limit:
                break
    return archive.best(options.episodes)


def tape(entry: Entry, env: str) -> Tape:
    """A play as a tape that ends TAIL steps after the last reward, or with the game.

    What follows is a random walk, and L_IM would imitate it.
    """
    steps = np.frombuffer(actions(entry.moment)[: entry.rewarded + TAIL], np.uint8)
    whole = Tape(np.repeat(steps, REPEAT))
    rewards = list(play(whole, Emulator(env, REPEAT)))
    if sum(rewards) != entry.score:
        raise EnvironmentFault(
            f"{env}: a play of {entry.score:g} points gives {sum(rewards):g} when played again:"
            " its saved states do not hold all of the game"
        )
    return dataclasses.replace(whole, frames=whole.frames[: len(rewards)])


def _builder(options: SearchOptions) -> Build:
    game = game_of(options.env)
    return partial(AtariGame, game, fitted(game, options.seed))


def _episode(found: Tape, env: str) -> Episode:
    episode = unroll(found, env, REPEAT)
    checks = {"score": 1}  # `tape` has compared it with that of the search
    audit = Audit(True, episode.score, episode.score, len(found.frames), 0, "", checks)
    return dataclasses.replace(episode, audit=audit)
