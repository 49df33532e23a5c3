"""Demonstration sets with truncated, altered and hostile files."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from lookfurther.demos.storage import append_episodes, load_episodes, save_episodes
from lookfurther.errors import DemonstrationError
from tests.sample_episodes import VECTOR, change_description, episodes_equal, some_episodes
from tests.test_demos_sizes import IMAGES, image_episode


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a valid set that a test may damage."""
    return save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path) / "data"


def assert_load_fails(files: Path, expected: str = "") -> None:
    with pytest.raises(DemonstrationError, match=expected) as caught:
        load_episodes(str(files.parent), VECTOR)
    assert "\n" not in str(caught.value)
    assert str(files.parent) in str(caught.value)


@pytest.mark.parametrize("share", [0, 0.0001, 0.5, 0.999])
def test_truncated_file_is_an_error(files: Path, share: float) -> None:
    data = (files / "main_data.hdf5").read_bytes()
    (files / "main_data.hdf5").write_bytes(data[: int(len(data) * share)])
    assert_load_fails(files, "is not a readable demonstration set: ")


def test_flipped_bit_changes_nothing_or_is_an_error(files: Path) -> None:
    """Some bits of an HDF5 file have no meaning here. Any other flipped bit must be an error."""
    path, rng, errors = files / "main_data.hdf5", random.Random(0), {}
    data = path.read_bytes()
    with h5py.File(path) as file:
        data_of: Any = file["episode_1/observations"]
        planes = data_of.id.get_offset()
    offsets = [planes + 5, *(rng.randrange(len(data)) for _ in range(150))]
    for offset in offsets:
        altered = bytearray(data)
        altered[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        try:
            assert all(
                map(episodes_equal, load_episodes(str(files.parent), VECTOR), some_episodes())
            )
        except DemonstrationError as error:
            errors[offset] = str(error)
    assert "episode_1/observations is altered" in errors[planes + 5]
    assert len(errors) > 5


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"lookfurther": 3}', b'{"lookfurther": "[]"}'],
)
def test_malformed_metadata_is_an_error(files: Path, text: bytes) -> None:
    (files / "metadata.json").write_bytes(text)
    assert_load_fails(files, "is not a readable demonstration set: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda description: description.pop("spec"),
        lambda description: description.update(spec=[]),
        lambda description: description["spec"].pop("env"),
        lambda description: description.pop("episodes"),
        lambda description: description["episodes"].pop(),
        lambda description: description["episodes"].append(description["episodes"][0]),
        lambda description: description["episodes"][1].pop("seed"),
        lambda description: description["episodes"][1].update(rewards="0"),
        lambda description: description.update(episodes=[1, 2, 3]),
    ],
)
def test_inconsistent_description_is_an_error(files: Path, change: Callable[[dict], Any]) -> None:
    change_description(files, change)
    assert_load_fails(files, "is not a readable demonstration set: ")


@pytest.mark.parametrize("missing", ["metadata.json", "main_data.hdf5"])
def test_missing_file_is_an_error(files: Path, missing: str) -> None:
    (files / missing).unlink()
    assert_load_fails(files, missing)


def replace_dataset(files: Path, field: str, **options: Any) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file[f"episode_2/{field}"]
        file.create_dataset(f"episode_2/{field}", **options)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("observations", {"shape": (10**13, 2), "dtype": "f4", "chunks": (1024, 2)}),
        ("observations", {"shape": (10**9, 2), "dtype": "f4", "compression": "gzip"}),
        ("observations", {"shape": (2,), "dtype": h5py.vlen_dtype(np.uint8)}),
        ("rewards", {"data": ["text"], "dtype": h5py.string_dtype()}),
        ("actions", {"data": [1.5]}),
        ("terminations", {"data": [1.0]}),
    ],
)
def test_unexpected_shape_or_dtype_is_an_error_before_reading(
    files: Path, field: str, options: dict
) -> None:
    replace_dataset(files, field, **options)
    assert_load_fails(files, f"/episode_2/{field} cannot be ")


