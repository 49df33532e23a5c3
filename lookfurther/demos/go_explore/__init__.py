"""Demonstrations by search: the first phase of Go-Explore (Ecoffet et al., 2019).

A cell is the set of all screens that look alike when small and gray. The archive holds the best
known trajectory to each cell. The search repeatedly chooses a cell with few visits, restores its
saved state and explores from there with random actions; new cells and better trajectories enter the
archive. Only the search restores states: its result is a sequence of actions from power-on.
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
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import find_game
from lookfurther.errors import ConfigError, DemonstrationError, EnvironmentFault
from lookfurther.system.processes import count_cores

EXPLORATIONS_PER_BATCH = 8  # about half a second of work


@dataclass(frozen=True)
class SearchConfig:
    """Settings of a search."""

    env: str
    """the game, such as ALE/MontezumaRevenge-v5"""
    frames: int = 10_000_000
    """emulator frames to play"""
    minutes: float = 0.0
    """stop after this many minutes even if frames are left; 0: no limit"""
    processes: int = 0
    """worker processes; 0: one per core. The search is reproducible from its seed only with 1"""
    seed: int = 0
    """seed of the choices of cells and actions"""
    episodes: int = 1
    """episodes to return, no two with the same first half"""

    def __post_init__(self) -> None:
        minimums = {"frames": 1, "minutes": 0, "processes": 0, "seed": 0, "episodes": 1}
        for name, minimum in minimums.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, not {getattr(self, name)}")


class SearchProgress(NamedTuple):
    """Progress of a search."""

    frames: int  # emulator frames played
    seconds: float
    num_cells: int
    best_score: float
    best_steps: int  # steps of the best trajectory to its last reward


ProgressCallback = Callable[[SearchProgress], None]


def run_search(config: SearchConfig, on_progress: ProgressCallback | None = None) -> list[Episode]:
    """Search, and return the best episodes as verified demonstrations, best first."""
    frames = 0

    def count_frames(progress: SearchProgress) -> None:
        nonlocal frames
        frames = progress.frames
        if on_progress:
            on_progress(progress)

    env = config.env
    entries = explore_game(_game_factory(config), config, count_frames)
    if not entries:
        fix = f"give more than {config.frames:,} frames"
        if config.minutes and frames < config.frames:
            fix = f"give more than {config.minutes:g} minutes, or a faster machine"
        raise DemonstrationError(f"nothing was scored in {env} in {frames:,} frames: {fix}")
    return [_unroll_verified(entry_to_input_log(entry, env), env) for entry in entries]


def explore_game(
    make_game: GameFactory, config: SearchConfig, on_progress: ProgressCallback | None
) -> list[ArchiveEntry]:
    """Search a game; return the best archive entries first.

    Ctrl-C ends the search early and keeps the results so far.
    """
    game = make_game()
    archive = Archive(game.reset(), game.save_state())
    seeds = np.random.SeedSequence(config.seed).spawn(1 + (config.processes or count_cores()))
    rng = np.random.default_rng(seeds[0])
    explorations = iter_explorations(
        make_game, seeds[1:], lambda: archive.sample_starts(rng, EXPLORATIONS_PER_BATCH)
    )
    start_time, frames = time.monotonic(), 0
    max_seconds = 60 * config.minutes or math.inf
    with contextlib.closing(explorations), contextlib.suppress(KeyboardInterrupt):
        for start, exploration in explorations:
            archive.add(start, exploration)
            frames += FRAMES_PER_STEP * len(exploration.actions)
            best, seconds = archive.best_entry, time.monotonic() - start_time
            if on_progress:
                on_progress(
                    SearchProgress(frames, seconds, len(archive), best.score, best.last_reward_step)
                )
            if frames >= config.frames or seconds >= max_seconds:
                break
    return archive.best_entries(config.episodes)


def entry_to_input_log(entry: ArchiveEntry, env: str) -> InputLog:
    """Convert an entry to an input log that ends TAIL_STEPS after the last reward or with the game.

    Later steps are a random walk, which L_IM would imitate.
    """
    actions = actions_from_power_on(entry.trajectory)[: entry.last_reward_step + TAIL_STEPS]
    log = InputLog(np.repeat(np.frombuffer(actions, np.uint8), FRAMES_PER_STEP))
    rewards = list(play_log(log, Emulator(env, FRAMES_PER_STEP)))
    if sum(rewards) != entry.score:
        raise EnvironmentFault(
            f"{env}: a trajectory of {entry.score:g} points gives {sum(rewards):g} when replayed:"
            " the saved states do not hold the whole game"
        )
    return dataclasses.replace(log, frame_actions=log.frame_actions[: len(rewards)])


def _game_factory(config: SearchConfig) -> GameFactory:
    game = find_game(config.env)
    return partial(AtariExplorationGame, game, fit_grid(game, config.seed))


def _unroll_verified(input_log: InputLog, env: str) -> Episode:
    episode = episode_from_log(input_log, env, FRAMES_PER_STEP)
    checks = {"score": 1}  # compared by `entry_to_input_log`
    audit = Audit(True, episode.score, episode.score, len(input_log.frame_actions), 0, "", checks)
    return dataclasses.replace(episode, audit=audit)
