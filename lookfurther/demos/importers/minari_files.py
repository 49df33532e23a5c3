"""The files of Minari datasets made by other tools; nothing they name is imported or built."""

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

MAX_IMPORTED_STEPS = 1_000_000  # of an episode: its arrays are allocated before it is read
MAX_FRAMES_PER_STEP = 100
PLANE_BYTES = 84 * 84  # of one Atari step in memory


class MinariMetadata(NamedTuple):
    """Metadata of a dataset about its environment and its files."""

    env: str  # environment id, or ""
    observation_shape: tuple[int, ...]
    is_uint8: bool
    is_jpeg: bool  # observations are stored as lossy JPEG
    num_actions: int
    first_action: int
    frames_per_step: int  # emulator frames, Atari only
    frames_per_noop: int  # emulator frames of a no-op at the start of an episode
    sticky_prob: float
    mode: int | None  # of an Atari game; None: the default
    difficulty: int | None
    data_format: str  # "hdf5", "arrow" or "parquet"
    num_episodes: int


class RawEpisode(NamedTuple):
    """An episode as stored."""

    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T] float64
    terminal: bool
    seed: int | None
    read_observations: Callable[[int, int], np.ndarray]  # (start, stop) of the T + 1


def read_minari_metadata(folder: Path) -> MinariMetadata:
    """Read metadata.json."""
    metadata = read_json(folder / "metadata.json")
    env_spec: dict[str, Any] = parse_json(metadata.get("env_spec", '{"id": ""}'))
    kwargs = env_spec.get("kwargs") or {}
    frame_skips = [
        wrapper.get("kwargs", {}).get("frame_skip", 4)
        for wrapper in env_spec.get("additional_wrappers") or ()
        if wrapper["name"] == "AtariPreprocessing"
    ]
    box, discrete = (parse_json(metadata[f"{name}_space"]) for name in ("observation", "action"))
    if (box["type"], discrete["type"]) != ("Box", "Discrete"):
        raise ValueError(f"it has {box['type']} observations and {discrete['type']} actions")
    shape = _parse_shape(box["shape"])
    is_image = box["dtype"] == "uint8" and len(shape) in (2, 3) and min(shape[:2]) >= 32
    frameskip = _positive_int("frameskip", kwargs.get("frameskip", 4), MAX_FRAMES_PER_STEP)
    frame_skip = _positive_int("frame_skip", [*frame_skips, 1][0], MAX_FRAMES_PER_STEP)
    frames_per_step = frameskip * frame_skip
    return MinariMetadata(
        env=str(env_spec["id"]),
        observation_shape=shape,
        is_uint8=box["dtype"] == "uint8",
        is_jpeg=is_image and bool(metadata.get("jpeg_encoding", True)),
        num_actions=_positive_int("number of actions", discrete["n"], MAX_ACTIONS),
        first_action=int(discrete.get("start", 0)),
        frames_per_step=_positive_int("frames per step", frames_per_step, MAX_FRAMES_PER_STEP),
        frames_per_noop=frameskip,
        sticky_prob=float(kwargs.get("repeat_action_probability", 0.25)),
        mode=_optional_int(kwargs, "mode"),
        difficulty=_optional_int(kwargs, "difficulty"),
        data_format=str(metadata.get("data_format", "hdf5")),
        num_episodes=int(metadata["total_episodes"]),
    )


def _optional_int(kwargs: dict[str, Any], name: str) -> int | None:
    value = kwargs.get(name)
    if value is not None and type(value) is not int:
        raise ValueError(f"its {name} cannot be {value!r:.40}")
    return value


def _positive_int(name: str, value: Any, maximum: int) -> int:
    if not isinstance(value, int | float | str) or not 1 <= int(value) <= maximum:
        raise ValueError(f"its {name} must be 1 ... {maximum}, not {str(value)[:40]}")
    return int(value)


def _parse_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > 8:
        raise ValueError("its observations have no shape of at most 8 axes")
    return tuple(_positive_int("shape", size, 2**31) for size in shape)


