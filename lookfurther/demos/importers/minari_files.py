"""Minari datasets made by others, read from their files: what they name is never built."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos import episode_hdf5
from lookfurther.demos.bounded_json import parse_json, read_json
from lookfurther.demos.sandbox import (
    FREE_BYTES,
    MAX_EXPANSION,
    RESPONSE_BYTES,
    SANDBOX,
    SandboxResult,
    SandboxTask,
    file_size,
)
from lookfurther.errors import DemonstrationError
from lookfurther.types import MAX_ACTIONS

MAX_EPISODE_STEPS = 1_000_000  # of an episode
MAX_FRAMES_PER_STEP = 100  # of a step
PLANE_BYTES = 84 * 84  # bytes that a step of an Atari game becomes


class MinariMetadata(NamedTuple):
    """What a dataset says of the environment it was made in."""

    env: str  # its id, or ""
    observation_shape: tuple[int, ...]  # of an observation
    is_uint8: bool  # whether an observation's numbers are of one byte
    is_jpeg: bool  # whether observations lost something on the way to the disk
    num_actions: int
    first_action: int  # the first action
    frames_per_step: int  # emulator frames a step, of an Atari game
    frames_per_noop: int  # emulator frames of a no-op at the start
    sticky_prob: float
    mode: int | None  # of an Atari game, where it was chosen
    difficulty: int | None
    data_format: str  # "hdf5", "arrow" or "parquet"
    num_episodes: int


class RawEpisode(NamedTuple):
    """An episode as it was stored."""

    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T] float64
    terminal: bool
    seed: int | None
    read_observations: Callable[[int, int], np.ndarray]  # those of low ... high - 1 of T + 1


def read_minari_metadata(folder: Path) -> MinariMetadata:
    """The facts of a dataset's metadata."""
    metadata = read_json(folder / "metadata.json")
    named: dict[str, Any] = parse_json(metadata.get("env_spec", '{"id": ""}'))
    options = named.get("kwargs") or {}
    steps = [
        wrapper.get("kwargs", {}).get("frame_skip", 4)
        for wrapper in named.get("additional_wrappers") or ()
        if wrapper["name"] == "AtariPreprocessing"
    ]
    box, discrete = (parse_json(metadata[f"{w}_space"]) for w in ("observation", "action"))
    if (box["type"], discrete["type"]) != ("Box", "Discrete"):
        raise ValueError(f"it has {box['type']} observations and {discrete['type']} actions")
    shape = _parse_shape(box["shape"])
    picture = box["dtype"] == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= 32
    noop = _positive_int("frameskip", options.get("frameskip", 4), MAX_FRAMES_PER_STEP)
    frames = noop * _positive_int("frame_skip", steps[0] if steps else 1, MAX_FRAMES_PER_STEP)
    return MinariMetadata(
        env=str(named["id"]),
        observation_shape=shape,
        is_uint8=box["dtype"] == "uint8",
        is_jpeg=picture and bool(metadata.get("jpeg_encoding", True)),
        num_actions=_positive_int("number of actions", discrete["n"], MAX_ACTIONS),
        first_action=int(discrete.get("start", 0)),
        frames_per_step=_positive_int("number of frames in a step", frames, MAX_FRAMES_PER_STEP),
        frames_per_noop=noop,
        sticky_prob=float(options.get("repeat_action_probability", 0.25)),
        mode=_optional_int(options, "mode"),
        difficulty=_optional_int(options, "difficulty"),
        data_format=str(metadata.get("data_format", "hdf5")),
        num_episodes=int(metadata["total_episodes"]),
    )


def _optional_int(options: dict[str, Any], name: str) -> int | None:
    """The mode or difficulty that an environment was made with, if it was."""
    value = options.get(name)
    if value is not None and type(value) is not int:
        raise ValueError(f"its {name} cannot be {value!r:.40}")
    return value


def _positive_int(name: str, value: Any, maximum: int) -> int:
    """A number of a file that says how much there is of something."""
    if not isinstance(value, int | float | str) or not 1 <= int(value) <= maximum:
        raise ValueError(f"its {name} must be 1 ... {maximum}, not {str(value)[:40]}")
    return int(value)


def _parse_shape(lengths: Any) -> tuple[int, ...]:
    """The shape of an observation."""
    if not isinstance(lengths, list) or len(lengths) > 8:
        raise ValueError("its observations have no shape of at most 8 axes")
    return tuple(_positive_int("shape", n, 2**31) for n in lengths)


