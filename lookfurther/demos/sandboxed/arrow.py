"""Read Minari's Arrow and Parquet files. Only the sandbox process imports this."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import ipc, parquet

from lookfurther.demos.sandboxed.jpeg import decode_images

BATCH_VALUES = 2**20  # of a Parquet file, decoded together
NUMERIC_COLUMNS = ("actions", "rewards", "terminations")


def read_episode(folder: str, data_format: str, max_steps: int) -> tuple[dict, list[np.ndarray]]:
    """The actions, rewards and terminations of an episode, and its number of observations."""
    columns: list[list[np.ndarray]] = [[] for _ in NUMERIC_COLUMNS]
    num_rows = 0
    for batch in _iter_batches(folder, data_format, NUMERIC_COLUMNS, 1):
        num_rows += batch.num_rows
        if num_rows > max_steps + 1:
            raise ValueError(f"an episode of more than {max_steps} steps")
        for parts, name in zip(columns, NUMERIC_COLUMNS, strict=True):
            parts.append(batch.column(name).to_numpy(zero_copy_only=False))
    arrays = [np.concatenate(parts)[:-1] for parts in columns]
    for name, kinds, array in zip(NUMERIC_COLUMNS, ("iu", "iuf", "b"), arrays, strict=True):
        if array.dtype.kind not in kinds or array.dtype.itemsize > 8:
            raise ValueError(f"{name} cannot be {array.dtype}")
    return {"rows": num_rows}, arrays


def read_observations(
    folder: str, data_format: str, jpeg: bool, size: int, start: int, stop: int
) -> tuple[None, list[np.ndarray]]:
    """Observations start ... stop - 1 of an episode, each with `size` values."""
    first, parts = 0, []
    for batch in _iter_batches(folder, data_format, ("observations",), size):
        part = batch.column("observations")[max(start - first, 0) : max(stop - first, 0)]
        if len(part):
            parts.append(
                decode_images(_iter_bytes(part), size) if jpeg else _read_numbers(part, size)
            )
        first += batch.num_rows
        if first >= stop:
            break
    return None, [np.concatenate(parts)]


def _iter_bytes(part: Any) -> Iterator[bytes]:
    return (value.as_py() for value in part)


def _read_numbers(part: Any, size: int) -> np.ndarray:
    values = part.flatten()
    if len(values) != len(part) * size:
        raise ValueError(f"{len(values)} numbers in {len(part)} observations of {size}")
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise ValueError(f"observations cannot be {array.dtype}")
    return array


def _iter_batches(
    folder: str, data_format: str, names: tuple[str, ...], size: int
) -> Iterator[Any]:
    """The rows of all files of an episode, as validated record batches of these columns.

    A row of a column has about `size` values.
    """
    rows = max(1, BATCH_VALUES // size)
    for path in sorted(Path(folder).iterdir()):
        if path.name.startswith(("_", ".")) or path.name == "metadata.json":
            continue
        if data_format == "parquet":
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
