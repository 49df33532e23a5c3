"""The distance between the emulator's RAM in two games.

It is a sum over the 128 bytes. Each byte contributes at most its limit. The limits follow from the
human's game: how often a byte changes, and what another action does to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lookfurther.demos.episode import RAM_BYTES, InputLog
from lookfurther.demos.playback import make_emulator
from lookfurther.envs.emulator import Emulator

BYTE_LIMIT_RANGE = (2, 64)  # if a byte changes in every step, if it rarely changes
MOTION_LIMIT = 32  # at least, for a byte of a position, a velocity or an angle
MIN_MOTION_RATE = 0.5  # of the steps; a byte that changes less often counts enough
MIN_ACTION_SHARE = 0.005  # of the frames, for a common action

PROBES = 200  # places of the human's game where another action is tried
PROBE_STEPS = 12  # steps of a probe; the first of them has the other action
SETTLED_STEPS = 4  # of a probe; after them, a byte that only shows the input is equal again
MIN_PROBE_SHARE = 0.01  # of the probes in which a byte of a motion must differ
MAX_MOTION_JUMP = 16  # mean change of a difference from step to step; 64 for random numbers

REPAIR_FRAMES = 16  # after a RAM write, until its effect is compared


class RamRepair(NamedTuple):
    """The effect of a recording's RAM writes at a frame."""

    frame: int
    is_repaired: np.ndarray  # [128] bool: the bytes that would stay different without the writes


def find_common_actions(frame_actions: np.ndarray) -> list[int]:
    """The actions that a human takes in a game, without those of very few frames."""
    counts = np.bincount(frame_actions)
    return np.flatnonzero(counts > MIN_ACTION_SHARE * len(frame_actions)).tolist()


def compute_byte_limits(ram: np.ndarray, is_motion: np.ndarray) -> np.ndarray:
    """The largest distance of each byte, [128]; higher if it changes rarely in [T + 1, 128].

    Doors, keys and lives change rarely, and a difference there persists. Timers and random numbers
    change in every step. Positions and velocities can change in every step too, but the player
    controls them: bytes of `is_motion` [128] that change in most steps have a higher limit.
    """
    change_rate = (ram[1:] != ram[:-1]).mean(0)
    limits = BYTE_LIMIT_RANGE[0] / np.maximum(change_rate, 1e-9)
    is_limited = is_motion & (change_rate > MIN_MOTION_RATE)
    limits = np.where(is_limited, np.maximum(limits, MOTION_LIMIT), limits)
    return np.clip(limits, *BYTE_LIMIT_RANGE).astype(np.int64)


def ram_distances(ram: np.ndarray, other_ram: np.ndarray, byte_limits: np.ndarray) -> np.ndarray:
    """The sum of the differences of all bytes modulo 256, each up to its limit; of [..., 128]."""
    difference = np.abs(signed_difference(ram.astype(np.int16), other_ram))
    return np.minimum(difference, byte_limits).sum(-1)


def signed_difference(values: np.ndarray, other_values: np.ndarray) -> np.ndarray:
    """The difference of bytes modulo 256, -128 ... 127; one of the arguments has a signed type."""
    return (values - other_values + 128) % 256 - 128


def find_motion_bytes(
    human_log: InputLog, env: str, action_repeat: int, ram: np.ndarray
) -> np.ndarray:
    """The bytes of positions, velocities and angles, [128] bool.

    Another action at one step of the human's game changes them, and the change stays when the
    human's actions follow. From step to step the difference changes little. A difference between
    random numbers jumps. `ram` is that of the human's game after each frame, [F + 1, 128] int16.
    """
    probes = list(_iter_probes(human_log, env, action_repeat, ram))
    if not probes:
        return np.zeros(RAM_BYTES, bool)
    differences = np.stack(probes)[:, SETTLED_STEPS - 1 :]  # [n, T, 128]
    jumps = np.abs(signed_difference(differences[:, 1:], differences[:, :-1]))
    is_active = (differences[:, 1:] != 0) | (differences[:, :-1] != 0)
    mean_jump = (jumps * is_active).sum((0, 1)) / np.maximum(is_active.sum((0, 1)), 1)
    share = is_active.any(1).mean(0)
    return (share > MIN_PROBE_SHARE) & (mean_jump < MAX_MOTION_JUMP)


def find_ram_repairs(human_log: InputLog, env: str, action_repeat: int) -> list[RamRepair]:
    """What the RAM writes of a recording change for longer than a few frames.

    An importer writes RAM where the recording is of another revision of the ROM. Other games do
    not have these writes, so they have to differ from the human's in these bytes.
    """
    emulator = make_emulator(human_log, env, action_repeat)
    actions, writes = human_log.frame_actions, human_log.ram_writes
    repairs = []
    for frame in np.unique(writes[:, 0]).tolist():
        _play_frames(emulator, actions, writes, frame)
        state, ram = emulator.clone_state(), []
        for kept in (writes, writes[:0]):
            _play_frames(emulator, actions, kept, frame + REPAIR_FRAMES)
            ram.append(emulator.ram())
            emulator.restore_state(state)
        repairs.append(RamRepair(frame, ram[0] != ram[1]))
    return repairs


def _iter_probes(
    human_log: InputLog, env: str, action_repeat: int, ram: np.ndarray
) -> Iterator[np.ndarray]:
    """Differences [PROBE_STEPS, 128] from the human's game after another action at some step.

    Probes in which the game ends are left out.
    """
    actions, writes = human_log.frame_actions, human_log.ram_writes
    length = PROBE_STEPS * action_repeat
    first, last = int(np.argmax(actions != 0)), len(ram) - 1 - length  # frames
    if last < first:
        return
    others = find_common_actions(actions)
    emulator = make_emulator(human_log, env, action_repeat)
    for index, frame in enumerate(np.unique(np.linspace(first, last, PROBES, dtype=np.int64))):
        _play_frames(emulator, actions, writes, int(frame))
        other = others[index % len(others)]
        if (actions[frame : frame + action_repeat] == other).all():
            continue
        state = emulator.clone_state()
        changed = actions.copy()
        changed[frame : frame + action_repeat] = other
        rows = []
        for step_end in range(int(frame) + action_repeat, int(frame) + length + 1, action_repeat):
            _play_frames(emulator, changed, writes, step_end)
            rows.append(signed_difference(ram[step_end], emulator.ram()))
        is_over = emulator.is_over
        emulator.restore_state(state)
        if not is_over:
            yield np.stack(rows)


def _play_frames(emulator: Emulator, actions: np.ndarray, ram_writes: np.ndarray, end: int) -> None:
    """Play the actions of a game from the emulator's frame to another one, with its RAM writes."""
    begin = emulator.frame_number
    is_due = (ram_writes[:, 0] >= begin) & (ram_writes[:, 0] < end)
    writes = ram_writes[is_due] - [begin, 0, 0]
    for _ in emulator.play_frames(actions[begin:end].tolist(), writes.tolist()):
        pass
