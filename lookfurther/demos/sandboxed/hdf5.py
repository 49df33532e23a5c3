"""HDF5 files, read by the helper process with limits: import this nowhere else.

HDF5's own filters would inflate a hostile piece to any size, and its links and layouts can lead
out of the file. Here a piece has the size that the array's shape gives it, or is refused.
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


def walk(path: str) -> tuple[None, list[np.ndarray]]:
    """Go to every group and array once, as writing into the file would."""
    with h5py.File(path, "r") as file:
        for thing in _iter_objects(file):
            _touch_object(thing)
    return None, []


def parts(path: str, wanted: list[list[Any]]) -> tuple[int, list[np.ndarray]]:
    """Rows low ... high - 1 of arrays, each given as name, shape, kinds of numbers, low, high.

    With them comes how many bytes of the file the arrays take that begin here.
    """
    stored, arrays = 0, []
    with h5py.File(path, "r") as file:
        for name, shape, kinds, low, high in wanted:
            data = find_dataset(file, name)
            wide = data.dtype.itemsize > (1 if kinds == "u" else 8)
            if data.shape != tuple(shape) or data.dtype.kind not in kinds or wide:
                raise ValueError(f"/{name} cannot be {data.dtype} of shape {data.shape}")
            stored += 0 if low else data.id.get_storage_size()
            arrays.append(read_rows(data, low, high))
    return stored, arrays


def episode(path: str, name: str, jpeg: bool, max_steps: int) -> tuple[dict, list[np.ndarray]]:
    """The actions, rewards and ends of an episode of Minari's, and facts.

    These are its observations' number, the bytes of the file that all its arrays take, the seed.
    """
    stored, arrays = 0, []
    with h5py.File(path, "r") as file:
        for field, kinds in (("actions", "iu"), ("rewards", "iuf"), ("terminations", "b")):
            data = _check_numeric(find_dataset(file, f"{name}/{field}"), kinds)
            if data.ndim != 1 or len(data) > max_steps:
                raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
            stored += data.id.get_storage_size()
            arrays.append(read_rows(data, 0, len(data)))
        data = find_dataset(file, f"{name}/observations")
        if not jpeg:
            _check_numeric(data, "uif")
        seed = file[name].attrs.get("seed")
        stored += data.id.get_storage_size()
        number = None if seed is None else int(seed)
        facts = {"rows": len(data), "stored": stored, "seed": number}
    return facts, arrays


def observations(
    path: str, name: str, jpeg: bool, size: int, start: int, stop: int
) -> tuple[None, list[np.ndarray]]:
    """Rows low ... high - 1 of an episode's observations, each of `size` numbers."""
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
    """A dataset that is stored in this file, not yet read."""
    data = file
    for part in name.split("/"):
        data = _get_member(data, part)
    if not isinstance(data, h5py.Dataset):
        raise ValueError(f"/{name} is not an array")
    plan = data.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError(f"/{name} is stored in another file")
    return data


def read_rows(data: Any, start: int, stop: int) -> np.ndarray:
    """Rows of a dataset of numbers, deflated or not."""
    if data.id.get_create_plist().get_nfilters():
        return _read_deflated(data, start, min(stop, len(data)))
    if data.nbytes > data.file.id.get_filesize():
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data[start:stop]


def _check_numeric(data: Any, kinds: str) -> Any:
    """A dataset of these kinds of numbers, no larger than its file may unpack to."""
    most = FREE_BYTES + MAX_EXPANSION * data.file.id.get_filesize()
    if data.dtype.kind not in kinds or data.nbytes > most or not data.ndim:
        raise ValueError(f"{data.name} cannot be {data.dtype} of shape {data.shape}")
    return data


def _get_member(group: Any, name: str) -> Any:
    """A member of a group, not a link to elsewhere."""
    if not isinstance(group, h5py.Group) or not isinstance(
        group.get(name, getlink=True), h5py.HardLink
    ):
        raise ValueError(f"{group.name} has no {name} of its own")
    return group[name]


def _read_deflated(data: Any, start: int, stop: int) -> np.ndarray:
    """Rows of a deflated array, piece by piece, none larger than its rows."""
    plan = data.id.get_create_plist()
    if plan.get_nfilters() != 1 or plan.get_filter(0)[0] != h5py.h5z.FILTER_DEFLATE:
        raise ValueError(f"{data.name} is packed in another way than ours")
    per_piece, *rest = data.chunks
    if tuple(rest) != data.shape[1:] or not 0 < per_piece <= len(data):
        raise ValueError(f"{data.name} is in pieces of {data.chunks}")
    array = np.empty((stop - start, *rest), data.dtype)
    for first in range(start - start % per_piece, stop, per_piece):
        part = np.frombuffer(_inflate_chunk(data, first), data.dtype).reshape(data.chunks)
        begin, end = max(start, first), min(stop, first + per_piece)
        array[begin - start : end - start] = part[begin - first : end - first]
    return array


def _inflate_chunk(data: Any, first_row: int) -> bytes:
    """The bytes of the deflated piece that begins at row `first`."""
    place = (first_row, *[0] * (data.ndim - 1))
    size = math.prod(data.chunks) * data.dtype.itemsize
    if data.id.get_chunk_info_by_coord(place).size > data.file.id.get_filesize():
        raise ValueError(f"{data.name} has a piece larger than its file")
    unpacked, piece = data.id.read_direct_chunk(place)
    if not unpacked:  # HDF5 keeps as they are the pieces that would grow
        piece = zlib.decompressobj().decompress(piece, size)
    if len(piece) != size:
        raise ValueError(f"{data.name} has a piece of {len(piece)} bytes, not {size}")
    return piece


def _iter_objects(group: Any) -> Iterator[Any]:
    """Every group and array in the file; links to elsewhere are not followed."""
    yield group
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        inner = group[name]
        if isinstance(inner, h5py.Group):
            yield from _iter_objects(inner)
        else:
            yield inner


def _touch_object(thing: Any) -> None:
    """Go where reading would go."""
    for name in thing.attrs:
        thing.attrs.get_id(name).get_storage_size()
    if not isinstance(thing, h5py.Dataset):
        return
    if thing.chunks is not None and len(thing.chunks) != thing.ndim:
        raise ValueError(f"{thing.name} of shape {thing.shape} is in pieces of {thing.chunks}")
    if thing.id.get_create_plist().get_nfilters():  # only its pieces' places: they may be bombs
        for i in range(thing.id.get_num_chunks()):
            thing.id.get_chunk_info(i)
    elif thing.ndim and thing.nbytes <= FREE_BYTES + MAX_EXPANSION * thing.file.id.get_filesize():
        count = max(1, RESPONSE_BYTES * len(thing) // max(1, thing.nbytes))
        for low in range(0, len(thing), count):
            thing[low : low + count]
