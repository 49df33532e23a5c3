"""Atari episodes played again from their tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lookfurther.demos.episode import Episode, InputLog
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

PAD_ACTION = 255  # fills the block of a short step


class GameOverError(DemonstrationError):
    """A tape that goes on where the game does not."""

    def __init__(self, frames: int, length: int) -> None:
        super().__init__(f"the game is over at frame {frames} of {length}")
        self.frames_played = frames


def episode_from_log(
    input_log: InputLog,
    env: str,
    action_repeat: int = 4,
    sticky_prob: float = 0.0,
    on_frame: Callable[[Emulator, float], None] = lambda *_: None,
) -> Episode:
    """The episode of a tape in steps of `repeat` true frames, the last partial one kept.

    `watch` is called after every frame with its reward, and may raise to break off.
    """
    emulator, ends = (
        make_emulator(input_log, env, action_repeat, sticky_prob),
        step_ends(input_log, action_repeat),
    )
    planes = np.empty((len(ends), *emulator.current_plane().shape), np.uint8)
    rewards = np.zeros(len(ends) - 1, np.float32)
    planes[0] = emulator.current_plane()
    step = 0
    for i, reward in enumerate(play_log(input_log, emulator), 1):
        on_frame(emulator, reward)
        rewards[step] += reward
        if i == ends[step + 1]:
            step += 1
            planes[step] = emulator.current_plane()
    if emulator.frame_number < len(input_log.frame_actions):
        raise GameOverError(emulator.frame_number, len(input_log.frame_actions))
    actions, _ = majority_actions(input_log, emulator)
    return Episode(planes, actions, rewards, emulator.is_over, input_log=input_log)


def make_emulator(
    input_log: InputLog, env: str, action_repeat: int, sticky_prob: float = 0.0
) -> Emulator:
    """An emulator just switched on, for a tape to be played on."""
    return Emulator(
        env, action_repeat, sticky_prob, input_log.seed, input_log.phase, input_log.variant
    )


def step_ends(input_log: InputLog, action_repeat: int) -> np.ndarray:
    """How many frames have been played before the first step and after each, [T + 1]."""
    frames = len(input_log.frame_actions)
    first = input_log.phase % action_repeat or action_repeat
    return np.unique(np.concatenate([[0], np.arange(first, frames, action_repeat), [frames]]))


def with_best_phase(input_log: InputLog, action_repeat: int) -> InputLog:
    """The tape cut into steps so that the fewest hold several actions; the earliest cut of equals.

    Buttons that were held for `repeat` frames, but not from power-on on, then are one action a
    step.
    """
    phases = [replace(input_log, phase=phase) for phase in range(action_repeat)]
    return min(phases, key=lambda cut: count_ambiguous_steps(cut, action_repeat))


def truncate_log(input_log: InputLog, length: int) -> InputLog:
    """The first frames of a tape."""
    return replace(
        input_log,
        frames=input_log.frame_actions[:length],
        writes=input_log.ram_writes[input_log.ram_writes[:, 0] < length],
    )


def play_log(input_log: InputLog, emulator: Emulator) -> Iterator[float]:
    """Play a tape on an emulator just switched on; the reward of each frame, until the end."""
    writes = iter([*input_log.ram_writes.tolist(), (len(input_log.frame_actions), 0, 0)])
    due, address, value = next(writes)
    for i, action in enumerate(input_log.frame_actions.tolist()):
        while due == i:
            emulator.write_ram(address, value)
            due, address, value = next(writes)
        yield emulator.step_frame(action)
        if emulator.is_over:
            return


def majority_actions(input_log: InputLog, emulator: Emulator) -> tuple[np.ndarray, int]:
    """The environment's action of each step, and how many steps held more than one."""
    ids, several = block_majority(
        frames_by_step(input_log.frame_actions, emulator.action_repeat, input_log.phase)
    )
    if not set(ids.tolist()) <= set(emulator.legal_actions):
        raise DemonstrationError(f"the tape has actions that {emulator.game} does not know")
    return np.searchsorted(emulator.legal_actions, ids), several


def count_ambiguous_steps(input_log: InputLog, action_repeat: int) -> int:
    """How many steps of a tape hold more than one action."""
    return block_majority(frames_by_step(input_log.frame_actions, action_repeat, input_log.phase))[
        1
    ]


def with_step_actions(input_log: InputLog, action_ids: np.ndarray, action_repeat: int) -> InputLog:
    """The tape with one action a step, [T] ids, instead of its own."""
    lengths = np.diff(step_ends(input_log, action_repeat))
    return replace(input_log, frame_actions=np.repeat(action_ids.astype(np.uint8), lengths))


def frames_by_step(frames: np.ndarray, action_repeat: int, phase: int = 0) -> np.ndarray:
    """The frames of each step, [T, repeat] uint8; PAD fills a short first or last step."""
    missing = -phase % action_repeat  # frames before the first, for its step to be a whole one
    length = missing + len(frames)
    padded = np.full(-(-length // action_repeat) * action_repeat, PAD_ACTION, np.uint8)
    padded[missing:length] = frames
    return padded.reshape(-1, action_repeat)


def block_majority(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """As `_majority` says, some blocks at a time: it compares each frame with each of its block."""
    rows = max(1, 2**22 // frames.shape[1] ** 2)
    parts = [
        _batch_majority(frames[low : low + rows]) for low in range(0, max(1, len(frames)), rows)
    ]
    return np.concatenate([actions for actions, _ in parts]), sum(several for _, several in parts)


def _batch_majority(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """The most frequent action of each block, the earliest of several, and how many had several."""
    counts = (frames[:, :, None] == frames[:, None, :]).sum(-1)
    counts[frames == PAD_ACTION] = 0
    actions = np.take_along_axis(frames, counts.argmax(1)[:, None], 1)
    several = (frames != actions) & (frames != PAD_ACTION)
    return actions[:, 0].astype(np.int64), int(several.any(1).sum())
