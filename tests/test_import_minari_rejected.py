"""Minari datasets that cannot be replayed or are hostile are rejected."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from lookfurther.demos.importers import import_demos
from lookfurther.envs.emulator import resize_by_area
from lookfurther.errors import DemonstrationError
from tests.imported_demos import only_episode
from tests.minari_datasets import SEED, ignore_user_warnings, make_atari_env, make_minari_dataset

pytest.importorskip("ale_py")


def black_plane(screen: np.ndarray) -> np.ndarray:
    return np.zeros((84, 84), np.uint8)


def rgb_plane(screen: np.ndarray) -> np.ndarray:
    return np.repeat((255 - resize_by_area(screen[..., 0]))[..., None], 3, -1)


def float_plane(screen: np.ndarray) -> np.ndarray:
    return (1 - resize_by_area(screen[..., 0]) / np.float32(255)).astype(np.float32)


@ignore_user_warnings
@pytest.mark.parametrize(
    ("look", "message"),
    [
        (black_plane, "its pictures are black"),
        (rgb_plane, r"\(84, 84, 3\) are neither screens nor gr"),
    ],
)
def test_force_rejects_black_or_rgb_planes(tmp_path, monkeypatch, look, message) -> None:
    shape = look(np.zeros((210, 160, 3), np.uint8)).shape
    box = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 0)
    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), look, jpeg_encoding=False, observation_space=box
    )
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path, force=True)


@ignore_user_warnings
def test_forced_float_planes_are_scaled_to_uint8(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 0)
    box = gymnasium.spaces.Box(0, 1, (84, 84), np.float32)
    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), float_plane, observation_space=box
    )
    first, _ = make_atari_env().reset(seed=SEED)
    planes = only_episode(import_demos(path, force=True)).planes
    assert np.array_equal(planes[0, 0], np.rint(255 * float_plane(first)).astype(np.uint8))


class Camera(gymnasium.Env):
    """RGB observations of 6 x 8 pixels."""

    spec = EnvSpec("Camera-v0", entry_point="tests.test_import_minari_rejected:Camera")
    observation_space = gymnasium.spaces.Box(0, 255, (6, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


@ignore_user_warnings
@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda x: x.transpose(2, 0, 1), r"observations are \(3, 6, 8\), those of Camera-v0"),
        (lambda x: (x / 255).astype(np.float32), "are float32, those of Camera-v0 integers"),
    ],
)
def test_force_rejects_other_layout_or_dtype(tmp_path, monkeypatch, look, message) -> None:
    monkeypatch.setitem(gymnasium.registry, "Camera-v0", Camera.spec)
    sample = look(np.zeros((6, 8, 3), np.uint8))
    box = gymnasium.spaces.Box(0, 255, sample.shape, sample.dtype.type)
    path = make_minari_dataset(
        tmp_path, monkeypatch, Camera(), look, None, jpeg_encoding=False, observation_space=box
    )
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path, force=True)


@ignore_user_warnings
def test_dataset_never_runs_code_it_names(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path / "sets", monkeypatch, gymnasium.make("CartPole-v1"))
    (tmp_path / "hostile.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'marker')!r}).touch()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metadata = json.loads((path / "data" / "metadata.json").read_text())
    for name in ("CartPole-v1", "hostile:CartPole-v1"):
        metadata["env_spec"] = EnvSpec(name, entry_point="hostile:Env").to_json()
        (path / "data" / "metadata.json").write_text(json.dumps(metadata))
        if ":" in name:
            with pytest.raises(DemonstrationError, match="give --env"):
                import_demos(path)
        else:
            assert only_episode(import_demos(path)).audit
    assert only_episode(import_demos(path, "CartPole-v1")).audit
    assert not (tmp_path / "marker").exists()


@ignore_user_warnings
@pytest.mark.parametrize(
    ("field", "what", "message"),
    [
        ("observations", {"shape": (10**12, 4), "dtype": "f4", "chunks": (99, 4)}, "cannot be"),
        ("rewards", {"shape": (10**9,), "dtype": "f8", "compression": "gzip"}, "cannot be"),
        ("actions", {"data": ["up"], "dtype": h5py.string_dtype()}, "cannot be object"),
        ("actions", {"data": [0, 1]}, "actions|observations"),
        ("actions", {"data": [9] * 5}, "actions|space"),
    ],
)
def test_hostile_hdf5_dataset_is_rejected(tmp_path, monkeypatch, field, what, message) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"))
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_0/{field}"]
        file.create_dataset(f"episode_0/{field}", **what)
    with pytest.raises(DemonstrationError, match=message):
        import_demos(path)


@ignore_user_warnings
def test_hdf5_external_links_are_not_followed(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"))
    data = path / "data" / "main_data.hdf5"
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["rewards"] = np.zeros(3)
    with h5py.File(data, "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "rewards")
    with pytest.raises(DemonstrationError, match="has no rewards of its own"):
        import_demos(path)
