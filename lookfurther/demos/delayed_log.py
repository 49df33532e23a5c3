"""A human's game with no-op frames added: before its first action, or where the human waits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lookfurther.demos.episode import InputLog
from lookfurther.envs.atari import NOOP_MAX

NOOP = 0


class DelayedLog(NamedTuple):
    """The actions of a game, and which frame of the human's game each frame repeats."""

    input_log: InputLog
    human_frames: np.ndarray  # [frames + 1] int64, from power-on on


def without_delay(human_log: InputLog) -> DelayedLog:
    """The human's game as it is."""
    return DelayedLog(human_log, np.arange(len(human_log.frame_actions) + 1))


def delay_start(human_log: InputLog, phase: int) -> DelayedLog:
    """The human's actions from this emulator's power-on, after enough no-op frames for any start.

    An evaluation starts with 0 ... `NOOP_MAX` no-op frames. If the player does nothing for that
    long, only the remainder modulo the action repeat matters: the other starts are suffixes of the
    same game. The RAM writes of an old recording are left out: an agent's game has none.
    """
    frames = human_log.frame_actions
    first_action = int(np.argmax(frames != NOOP))
    input_log = InputLog(frames, seed=human_log.seed, phase=phase, variant=human_log.variant)
    delay = max(0, NOOP_MAX - first_action)
    return insert_wait(without_delay(input_log), 0, delay)


def insert_wait(delayed: DelayedLog, frame: int, count: int) -> DelayedLog:
    """The same game with `count` more no-op frames before the action of a frame."""
    actions = np.insert(delayed.input_log.frame_actions, [frame] * count, NOOP)
    human_frames = np.insert(delayed.human_frames, [frame] * count, delayed.human_frames[frame])
    return DelayedLog(replace(delayed.input_log, frame_actions=actions), human_frames)


def find_human_waits(delayed: DelayedLog, begin: int, end: int, min_frames: int) -> list[int]:
    """The first frames of the player's waits between two frames, latest first."""
    is_waiting = delayed.input_log.frame_actions[begin:end] == NOOP
    return [begin + first for first, _ in reversed(find_true_runs(is_waiting, min_frames))]


def find_true_runs(mask: np.ndarray, min_length: int) -> list[tuple[int, int]]:
    """(begin, end) of the places where at least `min_length` values of a mask [T] are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    pairs = edges.reshape(-1, 2).tolist()
    return [(begin, end) for begin, end in pairs if end - begin >= min_length]
