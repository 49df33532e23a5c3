"""Arrays of episodes in Minari's HDF5 file: written deflated, read within bounds (F11).

HDF5's own filters would inflate a hostile piece to any size, and its links and layouts can lead
out of the file: here a piece has the size that the array's shape gives it, or is refused.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lookfurther.demos.guard import FREE, GUARD, RATIO

FILE = "main_data.hdf5"
PIECE = 2**19  # bytes deflated together: larger ones gain little
LEVEL = 2  # of deflation: higher ones take twice the time to save a third


class Expected(NamedTuple):
    """What an array must be before it is read."""

    shape: tuple[int, ...]
    kinds: str  # kinds of numbers, as NumPy's letters
    digest: str  # SHA-256 of its bytes


def write(path: Path, episodes: Iterable[dict[str, np.ndarray]], first: int = 0) -> list[dict]:
    """Write episodes from number `first` on, in place of any such; the SHA-256 of every array."""
    import h5py

    digests = []
    with h5py.File(path, "a", track_order=True) as file:
        for name in {*file} - {f"episode_{i}" for i in range(first)}:
            del file[name]
        for i, arrays in enumerate(episodes, first):
            group = file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "total_steps": len(arrays["actions"])})
            for name, array in arrays.items():
                _put(group, name, array)
            digests.append({name: digest(array) for name, array in arrays.items()})
    return digests


def read(path: Path, episodes: Sequence[dict[str, Expected]]) -> list[dict[str, np.ndarray]]:
    """The arrays of episodes 0, 1, ...; a ValueError where one is not as expected."""
    with opened(path) as file:
        claimed = sum(_bytes(e) for expected in episodes for e in expected.values())
        if claimed > FREE + RATIO * file.id.get_filesize():
            raise ValueError(f"{path.name} cannot hold the {claimed} bytes it claims")
        return [
            {name: _get(file, f"episode_{i}/{name}", e) for name, e in expected.items()}
            for i, expected in enumerate(episodes)
        ]


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file to read from, when the guard has been through it."""
    import h5py

    GUARD.check(path)
    with h5py.File(path, "r") as file:
        yield file


def digest(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _bytes(expected: Expected) -> int:
    size = 8
    for n in expected.shape:
        size *= n
    return size // 8 if expected.kinds == "u" else size


def _put(group: Any, name: str, array: np.ndarray) -> None:
    """One array, its pieces deflated where it is large and that does not look like a bomb."""
    if array.nbytes <= PIECE:
        group.create_dataset(name, data=array)
        return
    rows = max(PIECE // array[0].nbytes, 1)
    how = {"chunks": (rows, *array.shape[1:]), "compression": "gzip", "compression_opts": LEVEL}
    made = group.create_dataset(name, data=array, **how)
    if made.id.get_storage_size() * RATIO < array.nbytes:
        del group[name]
        group.create_dataset(name, data=array)


def _get(file: Any, name: str, expected: Expected) -> np.ndarray:
    """One array of the file, if it is what it must be."""
    data = find(file, name)
    if data.shape != expected.shape or data.dtype.kind not in expected.kinds:
        raise ValueError(f"/{name} cannot be {data.dtype} of shape {data.shape}")
    array = load(data)
    if digest(array) != expected.digest:
        raise ValueError(f"/{name} is altered (SHA-256)")
    return array


def find(file: Any, name: str) -> Any:
    """A dataset that lies in this file, not yet read."""
    import h5py

    data = file
    for part in name.split("/"):
        data = _inside(data, part)
    if not isinstance(data, h5py.Dataset):
        raise ValueError(f"/{name} is not an array")
    plan = data.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError(f"/{name} lies in another file")
    return data


def load(data: Any) -> np.ndarray:
    """A dataset of numbers as it was written, deflated or not."""
    if data.id.get_create_plist().get_nfilters():
        return _inflated(data)
    if data.nbytes > data.file.id.get_filesize():
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data[()]


def _inside(group: Any, name: str) -> Any:
    """A member of a group, not a link to elsewhere."""
    import h5py

    if not isinstance(group, h5py.Group) or not isinstance(
        group.get(name, getlink=True), h5py.HardLink
    ):
        raise ValueError(f"{group.name} has no {name} of its own")
    return group[name]


def _inflated(data: Any) -> np.ndarray:
    """A deflated array, piece by piece, none larger than its rows."""
    import h5py

    plan = data.id.get_create_plist()
    if plan.get_nfilters() != 1 or plan.get_filter(0)[0] != h5py.h5z.FILTER_DEFLATE:
        raise ValueError(f"{data.name} is packed in another way than ours")
    rows, *rest = data.chunks
    if tuple(rest) != data.shape[1:] or not 0 < rows <= len(data):
        raise ValueError(f"{data.name} is in pieces of {data.chunks}")
    array = np.empty(data.shape, data.dtype)
    size = rows * array[:1].nbytes
    for low in range(0, len(array), rows):
        place = (low, *[0] * len(rest))
        if data.id.get_chunk_info_by_coord(place).size > data.file.id.get_filesize():
            raise ValueError(f"{data.name} has a piece larger than its file")
        unpacked, piece = data.id.read_direct_chunk(place)
        if not unpacked:  # HDF5 keeps as they are the pieces that would grow
            piece = zlib.decompressobj().decompress(piece, size)
        if len(piece) != size:
            raise ValueError(f"{data.name} has a piece of {len(piece)} bytes, not {size}")
        part = np.frombuffer(piece, data.dtype).reshape(rows, *rest)
        array[low : low + rows] = part[: len(array) - low]
    return array
