"""Sets that are larger than they say, or too large."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from lookfurther.demos.episode import Episode
from lookfurther.demos.storage import load_episodes, save_episodes
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec
from tests.sample_episodes import VECTOR, change_description, episodes_equal, some_episodes

IMAGES = Spec("images", (1, 84, 84), 4, "uint8", 3, 255.0)


def image_episode(planes: np.ndarray) -> Episode:
    steps = len(planes) - 1
    return Episode(planes, np.zeros(steps, np.int64), np.ones(steps, np.float32), True)


def test_large_planes_are_deflated_and_load_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that compress, noise that does not, and blank images, which look like a bomb."""
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 256, (7, 7)), np.ones((12, 12), int))
    still = np.repeat(blocks[None, None], 300, 0).astype(np.uint8)
    still[:, 0, 0, :2] = np.arange(300)[:, None] % 256
    noise = rng.integers(0, 256, (200, 1, 84, 84)).astype(np.uint8)
    blank = np.zeros((300, 1, 84, 84), np.uint8)
    episodes = [image_episode(planes) for planes in (still, noise, blank)]
    monkeypatch.setattr("lookfurther.demos.episode_hdf5.MAX_EXPANSION", 120)
    path = save_episodes("mine-v0", episodes, IMAGES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        datasets: list[Any] = [file[f"episode_{i}/observations"] for i in range(3)]
        sizes = [dataset.nbytes / dataset.id.get_storage_size() for dataset in datasets]
    assert sizes[0] > 10
    assert 0.8 < sizes[1] < 1.2
    assert sizes[2] == 1
    assert all(map(episodes_equal, load_episodes("mine-v0", IMAGES, tmp_path), episodes))


def test_bomb_with_matching_description_is_not_read(tmp_path: Path) -> None:
    """A hundred megabytes of zeros in a small file."""
    path = save_episodes(
        "mine-v0", [image_episode(np.zeros((2, 1, 84, 84), np.uint8))], IMAGES, "me", tmp_path
    )
    steps = 15_000
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for field, shape in (("observations", (steps + 1, 1, 84, 84)), ("actions", (steps,))):
            chunk = (min(shape[0], 500), *shape[1:])
            zeros = np.zeros(shape, np.uint8 if field == "observations" else np.int64)
            options: dict[str, Any] = {"compression": "gzip", "chunks": chunk}
            file.create_dataset(f"episode_0/{field}", data=zeros, **options)
    change_description(
        path / "data", lambda description: description["episodes"][0].update(steps=steps)
    )
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match=r"cannot hold the .* bytes it claims"):
        load_episodes(str(path), IMAGES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_oversized_chunk_is_not_inflated(tmp_path: Path) -> None:
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [image_episode(planes)], IMAGES, "me", tmp_path)
    bomb = zlib.compress(bytes(2**28))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        data: Any = file["episode_0/observations"]
        data.id.write_direct_chunk((0, 0, 0, 0), bomb)
    tracemalloc.start()
    with pytest.raises(DemonstrationError, match="episode_0/observations is altered"):
        load_episodes(str(path), IMAGES)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_wider_dtype_than_described_is_an_error(tmp_path: Path) -> None:
    """The file has eight bytes for each byte in the description."""
    path = save_episodes(
        "mine-v0", [image_episode(np.zeros((9, 1, 84, 84), np.uint8))], IMAGES, "me", tmp_path
    )
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.zeros((9, 1, 84, 84), np.uint64)
    with pytest.raises(DemonstrationError, match="episode_0/observations cannot be uint64"):
        load_episodes(str(path), IMAGES)


def test_set_too_large_to_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookfurther.demos.bounded_json.MAX_JSON_VALUES", 50)
    with pytest.raises(DemonstrationError, match="mine-v0 is too large: make several sets of it"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert not (tmp_path / "mine-v0").exists()