def iter_raw_episodes(folder: Path, metadata: MinariMetadata) -> Iterator[RawEpisode]:
    """Yield the episodes of a dataset; raise if they claim more bytes than the files can hold."""
    if metadata.data_format not in ("hdf5", "arrow", "parquet"):
        raise ValueError(f"its format {metadata.data_format!r:.40} is unknown")
    if metadata.data_format != "hdf5" and importlib.util.find_spec("pyarrow") is None:
        raise DemonstrationError(f"{folder} needs pyarrow: install it")
    stored_bytes = claimed_bytes = file_bytes = 0
    for i in range(metadata.num_episodes):
        stored = _StoredEpisode(folder, metadata, i)
        file_bytes = stored.size if metadata.data_format == "hdf5" else file_bytes + stored.size
        raw, episode_bytes = stored.read_episode()
        stored_bytes += episode_bytes
        claimed_bytes += len(raw.actions) * (16 + _max_bytes_per_step(metadata))
        limit = FREE_BYTES + MAX_EXPANSION * file_bytes
        if stored_bytes > file_bytes or claimed_bytes > limit:
            raise ValueError(f"episode {i} claims more bytes than its files can hold")
        yield raw


def _max_bytes_per_step(metadata: MinariMetadata) -> int:
    """Bound the memory of a step: its observation as stored, or the planes of Atari steps."""
    planes = PLANE_BYTES * -(-metadata.frames_per_step // 4) if metadata.is_uint8 else 0
    item_bytes = 1 if metadata.is_uint8 else 8
    values = 0 if metadata.is_jpeg else math.prod(metadata.observation_shape) * item_bytes
    return max(planes, values)


class _StoredEpisode:
    """An episode on disk, read by the sandbox process."""

    def __init__(self, folder: Path, metadata: MinariMetadata, index: int) -> None:
        self._metadata = metadata
        if metadata.data_format == "hdf5":
            self._path = folder / episode_hdf5.DATA_FILE
            self.size = file_size(self._path)
            self._location = [str(self._path.absolute()), f"episode_{index}"]
        else:
            self._path = folder / str(index)
            self.size = sum(file_size(path) for path in self._path.iterdir())
            self._location = [str(self._path.absolute()), metadata.data_format]

    def read_episode(self) -> tuple[RawEpisode, int]:
        """Return the episode and its size on disk in bytes."""
        metadata = self._metadata
        jpeg = [metadata.is_jpeg] if metadata.data_format == "hdf5" else []
        header, arrays = self._call_sandbox(
            "read_episode", (*jpeg, MAX_IMPORTED_STEPS), 24 * (MAX_IMPORTED_STEPS + 1)
        )
        actions, rewards, terminations = arrays
        if metadata.data_format == "hdf5":
            seed, stored_bytes = header["seed"], header["stored"]
        else:
            seed, stored_bytes = read_json(self._path / "metadata.json").get("seed"), self.size
        terminal = bool(terminations[-1:].any())
        raw = RawEpisode(actions, rewards, terminal, seed, self.read_observations)
        return _validate_episode(raw, header["rows"], metadata), stored_bytes

    def read_observations(self, start: int, stop: int) -> np.ndarray:
        """Read observations start ... stop - 1; fewer if the episode ends before."""
        shape, is_jpeg = self._metadata.observation_shape, self._metadata.is_jpeg
        size = math.prod(shape)
        rows, parts = max(1, RESPONSE_BYTES // (8 * size)), []
        for first in range(start, stop, rows):
            last = min(first + rows, stop)
            arguments = (is_jpeg, size, first, last)
            (part,) = self._call_sandbox(
                "read_observations", arguments, 8 * size * (last - first)
            ).arrays
            parts.append(part.reshape(-1, *shape))
            if len(parts[-1]) < last - first:
                break
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _call_sandbox(self, name: str, arguments: tuple[Any, ...], max_bytes: int) -> SandboxResult:
        module = "hdf5" if self._metadata.data_format == "hdf5" else "arrow"
        arguments = (*self._location, *arguments)
        task = SandboxTask(f"{module}:{name}", arguments, self._path.name, self.size, max_bytes)
        return SANDBOX.call(task)


def _validate_episode(
    raw: RawEpisode, num_observations: int, metadata: MinariMetadata
) -> RawEpisode:
    """Check that actions, rewards and observations fit together, and convert their types."""
    steps = len(raw.actions)
    if not steps or {raw.actions.shape, raw.rewards.shape} != {(steps,)}:
        raise ValueError(f"actions {raw.actions.shape}, rewards {raw.rewards.shape}")
    if num_observations != steps + 1:
        raise ValueError(f"{num_observations} observations for {steps} actions")
    actions = raw.actions.astype(np.int64) - metadata.first_action
    if ((actions < 0) | (actions >= metadata.num_actions)).any():
        raise ValueError("an action outside its action space")
    rewards = raw.rewards.astype(np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError("a reward that is not finite")
    seed = None if raw.seed is None else int(raw.seed)
    return raw._replace(actions=actions, rewards=rewards, seed=seed)
