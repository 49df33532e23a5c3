"""Atari episodes played again from their tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lookfurther.demos.episodes import Episode, Tape
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

PAD = 255  # fills the last block where the tape ends within it


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
    emulator = Emulator(env, repeat, sticky, tape.seed)
    length, steps = len(tape.frames), -(-len(tape.frames) // repeat)
    planes = np.empty((steps + 1, *emulator.plane().shape), np.uint8)
    rewards = np.zeros(steps, np.float32)
    planes[0] = emulator.plane()
    for i, reward in enumerate(play(tape, emulator)):
        watch(emulator, reward)
        rewards[i // repeat] += reward
        if (i + 1) % repeat == 0 or i + 1 == length:
            planes[i // repeat + 1] = emulator.plane()
    if emulator.frames < length:
        raise GameOver(emulator.frames, length)
    actions, _ = choices(tape, emulator)
    return Episode(planes, actions, rewards, emulator.over, tape=tape)


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
    ids, several = majority(blocks(tape.frames, emulator.repeat))
    if not set(ids.tolist()) <= set(emulator.legal):
        raise DemonstrationError(f"the tape has actions that {emulator.game} does not know")
    return np.searchsorted(emulator.legal, ids), several


def ambiguous(tape: Tape, repeat: int) -> int:
    """How many steps of a tape hold more than one action."""
    return majority(blocks(tape.frames, repeat))[1]


def held(tape: Tape, ids: np.ndarray, repeat: int) -> Tape:
    """The tape with one action a step, [T] ids, in place of its own."""
    return replace(tape, frames=np.repeat(ids.astype(np.uint8), repeat)[: len(tape.frames)])


def blocks(frames: np.ndarray, repeat: int) -> np.ndarray:
    """The frames of each step, [steps, repeat] uint8, the last one padded with PAD."""
    padded = np.full(-(-len(frames) // repeat) * repeat, PAD, np.uint8)
    padded[: len(frames)] = frames
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
    actions = np.take_along_axis(frames, counts.argmax(1)[:, None], 1)[:, 0].astype(np.int64)
    several = (frames != frames[:, :1]) & (frames != PAD)
    return actions, int(several.any(1).sum())
