"""Demonstration sets on disk."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.storage import load_episodes, save_episodes
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec
from tests.sample_episodes import VECTOR, episodes_equal, some_episodes

FILES = {
    "vectors": VECTOR,
    # Minari stores such planes as JPEG.
    "photographs": Spec("photos", (16, 16, 3), 4, "uint8", 5, 255.0),
    "floats": Spec("field", (2, 3, 4), 1, "float32", 2, 1.0),
}


@pytest.fixture(scope="module", params=FILES)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = FILES[request.param]
    root = tmp_path_factory.mktemp(request.param)
    episodes = some_episodes(spec)
    if spec.dtype == "float32":
        episodes[0].planes.flat[-3:] = -0.0, 1e-45, np.finfo(np.float32).max
    return spec, episodes, root, save_episodes("tests/demo-v0", episodes, spec, "a test", root)


def test_saved_set_loads_bit_for_bit(stored: Any) -> None:
    spec, episodes, root, path = stored
    for loaded in (load_episodes("tests/demo-v0", spec, root), load_episodes(str(path), spec)):
        assert len(loaded) == len(episodes)
        assert all(map(episodes_equal, loaded, episodes))


def test_minari_reads_saved_set(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari
    from minari.cli import app
    from minari.namespace import list_local_namespaces
    from typer.testing import CliRunner

    _, episodes, root, _ = stored
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    assert list(minari.list_local_datasets()) == ["tests/demo-v0"]
    assert list_local_namespaces() == ["tests"]
    for arguments, expected in (
        (["list", "local"], r"tests/dem\S* .* 3 .* 9 "),
        (["show", "tests/demo-v0"], "Total Steps"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0
        assert re.search(expected, result.output)
    dataset = minari.load_dataset("tests/demo-v0")
    for saved, read in zip(episodes, dataset.iterate_episodes(), strict=True):
        assert np.asarray(read.observations).tobytes() == saved.planes.tobytes()
        assert read.actions.tolist() == saved.actions.tolist()
        assert read.rewards.astype(np.float32).tolist() == saved.rewards.tolist()
        assert read.terminations.tolist() == [False] * (len(saved) - 1) + [saved.terminal]
        assert read.truncations.tolist() == [False] * (len(saved) - 1) + [not saved.terminal]


def test_stored_env_spec_is_built_only_by_minari(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    input_log = InputLog(np.zeros(12, np.uint8))
    pong, sticky = "ALE/Pong-v5", EnvConfig(sticky_prob=0.25, action_repeat=3)
    spec = get_spec(pong, sticky)
    data = (
        save_episodes(
            "pong-v0", [episode_from_log(input_log, pong, 3, 0.25)], spec, "me", env_config=sticky
        )
        / "data"
    )
    save_episodes(
        "cart-v0", *collect_episodes("CartPole-v1", EnvConfig(), lambda _: lambda: 0, [0]), "me"
    )
    with minari.load_dataset("pong-v0").recover_environment() as env:
        assert env.action_space == gymnasium.spaces.Discrete(18)
        assert env.observation_space.shape == (210, 160)
        assert env.spec is not None
        assert env.spec.max_episode_steps is not None  # d3rlpy needs it
        assert env.spec.kwargs["frameskip"] == 3
        assert env.spec.kwargs["repeat_action_probability"] == 0.25
    with minari.load_dataset("cart-v0").recover_environment() as env:
        assert env.observation_space.shape == (4,)
    metadata = json.loads((data / "metadata.json").read_text())
    metadata["env_spec"] = EnvSpec("CartPole-v1", entry_point="no.such.module:Env").to_json()
    (data / "metadata.json").write_text(json.dumps(metadata))
    monkeypatch.setattr(gymnasium, "make", None)
    assert len(load_episodes("pong-v0", spec, env_config=sticky)) == 1


def test_unregistered_environment_has_no_env_spec(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    assert "env_spec" not in json.loads((path / "data" / "metadata.json").read_text())


def test_save_rejects_taken_and_malformed_names(tmp_path: Path) -> None:
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match="a set named mine-v0 exists"):
        save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    save_episodes("mine-v1", some_episodes()[:1], VECTOR, "me", tmp_path)
    assert len(load_episodes("mine-v0", VECTOR, tmp_path)) == 3
    with pytest.raises(DemonstrationError, match=r"Malformed dataset ID: no version\."):
        save_episodes("no version", some_episodes(), VECTOR, "me", tmp_path)


def test_root_argument_overrides_minari_datasets_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "users"))
    save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path / "other")
    assert os.environ["MINARI_DATASETS_PATH"] == str(tmp_path / "users")
    save_episodes("mine-v0", some_episodes()[:2], VECTOR, "me")
    assert len(load_episodes("mine-v0", VECTOR)) == 2
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    assert len(load_episodes("mine-v0", VECTOR, tmp_path / "other")) == 3
    assert "MINARI_DATASETS_PATH" not in os.environ


@pytest.mark.parametrize("name", ["nothing-v0", "a/b-v3", "no version", "/nowhere/at/all"])
def test_missing_set_error_names_set(tmp_path: Path, name: str) -> None:
    with pytest.raises(DemonstrationError, match=f"^no demonstrations named {name}: make or "):
        load_episodes(name, VECTOR, tmp_path)


@pytest.mark.parametrize("change", [{"env": "other"}, {"actions": 4}, {"actions": 2}])
def test_load_rejects_other_environment_or_action_count(tmp_path: Path, change: dict) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    spec = VECTOR._replace(**change)
    expected = f"{path} shows toy with 3 actions, the training environment is {spec.env} with"
    with pytest.raises(DemonstrationError, match=re.escape(f"{expected} {spec.actions}")):
        load_episodes(str(path), spec)


def test_load_rejects_other_plane_shape(tmp_path: Path) -> None:
    path = save_episodes("mine-v0", some_episodes(), VECTOR, "me", tmp_path)
    with pytest.raises(DemonstrationError, match=r"episode 0: planes \(2,\), but toy shows \(5,\)"):
        load_episodes(str(path), VECTOR._replace(plane=(5,)))
