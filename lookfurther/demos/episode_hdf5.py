"""Arrays of episodes in Minari's HDF5 file: written deflated, read by the helper process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos.sandbox import (
    FREE_BYTES,
    MAX_EXPANSION,
    RESPONSE_BYTES,
    SANDBOX,
    SandboxTask,
    file_size,
)

DATA_FILE = "main_data.hdf5"
CHUNK_BYTES = 2**19  # bytes deflated together: larger ones gain little
DEFLATE_LEVEL = 2  # of deflation: higher ones take twice the time to save a third


class ExpectedArray(NamedTuple):
    """What an array must be before it is read."""

    shape: tuple[int, ...]
    dtype_kinds: str  # kinds of numbers, as NumPy's letters
    digest: str  # SHA-256 of its bytes


def write_episodes(
    path: Path, episodes: Iterable[dict[str, np.ndarray]], first_index: int = 0
) -> list[dict]:
    """Write episodes from number `first` on, in place of any such; the SHA-256 of every array."""
    import h5py

    digests = []
    with h5py.File(path, "a", track_order=True) as file:
        for name in {*file} - {f"episode_{i}" for i in range(first_index)}:
            del file[name]
        for i, arrays in enumerate(episodes, first_index):
            group = file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "total_steps": len(arrays["actions"])})
            for name, array in arrays.items():
                _write_array(group, name, array)
            digests.append({name: array_digest(array) for name, array in arrays.items()})
    return digests


def read_episodes(
    path: Path, episodes: Sequence[dict[str, ExpectedArray]]
) -> list[dict[str, np.ndarray]]:
    """The arrays of episodes 0, 1, ...; a ValueError where one is not as expected."""
    size = file_size(path)
    wanted = {
        f"episode_{i}/{name}": e
        for i, episode in enumerate(episodes)
        for name, e in episode.items()
    }
    claimed = sum(map(_max_bytes, wanted.values()))
    if claimed > FREE_BYTES + MAX_EXPANSION * size:
        raise ValueError(f"{path.name} cannot hold the {claimed} bytes it claims")
    arrays = _fetch_arrays(path, size, wanted)
    return [
        {name: arrays[f"episode_{i}/{name}"] for name in episode}
        for i, episode in enumerate(episodes)
    ]


def check_file(path: Path) -> None:
    """A ValueError where the file cannot be walked through within the limits."""
    task = SandboxTask("hdf5:walk", (str(path.absolute()),), path.name, file_size(path))
    SANDBOX.call(task)


class _RowRange(NamedTuple):
    """Rows low ... high - 1 of an array."""

    name: str
    expected: ExpectedArray
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return _max_bytes(self.expected) * (self.stop - self.start) // self.expected.shape[0]


def _fetch_arrays(path: Path, size: int, wanted: dict[str, ExpectedArray]) -> dict[str, np.ndarray]:
    """Arrays by name, put together from the answers of the helper process."""
    found: dict[str, np.ndarray] = {}
    stored = 0
    for parts in _split_batches(wanted):
        asked = [(p.name, p.expected.shape, p.expected.dtype_kinds, p.start, p.stop) for p in parts]
        most = sum(p.num_bytes for p in parts)
        task = SandboxTask("hdf5:parts", (str(path.absolute()), asked), path.name, size, most)
        answer = SANDBOX.call(task)
        stored += answer.value
        if stored > size:
            raise ValueError(f"{path.name} has arrays that are one and the same")
        for part, array in zip(parts, answer.arrays, strict=True):
            name, expected, low, high = part
            if not low:
                found[name] = np.empty(expected.shape, array.dtype)
            found[name][low:high] = array
            if high == expected.shape[0] and array_digest(found[name]) != expected.digest:
                raise ValueError(f"/{name} is altered (SHA-256)")
    return found


def _split_batches(wanted: dict[str, ExpectedArray]) -> Iterator[list[_RowRange]]:
    """All rows of all arrays, in parts of about SLICE bytes together."""
    batch: list[_RowRange] = []
    taken = 0
    for name, expected in wanted.items():
        count = expected.shape[0]
        rows = max(1, RESPONSE_BYTES * count // _max_bytes(expected))
        for low in range(0, count, rows):
            part = _RowRange(name, expected, low, min(low + rows, count))
            if batch and taken + part.num_bytes > RESPONSE_BYTES:
                yield batch
                batch, taken = [], 0
            batch.append(part)
            taken += part.num_bytes
    if batch:
        yield batch


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _max_bytes(expected: ExpectedArray) -> int:
    return math.prod(expected.shape) * (1 if expected.dtype_kinds == "u" else 8)


def _write_array(group: Any, name: str, array: np.ndarray) -> None:
    """One array, its pieces deflated where it is large and that does not look like a bomb."""
    if array.nbytes <= CHUNK_BYTES:
        group.create_dataset(name, data=array)
        return
    rows = max(CHUNK_BYTES // array[0].nbytes, 1)
    how = {
        "chunks": (rows, *array.shape[1:]),
        "compression": "gzip",
        "compression_opts": DEFLATE_LEVEL,
    }
    made = group.create_dataset(name, data=array, **how)
    if made.id.get_storage_size() * MAX_EXPANSION < array.nbytes:
        del group[name]
        group.create_dataset(name, data=array)
