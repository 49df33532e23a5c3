"""Demonstrations from arrays: saved, loaded and learned from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther import Episode, LookFurtherError, load_demos, replace, save_demos, train
from tests.test_python_interface import VECTORS, cartpole, play_cartpole
from tests.training_runs import tiny_config


def test_episode_from_arrays_is_saved_trained_with_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    episodes = [play_cartpole(seed) for seed in range(2)]
    path = save_demos("cartpole/rule-v0", episodes, "CartPole-v1", author="a rule")
    assert path == tmp_path / "sets" / "cartpole" / "rule-v0"
    for name in ("cartpole/rule", "cartpole/rule-v0", path):
        for saved, loaded in zip(episodes, load_demos(name), strict=True):
            assert np.array_equal(saved.planes, loaded.planes)
            assert np.array_equal(saved.actions, loaded.actions)
            assert np.array_equal(saved.rewards, loaded.rewards)
            assert (saved.terminal, saved.seed) == (loaded.terminal, loaded.seed)
    one_set = save_demos("one", episodes[0], cartpole, folder=tmp_path / "other")
    assert load_demos(one_set)[0].score == episodes[0].score
    config = tiny_config(tmp_path / "run", run__steps=200, learner__expert_items=4)
    summary = train(replace(config, demos=("cartpole/rule",)), quiet=True)
    assert summary.stop_reason == "done"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "plane", "stored"),
    [
        ((3, 4), np.float64, "hwc", (4,), "float32"),
        ((3, 4), np.int64, "hwc", (4,), "float32"),
        ((3, 5, 6), np.uint8, "hwc", (1, 5, 6), "uint8"),
        ((3, 5, 6, 2), np.int64, "hwc", (2, 5, 6), "uint8"),
        ((3, 2, 5, 6), np.float64, "chw", (2, 5, 6), "float32"),
    ],
)
def test_observations_become_planes(
    shape: tuple[int, ...], dtype: Any, layout: str, plane: tuple[int, ...], stored: str
) -> None:
    values = (np.arange(np.prod(shape)) % 200).reshape(shape).astype(dtype)
    episode = Episode.from_arrays(values, [0, 1], [1, 2], terminal=False, layout=layout)
    assert episode.planes.shape == (3, *plane)
    assert str(episode.planes.dtype) == stored
    assert (episode.terminal, episode.score, len(episode)) == (False, 3.0, 2)
    if len(shape) == 4 and layout == "hwc":
        assert episode.planes[1, 1, 2, 3] == values[1, 2, 3, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((np.zeros(3), [0, 1], [0, 0]), "observations must be T + 1 vectors or images"),
        ((["a", "b", "c"], [0, 1], [0, 0]), "observations must be T + 1 vectors or images"),
        (([[1], [1, 2]], [0], [0]), "observations cannot be an array"),
        ((np.full((3, 5, 5), 300), [0, 1], [0, 0]), "images of 0 to 255 or of floats, not of 300"),
        ((VECTORS, [0.5, 1.0], [0, 0]), "actions must be a list of whole numbers"),
        ((VECTORS, [[0], [1]], [0, 0]), "actions must be a list of whole numbers"),
        ((VECTORS, [0, 1], ["a", "b"]), "rewards must be a list of numbers"),
        ((VECTORS, [0, 1], [0]), "not 2 actions, 1 rewards and 3 observations"),
        ((VECTORS, [0, 1, 1], [0, 0, 0]), "an episode of T actions has T rewards and T + 1"),
    ],
)
def test_wrong_arrays_are_named(arrays: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(LookFurtherError, match=re.escape(message)):
        Episode.from_arrays(*arrays)


@pytest.mark.parametrize(
    ("name", "episodes", "env", "message"),
    [
        ("a", [], "CartPole-v1", "a holds no episodes"),
        ("a", [5], "CartPole-v1", "episodes must be Episodes, not int: Episode.from_arrays"),
        ("a", 5, "CartPole-v1", "episodes must be a list of Episodes, not int"),
        ("a", [Episode.from_arrays(VECTORS, [0, 1], [0, 0])], "Acrobot-v1", "planes (4,), but"),
        ("a", [Episode.from_arrays(VECTORS, [0, 7], [0, 0])], "CartPole-v1", "outside 0 ... 1"),
        ("a b", [Episode.from_arrays(VECTORS, [0, 1], [0, 0])], "CartPole-v1", "a b"),
        ("a", [Episode.from_arrays(VECTORS, [0, 1], [0, 0])], "Nope-v0", "env 'Nope-v0'"),
    ],
)
def test_wrong_demonstrations_are_not_saved(
    name: str, episodes: Any, env: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(LookFurtherError, match=re.escape(message)):
        save_demos(name, episodes, env, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_load_demos_suggests_a_similar_set() -> None:
    with pytest.raises(LookFurtherError, match=r"did you mean shipped/montezuma-revenge\?$"):
        load_demos("shipped/montezuma")
