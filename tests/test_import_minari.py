"""Minari datasets of other tools are restored by replay."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import RecordConstructorArgs

from lookfurther.demos.align import imitation_score
from lookfurther.demos.episode import InputLog
from lookfurther.demos.importers import import_demos
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.storage import load_episodes, save_episodes
from lookfurther.demos.storage import read_description as describe_set
from lookfurther.envs.emulator import DEFAULT_VARIANT, resize_by_area
from lookfurther.errors import DemonstrationError, LookFurtherError
from tests.imported_demos import assert_verified, only_episode
from tests.minari_datasets import (
    SEED,
    STEPS,
    ignore_user_warnings,
    make_atari_env,
    make_minari_dataset,
)
from tests.sample_recordings import GAME, OWN_ACTIONS

pytest.importorskip("ale_py")


@ignore_user_warnings
@pytest.mark.parametrize(
    ("data_format", "jpeg", "options"),
    [
        ("hdf5", False, {}),
        ("hdf5", True, {"full_action_space": True}),
        ("hdf5", False, {"repeat_action_probability": 0.5}),
        ("arrow", True, {}),
        ("parquet", False, {}),
    ],
)
def test_minari_screens_are_restored_by_replay(
    tmp_path, monkeypatch, data_format, jpeg, options
) -> None:
    """JPEG loss does not matter if the actions lead to the same rewards and last screen."""
    if data_format != "hdf5":
        pytest.importorskip("pyarrow")
    path = make_minari_dataset(
        tmp_path,
        monkeypatch,
        make_atari_env(**options),
        data_format=data_format,
        jpeg_encoding=jpeg,
    )
    imported = import_demos(path)
    episode = only_episode(imported)
    assert len(episode) == STEPS
    assert_verified(imported, episode.score)
    assert imported.env_config.sticky_prob == options.get("repeat_action_probability", 0.0)
    save_episodes("ours-v0", imported.episodes, imported.spec, "me", tmp_path, imported.env_config)


@ignore_user_warnings
def test_minari_planes_after_noops_are_replayed(tmp_path, monkeypatch) -> None:
    """The dataset stacks planes of its own preprocessing and starts after some no-ops."""

    def stack(screen: np.ndarray) -> np.ndarray:
        plane = resize_by_area(screen.mean(-1).astype(np.uint8))
        return np.stack([plane * 0, plane * 0, plane * 0, plane], -1)

    box = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    env = make_atari_env(frameskip=4)
    path = make_minari_dataset(
        tmp_path, monkeypatch, env, stack, noops=5, jpeg_encoding=False, observation_space=box
    )
    imported = import_demos(path)
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    assert len(episode.input_log.frame_actions) == 4 * (5 + STEPS)
    assert (episode.input_log.frame_actions[:20] == 0).all()


class AtariPreprocessing(gymnasium.Wrapper, RecordConstructorArgs):
    """The action handling of Gymnasium's wrapper of this name, which needs OpenCV."""

    def __init__(self, env: gymnasium.Env, noop_max: int = 30, frame_skip: int = 4) -> None:
        RecordConstructorArgs.__init__(self, noop_max=noop_max, frame_skip=frame_skip)
        super().__init__(env)
        self.noop_max, self.frame_skip = noop_max, frame_skip
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)

    def reset(self, **options: Any) -> Any:
        screen, info = self.env.reset(**options)
        for _ in range(self.unwrapped.np_random.integers(1, self.noop_max + 1)):
            screen, *_ = self.env.step(0)
        return resize_by_area(screen.mean(-1).astype(np.uint8)), info

    def step(self, action: Any) -> Any:
        total, screen, ends = 0.0, np.zeros(0), (False, False)
        for _ in range(self.frame_skip):
            screen, reward, *ends, _ = self.env.step(action)
            total += float(reward)
            if any(ends):
                break
        return resize_by_area(screen.mean(-1).astype(np.uint8)), total, *ends, {}


@ignore_user_warnings
def test_minari_phase_follows_atari_preprocessing_noops(tmp_path, monkeypatch) -> None:
    """Each step then holds one action, and playing the steps gives the score."""
    env = AtariPreprocessing(make_atari_env(frameskip=1), noop_max=30)
    path = make_minari_dataset(tmp_path, monkeypatch, env, jpeg_encoding=False)
    imported = import_demos(path)
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    noops = len(episode.input_log.frame_actions) - 4 * STEPS
    assert noops % 4
    assert episode.input_log.phase == noops % 4
    assert episode.audit is not None
    assert episode.audit.ambiguous == 0
    assert episode.audit.checks == {"rewards": STEPS, "end": 1, "last_picture": 1}
    assert imitation_score(episode, GAME, 4) == episode.score > 0


