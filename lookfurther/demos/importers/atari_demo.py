"""Importer of openai/atari-demo recordings: pickles, parsed without calling anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import RAM_BYTES, InputLog
from lookfurther.demos.importers.audit import RecordedOutcome, audit_input_logs
from lookfurther.demos.importers.imported import ImportedDemos
from lookfurther.demos.importers.pickles import load_plain_pickle
from lookfurther.demos.playback import play_log, with_best_phase
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import find_game
from lookfurther.errors import ConfigError, DemonstrationError

MAX_FILE_BYTES = 2**24  # five times the largest known file
MAX_CHECKPOINTS = 5_000  # ten times the most in a known file
MAX_STATE_BYTES = 2**16  # of a checkpoint; known ones have at most 1,009
OTHER_ROM_SHARE = 0.9  # a byte that differs at this share of checkpoints means another ROM


class AtariDemoRecording(NamedTuple):
    """The validated contents of a file."""

    actions: np.ndarray  # [F] int64: indices into the game's minimal action set
    rewards: np.ndarray | None  # [F] or [F + 1] float64, per frame
    ram_by_frame: dict[int, np.ndarray]  # frames played -> RAM [128] uint8


def read_atari_demo(path: Path, env: str, env_config: EnvConfig, force: bool) -> ImportedDemos:
    """Read the one episode of a `.demo` file, with RAM repaired at no checkpoint, the first or all.

    The old emulator started with random RAM, the current one does not: after a repair at the first
    checkpoint, all later checkpoints must match. Gravitar was recorded with another revision of its
    ROM, so some bytes differ at nearly every checkpoint. Only then is RAM repaired at all of them.
    """
    env = env or _env_from_filename(path)
    recording = load_recording(path)
    emulator = Emulator(env, 1)
    minimal_actions = np.array(emulator.minimal_actions, np.uint8)
    if (recording.actions >= len(minimal_actions)).any():
        raise DemonstrationError(
            f"{path}: the minimal action set of {env} has only {len(minimal_actions)} actions"
        )
    log = with_best_phase(InputLog(minimal_actions[recording.actions]), env_config.action_repeat)
    logs = (
        replace(log, ram_writes=writes)
        for writes in _iter_ram_repairs(log.frame_actions, recording, emulator)
    )
    rewards = recording.rewards
    score = None if rewards is None else float(rewards.sum())
    outcome = RecordedOutcome(score, rewards, recording.ram_by_frame)
    episode = audit_input_logs(str(path), logs, env, env_config, outcome, force)
    return ImportedDemos([episode], get_spec(env, env_config), env_config)


def load_recording(path: Path) -> AtariDemoRecording:
    """Parse a file; raise a DemonstrationError if it is not a recording."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        return _parse_recording(load_plain_pickle(path.read_bytes()))
    except Exception as error:  # a truncated, altered or hostile pickle may raise anything
        reason = " ".join(f"{error}"[:200].split())
        raise DemonstrationError(f"{path} is not a readable recording: {reason}") from error


def _env_from_filename(path: Path) -> str:
    """Return ALE/MontezumaRevenge-v5 for MontezumaRevenge1.demo."""
    env = f"ALE/{re.sub(r'[^A-Za-z].*', '', path.stem)}-v5"
    try:
        find_game(env)
    except ConfigError:
        raise DemonstrationError(f"{path} does not name its game: give --env") from None
    return env


def _iter_ram_repairs(
    frames: np.ndarray, recording: AtariDemoRecording, emulator: Emulator
) -> Iterator[np.ndarray]:
    """Yield the RAM writes to try, smallest change first."""
    ram_by_frame = recording.ram_by_frame
    yield _compute_ram_writes(frames, {}, emulator)
    yield _compute_ram_writes(frames, dict([*ram_by_frame.items()][:1]), emulator)
    # Without rewards, only the checkpoints can be compared, so they must not be overwritten.
    if recording.rewards is not None:
        writes = _compute_ram_writes(frames, ram_by_frame, emulator)
        if _is_other_rom(writes, list(ram_by_frame)):
            yield writes


def _is_other_rom(writes: np.ndarray, checkpoints: list[int]) -> bool:
    """Whether some byte differs at nearly every checkpoint although each checkpoint repairs it.

    An altered action changes bytes too, but not again after a repair.
    """
    if len(checkpoints) < 3:
        return False
    _, counts = np.unique(writes[writes[:, 0] > checkpoints[0], 1], return_counts=True)
    return counts.max(initial=0) >= OTHER_ROM_SHARE * (len(checkpoints) - 1)


def _compute_ram_writes(
    frames: np.ndarray, ram_by_frame: dict[int, np.ndarray], emulator: Emulator
) -> np.ndarray:
    """Return rows (frame, address, value) that make the RAM equal to the recorded one."""
    emulator.reset()
    writes = []
    for _ in play_log(InputLog(frames[: max(ram_by_frame, default=0)]), emulator):
        recorded = ram_by_frame.get(emulator.frame_number)
        if recorded is not None and emulator.frame_number < len(frames):
            for address in np.flatnonzero(emulator.ram() != recorded).tolist():
                writes.append((emulator.frame_number, address, int(recorded[address])))
                emulator.write_ram(address, int(recorded[address]))
    return np.array(writes, np.int32).reshape(-1, 3)


def _parse_recording(data: Any) -> AtariDemoRecording:
    """Validate the unpickled data of a file."""
    actions = np.array([_check_integer(a) for a in data["actions"]], np.int64)
    if not len(actions) or (actions < 0).any():
        raise ValueError("it holds no actions, or one below 0")
    rewards = None
    if "rewards" in data:
        rewards = np.array([_check_finite(r) for r in data["rewards"]], np.float64)
        if len(rewards) - len(actions) not in (0, 1):
            raise ValueError(f"it lists {len(rewards)} rewards for {len(actions)} actions")
    frames = [_check_integer(n) for n in data["checkpoint_action_nr"]]
    if len(frames) > MAX_CHECKPOINTS:
        raise ValueError(f"it holds more than {MAX_CHECKPOINTS} checkpoints")
    rams = [_parse_ram(checkpoint.data) for checkpoint in data["checkpoints"][: len(frames) + 1]]
    if len(frames) != len(rams) or frames != sorted({*frames} & {*range(1, len(actions) + 1)}):
        raise ValueError("its checkpoints are not at ascending frames of the episode")
    return AtariDemoRecording(actions, rewards, dict(zip(frames, rams, strict=True)))


def _check_integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise ValueError(f"{_short_repr(value)} is not an integer")
    return value


def _check_finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{_short_repr(value)} is not a finite number")
    return float(value)


def _short_repr(value: Any) -> str:
    """Format a value for a message; containers by type, as their repr may be exponentially long."""
    if isinstance(value, str):
        return repr(value[:40])
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _parse_ram(state: bytes) -> np.ndarray:
    """Find the RAM in an old emulator state: the chip's name, a byte count, then one int a byte."""
    if len(state) > MAX_STATE_BYTES:
        raise ValueError(f"an emulator state of {len(state)} bytes")
    start = state.index(b"M6532") + 5
    values = np.frombuffer(state, "<i4", 1 + RAM_BYTES, start)
    if values[0] != RAM_BYTES or ((values[1:] < 0) | (values[1:] > 255)).any():
        raise ValueError("a checkpoint holds no RAM")
    return values[1:].astype(np.uint8)
