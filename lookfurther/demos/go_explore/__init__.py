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

from lookfurther.demos.episode import Audit, Episode, InputLog
from lookfurther.demos.go_explore.archive import (
    TAIL_STEPS,
    Archive,
    ArchiveEntry,
    actions_from_power_on,
)
from lookfurther.demos.go_explore.cells import FRAMES_PER_STEP, AtariExplorationGame, fit_grid
from lookfurther.demos.go_explore.workers import GameFactory, iter_explorations
from lookfurther.demos.playback import episode_from_log, play_log
from lookfurther.envs.emulator import Emulator, game_of
from lookfurther.errors import ConfigError, DemonstrationError, EnvironmentFault
from lookfurther.system.cores import count_cores

EXPLORATIONS_PER_BATCH = 8  # trips begun at a time: about half a second


@dataclass(frozen=True)
class SearchConfig:
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


class SearchProgress(NamedTuple):
    """How far a search has come."""

    frames: int  # emulator frames played
    seconds: float
    num_cells: int
    best_score: float  # of the best play so far
    best_steps: int  # it took to its last reward


ProgressCallback = Callable[[SearchProgress], None]


def search_input_logs(
    env: str,
    budget: int,
    processes: int = 0,
    seed: int = 0,
    on_progress: ProgressCallback | None = None,
) -> list[InputLog]:
    """The best play found within so many emulator frames; empty if nothing was ever scored."""
    options = SearchConfig(env, budget, processes=processes, seed=seed)
    return [
        entry_to_input_log(entry, env)
        for entry in explore_game(_game_factory(options), options, on_progress)
    ]


def run_search(config: SearchConfig, on_progress: ProgressCallback | None = None) -> list[Episode]:
    """The plays of a search as verified demonstrations, best first."""
    played = 0

    def follow(progress: SearchProgress) -> None:
        nonlocal played
        played = progress.frames
        if on_progress:
            on_progress(progress)

    found = explore_game(_game_factory(config), config, follow)
    if not found:
        more = f"give more than {config.budget:,} frames"
        if config.minutes and played < config.budget:
            more = f"give more than {config.minutes:g} minutes, or a faster machine"
        raise DemonstrationError(f"nothing was scored in {config.env} in {played:,} frames: {more}")
    return [_unroll_verified(entry_to_input_log(entry, config.env), config.env) for entry in found]


def explore_game(
    make_game: GameFactory, config: SearchConfig, on_progress: ProgressCallback | None
) -> list[ArchiveEntry]:
    """Search the game that `build` makes; the best plays first.

    Ctrl-C ends a search early: what it has found so far is kept.
    """
    game = make_game()
    archive = Archive(game.reset(), game.state())
    seeds = np.random.SeedSequence(config.seed).spawn(1 + (config.processes or count_cores()))
    random = np.random.default_rng(seeds[0])
    made = iter_explorations(
        make_game, seeds[1:], lambda: archive.sample_starts(random, EXPLORATIONS_PER_BATCH)
    )
    begun, frames = time.monotonic(), 0
    limit = 60 * config.minutes or math.inf
    with contextlib.closing(made), contextlib.suppress(KeyboardInterrupt):
        for start, trip in made:
            archive.add(start, trip)
            frames += FRAMES_PER_STEP * len(trip.actions)
            top, seconds = archive.best_entry, time.monotonic() - begun
            if on_progress:
                on_progress(
                    SearchProgress(frames, seconds, len(archive), top.score, top.last_reward_step)
                )
            if frames >= config.budget or seconds >= limit:
                break
    return archive.best_entries(config.episodes)


def entry_to_input_log(entry: ArchiveEntry, env: str) -> InputLog:
    """A play as a tape that ends TAIL steps after the last reward, or with the game.

    What follows is a random walk, and L_IM would imitate it.
    """
    steps = np.frombuffer(
        actions_from_power_on(entry.trajectory)[: entry.last_reward_step + TAIL_STEPS], np.uint8
    )
    whole = InputLog(np.repeat(steps, FRAMES_PER_STEP))
    rewards = list(play_log(whole, Emulator(env, FRAMES_PER_STEP)))
    if sum(rewards) != entry.score:
        raise EnvironmentFault(
            f"{env}: a play of {entry.score:g} points gives {sum(rewards):g} when played again:"
            " its saved states do not hold all of the game"
        )
    return dataclasses.replace(whole, frame_actions=whole.frame_actions[: len(rewards)])


def _game_factory(config: SearchConfig) -> GameFactory:
    game = game_of(config.env)
    return partial(AtariExplorationGame, game, fit_grid(game, config.seed))


def _unroll_verified(input_log: InputLog, env: str) -> Episode:
    episode = episode_from_log(input_log, env, FRAMES_PER_STEP)
    checks = {"score": 1}  # `tape` has compared it with that of the search
    audit = Audit(True, episode.score, episode.score, len(input_log.frame_actions), 0, "", checks)
    return dataclasses.replace(episode, audit=audit)
