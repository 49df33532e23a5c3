"""Atari episodes played again from their tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lookfurther.demos.episode import Episode, Tape
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

PAD = 255  # fills the block of a short step


class GameOver(DemonstrationError):
    """A tape that goes on where the game does not."""

    def __init__(self, frames: int, length: int) -> None:
        super().__init__(f"the game is over at frame {frames} of {length}")
        self.frames = frames


def unroll(
    tape: Tape,
    env: str,
    repeat: int = 4,
    sticky: float = 0.0,
    watch: Callable[[Emulator, float], None] = lambda *_: None,
) -> Episode:
    """The episode of a tape in steps of `repeat` true frames, the last partial one kept.

    `watch` is called after every frame with its reward, and may raise to break off.
    """
    emulator, ends = emulator_of(tape, env, repeat, sticky), step_ends(tape, repeat)
    planes = np.empty((len(ends), *emulator.plane().shape), np.uint8)
    rewards = np.zeros(len(ends) - 1, np.float32)
    planes[0] = emulator.plane()
    step = 0
    for i, reward in enumerate(play(tape, emulator), 1):
        watch(emulator, reward)
        rewards[step] += reward
        if i == ends[step + 1]:
            step += 1
            planes[step] = emulator.plane()
    if emulator.frames < len(tape.frames):
        raise GameOver(emulator.frames, len(tape.frames))
    actions, _ = choices(tape, emulator)
    return Episode(planes, actions, rewards, emulator.over, tape=tape)


def emulator_of(tape: Tape, env: str, repeat: int, sticky: float = 0.0) -> Emulator:
    """An emulator just switched on, for a tape to be played on."""
    return Emulator(env, repeat, sticky, tape.seed, tape.phase, tape.variant)


def step_ends(tape: Tape, repeat: int) -> np.ndarray:
    """How many frames have been played before the first step and after each, [T + 1]."""
    frames = len(tape.frames)
    first = tape.phase % repeat or repeat
    return np.unique(np.concatenate([[0], np.arange(first, frames, repeat), [frames]]))


def with_best_phase(tape: Tape, repeat: int) -> Tape:
    """The tape cut into steps so that the fewest hold several actions; the earliest cut of equals.

    Buttons that were held for `repeat` frames, but not from power-on on, then are one action a
    step.
    """
    phases = [replace(tape, phase=phase) for phase in range(repeat)]
    return min(phases, key=lambda cut: ambiguous(cut, repeat))


def cut(tape: Tape, length: int) -> Tape:
    """The first frames of a tape."""
    return replace(
        tape, frames=tape.frames[:length], writes=tape.writes[tape.writes[:, 0] < length]
    )


def play(tape: Tape, emulator: Emulator) -> Iterator[float]:
    """Play a tape on an emulator just switched on; the reward of each frame, until the end."""
    writes = iter([*tape.writes.tolist(), (len(tape.frames), 0, 0)])
    due, address, value = next(writes)
    for i, action in enumerate(tape.frames.tolist()):
        while due == i:
            emulator.write(address, value)
            due, address, value = next(writes)
        yield emulator.frame(action)
        if emulator.over:
            return


def choices(tape: Tape, emulator: Emulator) -> tuple[np.ndarray, int]:
    """The environment's action of each step, and how many steps held more than one."""
    ids, several = majority(blocks(tape.frames, emulator.repeat, tape.phase))
    if not set(ids.tolist()) <= set(emulator.legal):
        raise DemonstrationError(f"the tape has actions that {emulator.game} does not know")
    return np.searchsorted(emulator.legal, ids), several


def ambiguous(tape: Tape, repeat: int) -> int:
    """How many steps of a tape hold more than one action."""
    return majority(blocks(tape.frames, repeat, tape.phase))[1]


def held(tape: Tape, ids: np.ndarray, repeat: int) -> Tape:
    """The tape with one action a step, [T] ids, instead of its own."""
    lengths = np.diff(step_ends(tape, repeat))
    return replace(tape, frames=np.repeat(ids.astype(np.uint8), lengths))


def blocks(frames: np.ndarray, repeat: int, phase: int = 0) -> np.ndarray:
    """The frames of each step, [T, repeat] uint8; PAD fills a short first or last step."""
    missing = -phase % repeat  # frames before the first, for its step to be a whole one
    length = missing + len(frames)
    padded = np.full(-(-length // repeat) * repeat, PAD, np.uint8)
    padded[missing:length] = frames
    return padded.reshape(-1, repeat)


def majority(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """As `_majority` says, some blocks at a time: it compares each frame with each of its block."""
    rows = max(1, 2**22 // frames.shape[1] ** 2)
    parts = [_majority(frames[low : low + rows]) for low in range(0, max(1, len(frames)), rows)]
    return np.concatenate([actions for actions, _ in parts]), sum(several for _, several in parts)


def _majority(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """The most frequent action of each block, the earliest of several, and how many had several."""
    counts = (frames[:, :, None] == frames[:, None, :]).sum(-1)
    counts[frames == PAD] = 0
    actions = np.take_along_axis(frames, counts.argmax(1)[:, None], 1)
    several = (frames != actions) & (frames != PAD)
    return actions[:, 0].astype(np.int64), int(several.any(1).sum())
