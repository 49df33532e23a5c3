"""Recordings of openai/atari-demo: pickles, read without letting them call anything."""

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
from lookfurther.demos.importers import ImportedDemos
from lookfurther.demos.importers.audit import RecordedOutcome, audit_input_logs
from lookfurther.demos.importers.pickles import load_plain_pickle
from lookfurther.demos.playback import play_log, with_best_phase
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator, game_of
from lookfurther.errors import ConfigError, DemonstrationError

MAX_FILE_BYTES = 2**24  # bytes of a file: five times those of any known one
MAX_CHECKPOINTS = 5_000  # ten times those of any known one
MAX_STATE_BYTES = 2**16  # bytes of a checkpoint; known ones have 1,009 at most
OTHER_ROM_SHARE = 0.9  # share of the checkpoints at which a byte differs that another ROM changes


class AtariDemoRecording(NamedTuple):
    """A file's contents, checked."""

    actions: np.ndarray  # [F] int64: indices into the game's own actions
    rewards: np.ndarray | None  # [F] or [F + 1] float64, per frame
    ram_by_frame: dict[int, np.ndarray]  # RAM [128] uint8 after so many frames


def read_atari_demo(path: Path, env: str, env_config: EnvConfig, force: bool) -> ImportedDemos:
    """The one episode of a `.demo` file, with RAM repaired at no checkpoint, the first or all.

    The old emulator filled the RAM at random when switched on, today's does not: a repair at the
    first checkpoint must make all later ones equal. Gravitar was recorded from another revision of
    its ROM, which shows in bytes that differ again and again: only then is all of it repaired.
    """
    env = env or _env_from_filename(path)
    recording = load_recording(path)
    emulator = Emulator(env, 1)
    own = np.array(emulator.minimal_actions, np.uint8)
    if (recording.actions >= len(own)).any():
        raise DemonstrationError(f"{path}: {env} has only {len(own)} actions of its own")
    tape = with_best_phase(InputLog(own[recording.actions]), env_config.action_repeat)
    tapes = (
        replace(tape, ram_writes=w)
        for w in _iter_ram_repairs(tape.frame_actions, recording, emulator)
    )
    rewards = recording.rewards
    score = None if rewards is None else float(rewards.sum())
    claim = RecordedOutcome(score, rewards, recording.ram_by_frame)
    episode = audit_input_logs(str(path), tapes, env, env_config, claim, force)
    return ImportedDemos([episode], get_spec(env, env_config), env_config)


def load_recording(path: Path) -> AtariDemoRecording:
    """What a file holds, or a DemonstrationError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        return _parse_recording(load_plain_pickle(path.read_bytes()))
    except Exception as error:  # whatever a cut, altered or hostile pickle leads to
        reason = " ".join(f"{error}"[:200].split())
        raise DemonstrationError(f"{path} is no readable recording: {reason}") from error


def _env_from_filename(path: Path) -> str:
    """MontezumaRevenge1.demo is of ALE/MontezumaRevenge-v5."""
    env = f"ALE/{re.sub(r'[^A-Za-z].*', '', path.stem)}-v5"
    try:
        game_of(env)
    except ConfigError:
        raise DemonstrationError(f"{path} does not say its game: name it with --env") from None
    return env


def _iter_ram_repairs(
    frames: np.ndarray, recording: AtariDemoRecording, emulator: Emulator
) -> Iterator[np.ndarray]:
    """The RAM writes to try, in the order of how little they change."""
    rams = recording.ram_by_frame
    yield _compute_ram_writes(frames, {}, emulator)
    yield _compute_ram_writes(frames, dict([*rams.items()][:1]), emulator)
    # Without rewards the checkpoints are all there is to compare: they cannot be written as well.
    if recording.rewards is not None:
        everywhere = _compute_ram_writes(frames, rams, emulator)
        if _is_other_rom(everywhere, list(rams)):
            yield everywhere


def _is_other_rom(writes: np.ndarray, checkpoints: list[int]) -> bool:
    """Whether some byte differs at nearly every checkpoint, though each repaired it.

    An action that is not the recorded one changes bytes too, but a repair puts an end to that.
    """
    if len(checkpoints) < 3:
        return False
    _, times = np.unique(writes[writes[:, 0] > checkpoints[0], 1], return_counts=True)
    return times.max(initial=0) >= OTHER_ROM_SHARE * (len(checkpoints) - 1)


def _compute_ram_writes(
    frames: np.ndarray, ram_by_frame: dict[int, np.ndarray], emulator: Emulator
) -> np.ndarray:
    """The bytes that must be written for the RAM to be as recorded at these frames."""
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
    """Check the plain data of a file."""
    actions = np.array([_check_integer(a) for a in data["actions"]], np.int64)
    if not len(actions) or (actions < 0).any():
        raise ValueError("it holds no actions, or one below 0")
    rewards = None
    if "rewards" in data:
        rewards = np.array([_check_finite(r) for r in data["rewards"]], np.float64)
        if len(rewards) - len(actions) not in (0, 1):
            raise ValueError(f"it lists {len(rewards)} rewards for {len(actions)} actions")
    places = [_check_integer(n) for n in data["checkpoint_action_nr"]]
    if len(places) > MAX_CHECKPOINTS:
        raise ValueError(f"it holds more than {MAX_CHECKPOINTS} checkpoints")
    rams = [_parse_ram(checkpoint.data) for checkpoint in data["checkpoints"][: len(places) + 1]]
    if len(places) != len(rams) or places != sorted({*places} & {*range(1, len(actions) + 1)}):
        raise ValueError("its checkpoints are not at ascending frames of its own")
    return AtariDemoRecording(actions, rewards, dict(zip(places, rams, strict=True)))


def _check_integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise ValueError(f"{_short_repr(value)} is not a whole number")
    return value


def _check_finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{_short_repr(value)} is not a finite number")
    return float(value)


def _short_repr(value: Any) -> str:
    """A value for a message; lists and tuples may hold one another so often that none is shown."""
    if isinstance(value, str):
        return repr(value[:40])
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _parse_ram(state: bytes) -> np.ndarray:
    """The RAM in an emulator state of old: after the chip's name, how many bytes, one int each."""
    if len(state) > MAX_STATE_BYTES:
        raise ValueError(f"an emulator state of {len(state)} bytes")
    start = state.index(b"M6532") + 5
    values = np.frombuffer(state, "<i4", 1 + RAM_BYTES, start)
    if values[0] != RAM_BYTES or ((values[1:] < 0) | (values[1:] > 255)).any():
        raise ValueError("a checkpoint holds no RAM")
    return values[1:].astype(np.uint8)
