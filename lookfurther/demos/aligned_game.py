"""A recorded game with one action per step, and where its player waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.demos.delayed_log import NOOP, find_true_runs
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import block_majority, frames_by_step
from lookfurther.demos.step_emulator import StepEmulator
from lookfurther.errors import DemonstrationError

if TYPE_CHECKING:
    from ale_py import ALEState

IDLE_STEPS = 4  # no-ops after which the player stands still
MAX_IDLE_RATE = 0.3  # a byte of the player changes less often in idle steps, relative to others
MIN_WAIT = 3  # steps
MAX_GAP = 2  # no-ops between two waits that are one


class AlignedGame(NamedTuple):
    """An aligned game, step by step."""

    action_ids: np.ndarray  # [T] ids of the emulator
    rewards: np.ndarray  # [T]
    ram: np.ndarray  # [T + 1, 128] uint8, before each step and at the end
    lives: np.ndarray  # [T + 1], likewise
    first_state: ALEState  # before step `first_step`
    first_step: int  # the first step that acts


def require_aligned(episode: Episode, action_repeat: int) -> tuple[InputLog, np.ndarray]:
    """The input log of an episode that an agent can play, and the action id of each step [T]."""
    log = episode.input_log
    if log is None or len(log.ram_writes):
        raise DemonstrationError("only aligned Atari episodes can be searched: use demos align")
    rows = frames_by_step(log.frame_actions, action_repeat, log.phase)
    action_ids, ambiguous = block_majority(rows)
    if ambiguous:
        raise DemonstrationError("its steps have several actions: use demos align first")
    if not episode.is_fully_demonstrated:
        raise DemonstrationError(
            "it has an agent's own steps or random actions: use the set that it was made from"
        )
    return log, action_ids


def record_game(emulator: StepEmulator, action_ids: np.ndarray, phase: int) -> AlignedGame:
    """Play a whole game from power-on and record it."""
    active = int(np.argmax(action_ids != NOOP))
    ale = emulator.ale
    ram, lives, rewards, first_state = [], [], np.zeros(len(action_ids)), ale.cloneState()
    for step, action in enumerate(action_ids.tolist()):
        if step == active:
            first_state = ale.cloneState()
        ram.append(ale.getRAM())
        lives.append(ale.lives())
        if step == 0 and phase:
            rewards[0] = sum(ale.act(action) for _ in range(phase))
        else:
            rewards[step] = emulator.play_step(action)
    ram.append(ale.getRAM())
    lives.append(ale.lives())
    return AlignedGame(action_ids, rewards, np.array(ram), np.array(lives), first_state, active)


def find_player_bytes(game: AlignedGame) -> np.ndarray:
    """The bytes that change rarely in idle steps, compared with others; no clocks.

    A byte that never changes is one of them.
    """
    changes = game.ram[1:] != game.ram[:-1]
    is_noop = game.action_ids == NOOP
    padded = np.append([False] * IDLE_STEPS, is_noop)
    is_idle = np.lib.stride_tricks.sliding_window_view(padded, IDLE_STEPS + 1).all(1)
    idle_rate = changes[is_idle].mean(0) if is_idle.any() else np.zeros(changes.shape[1])
    active_rate = changes[~is_noop].mean(0) if not is_noop.all() else idle_rate
    is_steady = (idle_rate < MAX_IDLE_RATE * active_rate) | (idle_rate + active_rate == 0)
    return np.flatnonzero(is_steady & ~find_clocks(changes))


def find_enemy_bytes(game: AlignedGame, player_bytes: np.ndarray) -> np.ndarray:
    """The bytes that describe what moves without the player: all others but clocks."""
    is_enemy = ~find_clocks(game.ram[1:] != game.ram[:-1])
    is_enemy[player_bytes] = False
    return np.flatnonzero(is_enemy)


def find_clocks(changes: np.ndarray) -> np.ndarray:
    """[128]: whether a byte changes at equal intervals, up to a step; of [T, 128]."""
    return np.array([_is_clock(column) for column in changes.T])


def _is_clock(changes: np.ndarray) -> bool:
    intervals = np.diff(np.flatnonzero(changes))
    return len(intervals) >= 2 and float(intervals.std()) <= 0.05 * intervals.mean() + 0.6


def find_waits(places: np.ndarray, first_step: int) -> list[tuple[int, int]]:
    """(begin, end) of the stretches of steps without a change in [T + 1, n], from a step on."""
    is_same = (places[1:] == places[:-1]).all(1)
    is_same[:first_step] = False
    return find_true_runs(is_same, MIN_WAIT)


def join_waits(waits: Sequence[tuple[int, int]], action_ids: np.ndarray) -> list[tuple[int, int]]:
    """Join waits with only a few no-ops between them: the player has not acted there."""
    joined: list[tuple[int, int]] = []
    for begin, end in waits:
        last_end = joined[-1][1] if joined else begin - MAX_GAP - 1
        if begin - last_end <= MAX_GAP and (action_ids[last_end:begin] == NOOP).all():
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined
