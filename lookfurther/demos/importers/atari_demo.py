"""Recordings of openai/atari-demo: pickles, read without letting them call anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import RAM, Tape
from lookfurther.demos.importers import Imported
from lookfurther.demos.importers.audit import Claim, audited
from lookfurther.demos.importers.pickles import unpickled
from lookfurther.demos.playback import play, with_best_phase
from lookfurther.envs import describe
from lookfurther.envs.emulator import Emulator, game_of
from lookfurther.errors import ConfigError, DemonstrationError

LARGEST = 2**24  # bytes of a file: five times those of any known one
MOST_CHECKPOINTS = 5_000  # ten times those of any known one
LARGEST_STATE = 2**16  # bytes of a checkpoint; known ones have 1,009 at most
SYSTEMATIC = 0.9  # share of the checkpoints at which a byte differs that another ROM changes


class Recording(NamedTuple):
    """A file's contents, checked."""

    actions: np.ndarray  # [F] int64: indices into the game's own actions
    rewards: np.ndarray | None  # [F] or [F + 1] float64, per frame
    rams: dict[int, np.ndarray]  # RAM [128] uint8 after so many frames


def read(path: Path, env: str, environment: Environment, force: bool) -> Imported:
    """The one episode of a `.demo` file, with RAM repaired at no checkpoint, the first or all.

    The old emulator filled the RAM at random when switched on, today's does not: a repair at the
    first checkpoint must make all later ones equal. Gravitar was recorded from another revision of
    its ROM, which shows in bytes that differ again and again: only then is all of it repaired.
    """
    env = env or _env_of(path)
    recording = recorded(path)
    emulator = Emulator(env, 1)
    own = np.array(emulator.actions, np.uint8)
    if (recording.actions >= len(own)).any():
        raise DemonstrationError(f"{path}: {env} has only {len(own)} actions of its own")
    tape = with_best_phase(Tape(own[recording.actions]), environment.repeat)
    tapes = (replace(tape, writes=w) for w in _repairs(tape.frames, recording, emulator))
    rewards = recording.rewards
    score = None if rewards is None else float(rewards.sum())
    claim = Claim(score, rewards, recording.rams)
    episode = audited(str(path), tapes, env, environment, claim, force)
    return Imported([episode], describe(env, environment), environment)


def recorded(path: Path) -> Recording:
    """What a file holds, or a DemonstrationError."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        return _recording(unpickled(path.read_bytes()))
    except Exception as error:  # whatever a cut, altered or hostile pickle leads to
        reason = " ".join(f"{error}"[:200].split())
        raise DemonstrationError(f"{path} is no readable recording: {reason}") from error


def _env_of(path: Path) -> str:
    """MontezumaRevenge1.demo is of ALE/MontezumaRevenge-v5."""
    env = f"ALE/{re.sub(r'[^A-Za-z].*', '', path.stem)}-v5"
    try:
        game_of(env)
    except ConfigError:
        raise DemonstrationError(f"{path} does not say its game: name it with --env") from None
    return env


def _repairs(frames: np.ndarray, recording: Recording, emulator: Emulator) -> Iterator[np.ndarray]:
    """The RAM writes to try, in the order of how little they change."""
    rams = recording.rams
    yield _writes(frames, {}, emulator)
    yield _writes(frames, dict([*rams.items()][:1]), emulator)
    # Without rewards the checkpoints are all there is to compare: they cannot be written as well.
    if recording.rewards is not None:
        everywhere = _writes(frames, rams, emulator)
        if _another_rom(everywhere, list(rams)):
            yield everywhere


def _another_rom(writes: np.ndarray, checkpoints: list[int]) -> bool:
    """Whether some byte differs at nearly every checkpoint, though each repaired it.

    An action that is not the recorded one changes bytes too, but a repair puts an end to that.
    """
    if len(checkpoints) < 3:
        return False
    _, times = np.unique(writes[writes[:, 0] > checkpoints[0], 1], return_counts=True)
    return times.max(initial=0) >= SYSTEMATIC * (len(checkpoints) - 1)


def _writes(frames: np.ndarray, rams: dict[int, np.ndarray], emulator: Emulator) -> np.ndarray:
    """The bytes that must be written for the RAM to be as recorded at these frames."""
    emulator.reset()
    writes = []
    for _ in play(Tape(frames[: max(rams, default=0)]), emulator):
        recorded = rams.get(emulator.frames)
        if recorded is not None and emulator.frames < len(frames):
            for address in np.flatnonzero(emulator.ram() != recorded).tolist():
                writes.append((emulator.frames, address, int(recorded[address])))
                emulator.write(address, int(recorded[address]))
    return np.array(writes, np.int32).reshape(-1, 3)


def _recording(data: Any) -> Recording:
    """Check the plain data of a file."""
    actions = np.array([_whole(a) for a in data["actions"]], np.int64)
    if not len(actions) or (actions < 0).any():
        raise ValueError("it holds no actions, or one below 0")
    rewards = None
    if "rewards" in data:
        rewards = np.array([_finite(r) for r in data["rewards"]], np.float64)
        if len(rewards) - len(actions) not in (0, 1):
            raise ValueError(f"it lists {len(rewards)} rewards for {len(actions)} actions")
    places = [_whole(n) for n in data["checkpoint_action_nr"]]
    if len(places) > MOST_CHECKPOINTS:
        raise ValueError(f"it holds more than {MOST_CHECKPOINTS} checkpoints")
    rams = [_ram(checkpoint.data) for checkpoint in data["checkpoints"][: len(places) + 1]]
    if len(places) != len(rams) or places != sorted({*places} & {*range(1, len(actions) + 1)}):
        raise ValueError("its checkpoints are not at ascending frames of its own")
    return Recording(actions, rewards, dict(zip(places, rams, strict=True)))


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**31:
        raise ValueError(f"{_word(value)} is not a whole number")
    return value


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{_word(value)} is not a finite number")
    return float(value)


def _word(value: Any) -> str:
    """A value for a message; lists and tuples may hold one another so often that none is shown."""
    if isinstance(value, str):
        return repr(value[:40])
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def _ram(state: bytes) -> np.ndarray:
    """The RAM in an emulator state of old: after the chip's name, how many bytes, one int each."""
    if len(state) > LARGEST_STATE:
        raise ValueError(f"an emulator state of {len(state)} bytes")
    start = state.index(b"M6532") + 5
    values = np.frombuffer(state, "<i4", 1 + RAM, start)
    if values[0] != RAM or ((values[1:] < 0) | (values[1:] > 255)).any():
        raise ValueError("a checkpoint holds no RAM")
    return values[1:].astype(np.uint8)
