"""Minari datasets that would take all memory or time of a careless reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

VECTOR_BOX = {"type": "Box", "dtype": "float32", "shape": [4], "low": [0] * 4, "high": [1] * 4}
IMAGE_BOX = {"type": "Box", "dtype": "uint8", "shape": [210, 160, 3], "low": 0, "high": 255}
ROWS = 6


def write_metadata(folder: Path, data_format: str, box: dict, **options: Any) -> Path:
    """Write the metadata of a dataset with options of its environment; the folder of its files."""
    data = folder / "data"
    data.mkdir(parents=True)
    env, actions = ("CartPole-v1", 2) if box is VECTOR_BOX else ("ALE/Pong-v5", 6)
    metadata = {
        "env_spec": json.dumps({"id": env} | options),
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "n": actions}),
        "data_format": data_format,
        "total_episodes": 1,
    }
    (data / "metadata.json").write_text(json.dumps(metadata))
    return data


def write_hdf5(
    folder: Path, box: dict = VECTOR_BOX, arrays: Any = None, steps: int = ROWS - 1, **options: Any
) -> Path:
    """Write a sound dataset, except for `arrays` (arguments of create_dataset) and options."""
    data = write_metadata(folder, "hdf5", box, **options)
    sound_arrays: dict[str, dict] = {
        "observations": {"data": np.zeros((steps + 1, *box["shape"]), box["dtype"])},
        "actions": {"data": np.zeros(steps, np.int64)},
        "rewards": {"data": np.ones(steps)},
        "terminations": {"data": np.zeros(steps, bool)},
    }
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for name, array in (sound_arrays | (arrays or {})).items():
            file.create_dataset(f"episode_0/{name}", **array)
    return folder


def fixed_strings(folder: Path) -> None:
    long = {"shape": (ROWS,), "dtype": "S1200000000", "chunks": (1,)}
    write_hdf5(folder, IMAGE_BOX, {"observations": long})


def millions_of_steps(folder: Path) -> None:
    steps = 30 * 2**20
    packed = {"chunks": (2**20,), "compression": "gzip", "compression_opts": 1}
    small = {"data": np.zeros(steps, np.uint8)} | packed
    ends = {"data": np.zeros(steps, bool)} | packed
    strings = {"shape": (steps + 1,), "dtype": "S1", "chunks": (2**20,)}
    arrays = {"actions": small, "rewards": small, "terminations": ends, "observations": strings}
    write_hdf5(folder, IMAGE_BOX, arrays)


def one_episode_many_times(folder: Path) -> None:
    write_hdf5(folder, steps=20_000)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        for i in range(1, 500):
            file[f"episode_{i}"] = file["episode_0"]
    path = folder / "data" / "metadata.json"
    path.write_text(path.read_text().replace('"total_episodes": 1', '"total_episodes": 500'))


def write_table(folder: Path, data_format: str, observations: Any, box: dict = VECTOR_BOX) -> Path:
    """Write a dataset of one episode in a table."""
    import pyarrow

    data = write_metadata(folder, data_format, box) / "0"
    data.mkdir()
    (data / "metadata.json").write_text("{}")
    rows = len(observations)
    columns = {"actions": 0, "rewards": 1.0, "terminations": False}
    arrays = {name: pyarrow.repeat(value, rows) for name, value in columns.items()}
    written = pyarrow.table({"observations": observations} | arrays)
    if data_format == "parquet":
        from pyarrow import parquet

        parquet.write_table(
            written, data / "part-0.parquet", store_schema=box is VECTOR_BOX, compression="zstd"
        )
    else:
        from pyarrow import ipc

        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(data / "part-0.arrow", written.schema, options=options) as file:
            file.write(written)
    return folder


def arrow_vectors(rows: int) -> Any:
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(4 * rows, np.float32)), 4)


def parquet_of_one_large_value(folder: Path) -> None:
    """8 MB of zeros, stored once and used in 300 rows."""
    import pyarrow

    indices = pyarrow.array(np.zeros(300, np.int32))
    write_table(
        folder, "parquet", pyarrow.DictionaryArray.from_arrays(indices, [bytes(2**23)]), IMAGE_BOX
    )


def parquet_of_many_rows(folder: Path) -> None:
    write_table(folder, "parquet", arrow_vectors(3_000_000))


def arrow_of_one_large_value(folder: Path) -> None:
    import pyarrow

    values = [bytes(2**27), *[b""] * (ROWS - 1)]
    write_table(folder, "arrow", pyarrow.array(values, pyarrow.binary()), IMAGE_BOX)


def frameskip(folder: Path) -> None:
    write_hdf5(folder, IMAGE_BOX, kwargs={"frameskip": 400_000_000})


def frame_skip_of_a_wrapper(folder: Path) -> None:
    wrapper = {"name": "AtariPreprocessing", "kwargs": {"frame_skip": 400_000_000}}
    write_hdf5(folder, IMAGE_BOX, additional_wrappers=[wrapper])


def many_values(folder: Path) -> None:
    write_hdf5(folder)
    (folder / "data" / "metadata.json").write_text("[" + "[]," * 2_000_000 + "[]]")


def large_metadata(folder: Path) -> None:
    write_hdf5(folder)
    (folder / "data" / "metadata.json").write_text("[" + "[]," * 20_000_000 + "[]]")


def deep_values(folder: Path) -> None:
    write_hdf5(folder)
    (folder / "data" / "metadata.json").write_text("[" * 400_000)


def endless_metadata(folder: Path) -> None:
    write_hdf5(folder)
    (folder / "data" / "metadata.json").unlink()
    (folder / "data" / "metadata.json").symlink_to("/dev/zero")


DATASETS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        fixed_strings,
        millions_of_steps,
        one_episode_many_times,
        parquet_of_one_large_value,
        parquet_of_many_rows,
        arrow_of_one_large_value,
        frameskip,
        frame_skip_of_a_wrapper,
        many_values,
        large_metadata,
        deep_values,
        endless_metadata,
    )
}


PYARROW_BOMBS = {name for name in DATASETS if name.startswith(("parquet", "arrow"))}
