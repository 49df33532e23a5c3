"""Episodes as arrays in Minari's HDF5 file: written compressed, read in the sandbox process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.metadata import DemoSetDescription, EpisodeMetadata
from lookfurther.demos.playback import PAD_ACTION, frames_by_step
from lookfurther.demos.sandbox import (
    FREE_BYTES,
    MAX_EXPANSION,
    RESPONSE_BYTES,
    SANDBOX,
    SandboxTask,
    file_size,
)
from lookfurther.errors import DemonstrationError

DATA_FILE = "main_data.hdf5"
CHUNK_BYTES = 2**19  # deflated together: larger chunks gain little
DEFLATE_LEVEL = 2  # higher levels take twice the time and save a third of the bytes
MAX_EPISODE_STEPS = 10_000_000
# Minari's arrays of an episode and the dtype kinds they may have.
ARRAY_KINDS = {"observations": "uf", "actions": "iu", "rewards": "f", "terminations": "b"}
# The action of every emulator frame: a row of padding, then one row per step.
FRAMES_FIELD = "infos/frames"


class ExpectedArray(NamedTuple):
    """The shape and type that an array must have before it is read."""

    shape: tuple[int, ...]
    dtype_kinds: str  # NumPy's letters for kinds of numbers
    digest: str  # SHA-256 of its bytes

    @property
    def max_bytes(self) -> int:
        return math.prod(self.shape) * (1 if self.dtype_kinds == "u" else 8)


def write_episodes(
    path: Path, episodes: Sequence[Episode], action_repeat: int, first_index: int = 0
) -> list[dict[str, str]]:
    """Write episodes `first_index`, ... instead of any in the file; the SHA-256 of every array."""
    import h5py

    digests = []
    with h5py.File(path, "a", track_order=True) as file:
        for name in {*file} - {f"episode_{i}" for i in range(first_index)}:
            del file[name]
        for i, episode in enumerate(episodes, first_index):
            group = file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "total_steps": len(episode)})
            arrays = _episode_to_arrays(episode, action_repeat)
            for name, array in arrays.items():
                _write_array(group, name, array)
            digests.append({name: array_digest(array) for name, array in arrays.items()})
    return digests


def read_episodes(path: Path, description: DemoSetDescription) -> list[Episode]:
    """The episodes of a set; a ValueError if one does not match its description."""
    episodes = [_expected_arrays(metadata, description) for metadata in description.episodes]
    expected = {
        f"episode_{i}/{name}": array
        for i, episode in enumerate(episodes)
        for name, array in episode.items()
    }
    num_bytes = file_size(path)
    claimed = sum(array.max_bytes for array in expected.values())
    if claimed > FREE_BYTES + MAX_EXPANSION * num_bytes:
        raise ValueError(f"{path.name} cannot hold the {claimed} bytes it claims")
    arrays = _fetch_arrays(path, num_bytes, expected)
    return [
        _arrays_to_episode({name: arrays[f"episode_{i}/{name}"] for name in episode}, metadata)
        for i, (episode, metadata) in enumerate(zip(episodes, description.episodes, strict=True))
    ]


def check_file(path: Path) -> None:
    """A ValueError if the sandbox cannot visit every object of the file within its limits."""
    SANDBOX.call(SandboxTask("hdf5:visit_all", (str(path.absolute()),), path.name, file_size(path)))


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


# Episodes as arrays


def _episode_to_arrays(episode: Episode, action_repeat: int) -> dict[str, np.ndarray]:
    """An episode as Minari's arrays."""
    steps = len(episode)
    ends = np.arange(1, steps + 1) == steps
    arrays = {
        "observations": episode.planes,
        "actions": episode.actions,
        "rewards": episode.rewards.astype(np.float64),
        "terminations": ends & episode.terminal,
        "truncations": ends & (not episode.terminal),
    }
    if episode.input_log is None:
        return arrays
    rows = frames_by_step(episode.input_log.frame_actions, action_repeat, episode.input_log.phase)
    if len(rows) != steps:
        raise DemonstrationError(
            f"an input log of {len(rows)} steps cannot be an episode of {steps}"
        )
    return arrays | {FRAMES_FIELD: np.concatenate([np.full_like(rows[:1], PAD_ACTION), rows])}


def _expected_arrays(
    metadata: EpisodeMetadata, description: DemoSetDescription
) -> dict[str, ExpectedArray]:
    """The arrays that an episode must have according to its description."""
    spec, action_repeat = description.spec, description.origin.repeat
    if not 0 < metadata.steps <= MAX_EPISODE_STEPS:
        raise ValueError(f"an episode cannot have {metadata.steps} steps")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ARRAY_KINDS, (metadata.steps,))
    shapes["observations"] = (metadata.steps + 1, *spec.plane)
    if metadata.reel is not None:
        if not 0 <= metadata.reel.phase < action_repeat:
            raise ValueError(f"a phase cannot be {metadata.reel.phase}")
        shapes[FRAMES_FIELD] = (metadata.steps + 1, action_repeat)
    kinds = ARRAY_KINDS | {"observations": np.dtype(spec.dtype).kind, FRAMES_FIELD: "u"}
    return {f: ExpectedArray(shapes[f], kinds[f], metadata.digests[f]) for f in shapes}


