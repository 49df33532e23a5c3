"""Read HDF5 files. Only the sandbox process imports this.

HDF5's own filters would inflate a hostile chunk to any size, and its links and layouts can refer to
other files. Here a chunk has the size that follows from the array's shape, or it is an error.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from lookfurther.demos.sandbox import FREE_BYTES, MAX_EXPANSION, RESPONSE_BYTES
from lookfurther.demos.sandboxed.jpeg import decode_images


def visit_all(path: str) -> tuple[None, list[np.ndarray]]:
    """Visit every group and array once, as writing to the file would."""
    with h5py.File(path, "r") as file:
        for item in _iter_objects(file):
            _touch_object(item)
    return None, []


def read_arrays(path: str, requests: list[list[Any]]) -> tuple[int, list[np.ndarray]]:
    """Rows of arrays; a request is name, shape, dtype kinds, start and stop.

    The value is the number of bytes in the file of the arrays that begin in these requests.
    """
    stored_bytes, arrays = 0, []
    with h5py.File(path, "r") as file:
        for name, shape, kinds, start, stop in requests:
            data = find_dataset(file, name)
            is_wide = data.dtype.itemsize > (1 if kinds == "u" else 8)
            if data.shape != tuple(shape) or data.dtype.kind not in kinds or is_wide:
                raise ValueError(f"/{name} cannot be {data.dtype} of shape {data.shape}")
            stored_bytes += 0 if start else data.id.get_storage_size()
            arrays.append(read_rows(data, start, stop))
    return stored_bytes, arrays


def read_episode(path: str, name: str, jpeg: bool, max_steps: int) -> tuple[dict, list[np.ndarray]]:
    """The actions, rewards and terminations of an episode in Minari's format.

    The value has the number of observations, the bytes of its arrays in the file, and the seed.
    """
    stored_bytes, arrays = 0, []
    with h5py.File(path, "r") as file:
        for field, kinds in (("actions", "iu"), ("rewards", "iuf"), ("terminations", "b")):
            data = _check_numeric(find_dataset(file, f"{name}/{field}"), kinds)
            if data.ndim != 1 or len(data) > max_steps:
                raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
            stored_bytes += data.id.get_storage_size()
            arrays.append(read_rows(data, 0, len(data)))
        data = find_dataset(file, f"{name}/observations")
        if not jpeg:
            _check_numeric(data, "uif")
        seed = file[name].attrs.get("seed")
        stored_bytes += data.id.get_storage_size()
        seed = None if seed is None else int(seed)
        value = {"rows": len(data), "stored": stored_bytes, "seed": seed}
    return value, arrays


def read_observations(
    path: str, name: str, jpeg: bool, size: int, start: int, stop: int
) -> tuple[None, list[np.ndarray]]:
    """Observations start ... stop - 1 of an episode, each with `size` values."""
    with h5py.File(path, "r") as file:
        data = find_dataset(file, f"{name}/observations")
        if not jpeg:
            if math.prod(_check_numeric(data, "uif").shape[1:]) != size:
                raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
            return None, [read_rows(data, start, stop)]
        if (
            data.ndim not in (1, 2)
            or data.dtype.itemsize * math.prod(data.shape[1:]) > file.id.get_filesize()
        ):
            raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
        return None, [decode_images((data[i] for i in range(start, min(stop, len(data)))), size)]


def find_dataset(file: Any, name: str) -> Any:
    """A dataset that is stored in this file, without reading it."""
    data = file
    for part in name.split("/"):
        data = _get_member(data, part)
    if not isinstance(data, h5py.Dataset):
        raise ValueError(f"/{name} is not an array")
    properties = data.id.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError(f"/{name} is stored in another file")
    return data


def read_rows(data: Any, start: int, stop: int) -> np.ndarray:
    """Rows of a numeric dataset, deflated or not."""
    if data.id.get_create_plist().get_nfilters():
        return _read_deflated(data, start, min(stop, len(data)))
    if data.nbytes > data.file.id.get_filesize():
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data[start:stop]


def _check_numeric(data: Any, kinds: str) -> Any:
    """The dataset; a ValueError if it is not of these dtype kinds or too large for its file."""
    max_bytes = FREE_BYTES + MAX_EXPANSION * data.file.id.get_filesize()
    if data.dtype.kind not in kinds or data.nbytes > max_bytes or not data.ndim:
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data


def _get_member(group: Any, name: str) -> Any:
    """A member of a group that is not a soft or external link."""
    if not isinstance(group, h5py.Group) or not isinstance(
        group.get(name, getlink=True), h5py.HardLink
    ):
        raise ValueError(f"{group.name} has no {name} of its own")
    return group[name]


def _read_deflated(data: Any, start: int, stop: int) -> np.ndarray:
    """Rows of a deflated array, chunk by chunk, with no chunk larger than its rows."""
    properties = data.id.get_create_plist()
    if properties.get_nfilters() != 1 or properties.get_filter(0)[0] != h5py.h5z.FILTER_DEFLATE:
        raise ValueError(f"{data.name} is compressed with another filter than deflate")
    chunk_rows, *rest = data.chunks
    if tuple(rest) != data.shape[1:] or not 0 < chunk_rows <= len(data):
        raise ValueError(f"{data.name} has chunks of {data.chunks}")
    array = np.empty((stop - start, *rest), data.dtype)
    for first in range(start - start % chunk_rows, stop, chunk_rows):
        chunk = np.frombuffer(_inflate_chunk(data, first), data.dtype).reshape(data.chunks)
        begin, end = max(start, first), min(stop, first + chunk_rows)
        array[begin - start : end - start] = chunk[begin - first : end - first]
    return array


def _inflate_chunk(data: Any, first_row: int) -> bytes:
    """The bytes of the deflated chunk that begins at `first_row`."""
    coordinates = (first_row, *[0] * (data.ndim - 1))
    size = math.prod(data.chunks) * data.dtype.itemsize
    if data.id.get_chunk_info_by_coord(coordinates).size > data.file.id.get_filesize():
        raise ValueError(f"{data.name} has a chunk larger than its file")
    filter_mask, chunk = data.id.read_direct_chunk(coordinates)
    if not filter_mask:  # HDF5 does not deflate chunks that would grow
        chunk = zlib.decompressobj().decompress(chunk, size)
    if len(chunk) != size:
        raise ValueError(f"{data.name} has a chunk of {len(chunk)} bytes, not {size}")
    return chunk


def _iter_objects(group: Any) -> Iterator[Any]:
    """Every group and array in the file; soft and external links are not followed."""
    yield group
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        member = group[name]
        if isinstance(member, h5py.Group):
            yield from _iter_objects(member)
        else:
            yield member


def _touch_object(item: Any) -> None:
    """Access everything that reading would access."""
    for name in item.attrs:
        item.attrs.get_id(name).get_storage_size()
    if not isinstance(item, h5py.Dataset):
        return
    if item.chunks is not None and len(item.chunks) != item.ndim:
        raise ValueError(f"{item.name} of shape {item.shape} has chunks of {item.chunks}")
    if item.id.get_create_plist().get_nfilters():  # only locate chunks: they may be bombs
        for i in range(item.id.get_num_chunks()):
            item.id.get_chunk_info(i)
    elif item.ndim and item.nbytes <= FREE_BYTES + MAX_EXPANSION * item.file.id.get_filesize():
        count = max(1, RESPONSE_BYTES * len(item) // max(1, item.nbytes))
        for start in range(0, len(item), count):
            item[start : start + count]