@ignore_user_warnings
def test_minari_mismatch_rejected_or_marked_when_forced(tmp_path, monkeypatch) -> None:
    def stranger(screen: np.ndarray) -> np.ndarray:
        return 255 - screen

    path = make_minari_dataset(
        tmp_path, monkeypatch, make_atari_env(), stranger, jpeg_encoding=False
    )
    monkeypatch.setattr("lookfurther.demos.importers.minari.MAX_NOOPS", 1)
    with pytest.raises(DemonstrationError, match="episode 0: its actions do not lead to its rew"):
        import_demos(path)
    imported = import_demos(path, force=True)
    episode = only_episode(imported)
    assert episode.audit is not None
    assert not episode.audit.verified
    assert episode.input_log is None
    assert (len(episode), episode.planes.shape) == (STEPS, (STEPS + 1, 1, 84, 84))
    chosen = np.random.default_rng(0)  # as in `stored`, of the game's own actions
    picks = [1 if i % 9 == 0 else int(chosen.integers(len(OWN_ACTIONS))) for i in range(STEPS)]
    assert episode.actions.tolist() == [OWN_ACTIONS[i] for i in picks]
    save_episodes("ours-v0", imported.episodes, imported.spec, "me", tmp_path, imported.env_config)


@ignore_user_warnings
def test_minari_mode_and_difficulty_are_kept_and_compared(tmp_path, monkeypatch) -> None:
    """Such a set replays, and training in the default variant rejects it."""
    chosen = gymnasium.make(
        "ALE/Freeway-v5", repeat_action_probability=0.0, frameskip=4, mode=1, difficulty=1
    )
    imported = import_demos(make_minari_dataset(tmp_path, monkeypatch, chosen, jpeg_encoding=False))
    episode = assert_verified(imported, only_episode(imported).score)
    assert episode.input_log is not None
    assert episode.input_log.variant == (1, 1)
    save_episodes("hard-v0", [episode], imported.spec, "me", tmp_path)
    with pytest.raises(
        DemonstrationError, match=r"^hard-v0 was made with mode 1 of the game, the training env"
    ):
        load_episodes("hard-v0", imported.spec, tmp_path)
    (facts,) = describe_set("hard-v0", tmp_path).episodes
    assert facts.reel is not None
    assert facts.reel.variant == (1, 1)
    assert episode_from_log(
        InputLog(episode.input_log.frame_actions), "ALE/Freeway-v5"
    ).planes.tobytes() != (episode.planes.tobytes())


@ignore_user_warnings
def test_explicit_default_mode_is_default_variant(tmp_path, monkeypatch) -> None:
    same = gymnasium.make(GAME, repeat_action_probability=0.0, frameskip=4, mode=0, difficulty=0)
    path = make_minari_dataset(tmp_path, monkeypatch, same, jpeg_encoding=False)
    episode = only_episode(import_demos(path))
    assert episode.input_log is not None
    assert episode.input_log.variant == DEFAULT_VARIANT
    data = path / "data" / "metadata.json"
    for mode, message in (
        (77, "asterix has no mode 77: it has 0"),
        ("1", "its mode cannot be '1'"),
    ):
        metadata = json.loads(data.read_text())
        named = json.loads(metadata["env_spec"])
        named["kwargs"]["mode"] = mode
        metadata["env_spec"] = json.dumps(named)
        data.write_text(json.dumps(metadata))
        with pytest.raises(LookFurtherError, match=message):
            import_demos(path)


@ignore_user_warnings
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_minari_gymnasium_dataset_is_verified(tmp_path, monkeypatch, data_format) -> None:
    if data_format != "hdf5":
        pytest.importorskip("pyarrow")
    path = make_minari_dataset(
        tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), data_format=data_format
    )
    imported = import_demos(path)
    episode = assert_verified(imported, len(only_episode(imported)))
    assert episode.seed == SEED
    assert episode.terminal
    assert imported.spec.env == "CartPole-v1"


@ignore_user_warnings
def test_episode_without_seed_is_unverified(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), seed=None)
    audit = only_episode(import_demos(path)).audit
    assert audit is not None
    assert not audit.verified
    assert "neither a seed nor an input log" in audit.mismatch


@ignore_user_warnings
def test_observations_of_other_seed_are_rejected(tmp_path, monkeypatch) -> None:
    path = make_minari_dataset(tmp_path, monkeypatch, gymnasium.make("CartPole-v1"), seed=SEED + 1)
    with pytest.raises(DemonstrationError, match="episode 0: step 0: 4 of 4 values of the plane"):
        import_demos(path)
    audit = only_episode(import_demos(path, force=True)).audit
    assert audit is not None
    assert not audit.verified