def _arrays_to_episode(arrays: dict[str, np.ndarray], metadata: EpisodeMetadata) -> Episode:
    """An episode from Minari's arrays and our metadata; a ValueError if they disagree."""
    episode = Episode(
        planes=arrays["observations"],
        actions=arrays["actions"].astype(np.int64),
        rewards=arrays["rewards"].astype(np.float32),
        terminal=bool(arrays["terminations"][-1]),
        seed=metadata.seed,
        input_log=_read_input_log(arrays, metadata),
        audit=metadata.audit,
        first_imitated_step=metadata.first_imitated_step,
        random_steps=metadata.random_steps,
    )
    if (episode.score, episode.terminal) != (metadata.score, metadata.terminal):
        raise ValueError(
            f"a score of {metadata.score:g} is claimed, the rewards are {episode.score:g}"
        )
    return episode


def _read_input_log(arrays: dict[str, np.ndarray], metadata: EpisodeMetadata) -> InputLog | None:
    if metadata.reel is None:
        return None
    length, writes, seed, phase, variant = metadata.reel
    rows = arrays[FRAMES_FIELD][1:]
    missing = -phase % rows.shape[1]  # frames that a short first step lacks
    frames = rows.reshape(-1)[missing : missing + length]
    if not np.array_equal(frames_by_step(frames, rows.shape[1], phase), rows):
        raise ValueError(f"its frames are not {length} in steps of phase {phase}")
    return InputLog(frames, np.array(writes, np.int32).reshape(-1, 3), seed, phase, variant)


# Arrays in the file


class _RowRange(NamedTuple):
    """Rows start ... stop - 1 of an array."""

    name: str
    expected: ExpectedArray
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.expected.max_bytes * (self.stop - self.start) // self.expected.shape[0]


def _fetch_arrays(
    path: Path, num_bytes: int, expected_arrays: dict[str, ExpectedArray]
) -> dict[str, np.ndarray]:
    """Read arrays by name in the sandbox, a batch of rows at a time."""
    arrays: dict[str, np.ndarray] = {}
    stored_bytes = 0
    for batch in _split_batches(expected_arrays):
        request = [
            (part.name, part.expected.shape, part.expected.dtype_kinds, part.start, part.stop)
            for part in batch
        ]
        arguments = (str(path.absolute()), request)
        max_bytes = sum(part.num_bytes for part in batch)
        result = SANDBOX.call(
            SandboxTask("hdf5:read_arrays", arguments, path.name, num_bytes, max_bytes)
        )
        stored_bytes += result.value
        if stored_bytes > num_bytes:
            raise ValueError(f"{path.name} has arrays that are one and the same")
        for (name, expected, start, stop), rows in zip(batch, result.arrays, strict=True):
            if not start:
                arrays[name] = np.empty(expected.shape, rows.dtype)
            arrays[name][start:stop] = rows
            if stop == expected.shape[0] and array_digest(arrays[name]) != expected.digest:
                raise ValueError(f"/{name} is altered (SHA-256)")
    return arrays


def _split_batches(expected_arrays: dict[str, ExpectedArray]) -> Iterator[list[_RowRange]]:
    """All rows of all arrays, in batches of about RESPONSE_BYTES."""
    batch: list[_RowRange] = []
    batch_bytes = 0
    for name, expected in expected_arrays.items():
        num_rows = expected.shape[0]
        rows_per_part = max(1, RESPONSE_BYTES * num_rows // expected.max_bytes)
        for start in range(0, num_rows, rows_per_part):
            part = _RowRange(name, expected, start, min(start + rows_per_part, num_rows))
            if batch and batch_bytes + part.num_bytes > RESPONSE_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(part)
            batch_bytes += part.num_bytes
    if batch:
        yield batch


def _write_array(group: Any, name: str, array: np.ndarray) -> None:
    """Write one array, deflated if it is large and would not look like a decompression bomb."""
    if array.nbytes <= CHUNK_BYTES:
        group.create_dataset(name, data=array)
        return
    rows = max(CHUNK_BYTES // array[0].nbytes, 1)
    dataset = group.create_dataset(
        name,
        data=array,
        chunks=(rows, *array.shape[1:]),
        compression="gzip",
        compression_opts=DEFLATE_LEVEL,
    )
    if dataset.id.get_storage_size() * MAX_EXPANSION < array.nbytes:
        del group[name]
        group.create_dataset(name, data=array)