def test_episodes_with_shared_arrays_are_an_error(tmp_path: Path) -> None:
    """Each link to one episode has a few bytes, but would take the memory of the episode."""
    planes = np.random.default_rng(0).integers(0, 9, (100, 1, 84, 84)).astype(np.uint8)
    path = save_episodes("mine-v0", [image_episode(planes)], IMAGES, "me", tmp_path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for i in range(1, 20):
            file[f"episode_{i}"] = file["episode_0"]
    change_description(
        path / "data", lambda description: description.update(episodes=description["episodes"] * 20)
    )
    text = (path / "data" / "metadata.json").read_text()
    text = text.replace('"total_episodes": 1', '"total_episodes": 20')
    (path / "data" / "metadata.json").write_text(text)
    with pytest.raises(DemonstrationError, match="has arrays that are one and the same"):
        load_episodes(str(path), IMAGES)


@pytest.mark.parametrize(
    ("part", "field", "value", "reason"),
    [
        ("origin", "repeat", 400_000_000, r"repeat must be 1 \.\.\. 1024, not 400000000"),
        ("spec", "actions", 10**10, "its spec is not valid"),
        ("spec", "stack", 10**9, r"stack must be 1 \.\.\. 1024, not 1000000000"),
        ("spec", "plane", [10**4000] * 8, "its spec is not valid"),
        ("spec", "plane", [1] * 100_000, "its spec is not valid"),
    ],
)
def test_absurd_sizes_in_description_are_an_error(
    tmp_path: Path, part: str, field: str, value: Any, reason: str
) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    change_description(path / "data", lambda description: description[part].update({field: value}))
    with pytest.raises(DemonstrationError, match=reason):
        load_episodes(str(path), VECTOR)


def test_append_to_damaged_file_changes_nothing(tmp_path: Path) -> None:
    path = (
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
        / "data"
        / "main_data.hdf5"
    )
    damaged = (Path(__file__).parent / "hostile" / "endless_header.hdf5.gz").read_bytes()
    path.write_bytes(gzip.decompress(damaged))
    before = path.read_bytes()
    with pytest.raises(DemonstrationError, match="mine-v0 could not be added to"):
        append_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert path.read_bytes() == before


def test_full_disk_leaves_sets_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lookfurther.demos.episode_hdf5._write_array", full)
    with pytest.raises(DemonstrationError, match=r"other-v0 could not be written: .*No space left"):
        save_episodes("other-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"mine-v0 could not be added to: .*No space left"):
        append_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_env_id_with_module_is_an_error(files: Path) -> None:
    change_description(files, lambda description: description["spec"].update(env="hostile:Env-v0"))
    assert_load_fails(files, "'hostile:Env-v0' is not an id")


def test_claimed_score_must_match_rewards(files: Path) -> None:
    change_description(files, lambda description: description["episodes"][1].update(score=1e6))
    assert_load_fails(files, "a score of 1e\\+06 is claimed, the rewards are ")


def test_group_instead_of_array_is_an_error(files: Path) -> None:
    with h5py.File(files / "main_data.hdf5", "a") as file:
        del file["episode_2/actions"]
        file.create_group("episode_2/actions")
    assert_load_fails(files, "is not a readable demonstration set: ")


def test_loading_hostile_set_runs_no_code(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minari's own reader imports the module in env_spec if the spaces are missing."""
    import minari

    (tmp_path / "hostile.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metadata = json.loads((files / "metadata.json").read_text())
    del metadata["observation_space"], metadata["action_space"]
    metadata["env_spec"] = EnvSpec("Hostile-v0", entry_point="hostile:Env").to_json()
    (files / "metadata.json").write_text(json.dumps(metadata))
    assert len(load_episodes(str(files.parent), VECTOR)) == 3
    assert not (tmp_path / "ran").exists()
    with pytest.raises(AttributeError):
        minari.MinariDataset(files)
    assert (tmp_path / "ran").exists()  # Minari runs the code, so the test is meaningful
