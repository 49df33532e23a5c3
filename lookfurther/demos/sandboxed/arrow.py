"""Minari's Arrow and Parquet files, read by the helper process: import this nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import ipc, parquet

from lookfurther.demos.sandboxed.jpeg import decoded

BATCH = 2**20  # numbers of a Parquet file unpacked together
NUMBERS = ("actions", "rewards", "terminations")


def episode(folder: str, form: str, most_steps: int) -> tuple[dict, list[np.ndarray]]:
    """The actions, rewards and ends of an episode, and how many observations it has."""
    found: list[list[np.ndarray]] = [[] for _ in NUMBERS]
    count = 0
    for batch in _batches(folder, form, NUMBERS, 1):
        count += batch.num_rows
        if count > most_steps + 1:
            raise ValueError(f"an episode of more than {most_steps} steps")
        for parts, name in zip(found, NUMBERS, strict=True):
            parts.append(batch.column(name).to_numpy(zero_copy_only=False))
    arrays = [np.concatenate(parts)[:-1] for parts in found]
    for name, kinds, array in zip(NUMBERS, ("iu", "iuf", "b"), arrays, strict=True):
        if array.dtype.kind not in kinds or array.dtype.itemsize > 8:
            raise ValueError(f"{name} cannot be {array.dtype}")
    return {"rows": count}, arrays


def observations(
    folder: str, form: str, jpeg: bool, size: int, low: int, high: int
) -> tuple[None, list[np.ndarray]]:
    """Rows low ... high - 1 of an episode's observations, each of `size` numbers."""
    first, found = 0, []
    for batch in _batches(folder, form, ("observations",), size):
        part = batch.column("observations")[max(low - first, 0) : max(high - first, 0)]
        if len(part):
            found.append(decoded(_packed(part), size) if jpeg else _numbers(part, size))
        first += batch.num_rows
        if first >= high:
            break
    return None, [np.concatenate(found)]


def _packed(part: Any) -> Iterator[bytes]:
    return (value.as_py() for value in part)


def _numbers(part: Any, size: int) -> np.ndarray:
    values = part.flatten()
    if len(values) != len(part) * size:
        raise ValueError(f"{len(values)} numbers in {len(part)} observations of {size}")
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise ValueError(f"observations cannot be {array.dtype}")
    return array


def _batches(folder: str, form: str, names: tuple[str, ...], size: int) -> Iterator[Any]:
    """The rows of all files of an episode, as checked record batches of these columns.

    A row of a column holds `size` numbers, about.
    """
    rows = max(1, BATCH // size)
    for path in sorted(Path(folder).iterdir()):
        if path.name.startswith(("_", ".")) or path.name == "metadata.json":
            continue
        if form == "parquet":
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(rows, columns=[*names], use_threads=False)
        else:
            options = ipc.IpcReadOptions(use_threads=False)
            with pyarrow.memory_map(str(path)) as source:
                file = ipc.open_file(source, options=options)
                for i in range(file.num_record_batches):
                    batch = file.get_batch(i).select([*names])
                    batch.validate(full=True)
                    yield batch