def iter_raw_episodes(folder: Path, metadata: MinariMetadata) -> Iterator[RawEpisode]:
    """The episodes of a dataset, no more of them than its files can hold."""
    if metadata.data_format not in ("hdf5", "arrow", "parquet"):
        raise ValueError(f"its format {metadata.data_format!r:.40} is unknown")
    if metadata.data_format != "hdf5" and importlib.util.find_spec("pyarrow") is None:
        raise DemonstrationError(f"{folder} needs pyarrow: install it")
    taken = claimed = size = 0
    for i in range(metadata.num_episodes):
        stored = _StoredEpisode(folder, metadata, i)
        size = stored.size if metadata.data_format == "hdf5" else size + stored.size
        raw, bytes_taken = stored.read_episode()
        taken += bytes_taken
        claimed += len(raw.actions) * (16 + _max_bytes_per_step(metadata))
        if taken > size or claimed > FREE_BYTES + MAX_EXPANSION * size:
            raise ValueError(f"episode {i} claims more bytes than its files can hold")
        yield raw


def _max_bytes_per_step(metadata: MinariMetadata) -> int:
    """The bytes that an observation may become in memory; pictures may be of an Atari game."""
    planes = PLANE_BYTES * -(-metadata.frames_per_step // 4) if metadata.is_uint8 else 0
    numbers = (
        0
        if metadata.is_jpeg
        else math.prod(metadata.observation_shape) * (1 if metadata.is_uint8 else 8)
    )
    return max(planes, numbers)


class _StoredEpisode:
    """An episode in its files, which the helper process reads."""

    def __init__(self, folder: Path, facts: MinariMetadata, number: int) -> None:
        self._metadata = facts
        self._path = folder / (
            episode_hdf5.DATA_FILE if facts.data_format == "hdf5" else str(number)
        )
        if facts.data_format == "hdf5":
            self.size = file_size(self._path)
            self._location = [str(self._path.absolute()), f"episode_{number}"]
        else:
            self.size = sum(file_size(path) for path in self._path.iterdir())
            self._location = [str(self._path.absolute()), facts.data_format]

    def read_episode(self) -> tuple[RawEpisode, int]:
        """The episode, and the bytes it takes in its files."""
        facts = self._metadata
        jpeg = [facts.is_jpeg] if facts.data_format == "hdf5" else []
        found, arrays = self._call_sandbox(
            "episode", (*jpeg, MAX_EPISODE_STEPS), 24 * (MAX_EPISODE_STEPS + 1)
        )
        actions, rewards, ends = arrays
        if facts.data_format == "hdf5":
            seed, stored = found["seed"], found["stored"]
        else:
            seed, stored = read_json(self._path / "metadata.json").get("seed"), self.size
        raw = RawEpisode(actions, rewards, bool(ends[-1:].any()), seed, self.read_observations)
        return _validate_episode(raw, found["rows"], facts), stored

    def read_observations(self, low: int, high: int) -> np.ndarray:
        """Those of low ... high - 1, or as many as there are."""
        facts = self._metadata
        size = math.prod(facts.observation_shape)
        rows, found = max(1, RESPONSE_BYTES // (8 * size)), []
        for first in range(low, high, rows):
            last = min(first + rows, high)
            most = 8 * size * (last - first)
            (part,) = self._call_sandbox(
                "observations", (facts.is_jpeg, size, first, last), most
            ).arrays
            found.append(part.reshape(-1, *facts.observation_shape))
            if len(found[-1]) < last - first:
                break
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _call_sandbox(self, name: str, arguments: tuple[Any, ...], max_bytes: int) -> SandboxResult:
        module = "hdf5" if self._metadata.data_format == "hdf5" else "arrow"
        given = (*self._location, *arguments)
        task = SandboxTask(f"{module}:{name}", given, self._path.name, self.size, max_bytes)
        return SANDBOX.call(task)


def _validate_episode(
    raw: RawEpisode, num_observations: int, metadata: MinariMetadata
) -> RawEpisode:
    """An episode whose parts fit together."""
    steps = len(raw.actions)
    if not steps or {raw.actions.shape, raw.rewards.shape} != {(steps,)}:
        raise ValueError(f"actions {raw.actions.shape}, rewards {raw.rewards.shape}")
    if num_observations != steps + 1:
        raise ValueError(f"{num_observations} observations for {steps} actions")
    actions = raw.actions.astype(np.int64) - metadata.first_action
    if ((actions < 0) | (actions >= metadata.num_actions)).any():
        raise ValueError("an action that its own space does not hold")
    rewards = raw.rewards.astype(np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError("a reward that is not finite")
    seed = None if raw.seed is None else int(raw.seed)
    return raw._replace(actions=actions, rewards=rewards, seed=seed)
