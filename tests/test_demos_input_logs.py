"""Sets with input logs: saved, appended and collected."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import PAD_ACTION, episode_from_log
from lookfurther.demos.storage import (
    append_episodes,
    list_ids,
    load_episodes,
    read_description,
    save_episodes,
)
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import make_envs
from lookfurther.envs.emulator import ACTION_MEANINGS, rom_digest
from lookfurther.errors import DemonstrationError

pytest.importorskip("ale_py")
from tests.test_demos_playback import PONG, SPEC, held_actions

# Storage


def test_saved_input_logs_load_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, writes, seed and audit load equal; Minari reads the frames as infos."""
    import minari

    input_log = InputLog(held_actions(20)[:-3], np.array([(7, 49, 120)], np.int32), seed=5)
    episode = episode_from_log(input_log, PONG)
    audit = verify_episode(episode, SPEC, EnvConfig())
    assert audit.verified
    episodes = [episode, episode_from_log(InputLog(held_actions(9)), PONG)]
    episodes[0] = type(episode)(**{**episode.__dict__, "audit": audit})
    save_episodes("pong/mine-v0", episodes, SPEC, "me", tmp_path)
    one, two = load_episodes("pong/mine-v0", SPEC, tmp_path)
    for loaded, saved in zip((one, two), episodes, strict=True):
        assert loaded.planes.tobytes() == saved.planes.tobytes()
        assert loaded.input_log is not None
        assert saved.input_log is not None
        assert loaded.input_log.frame_actions.tolist() == saved.input_log.frame_actions.tolist()
        assert loaded.input_log.ram_writes.tolist() == saved.input_log.ram_writes.tolist()
        assert (loaded.input_log.seed, loaded.audit) == (saved.input_log.seed, saved.audit)
        assert verify_episode(loaded, SPEC, EnvConfig()).verified
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari_episode = minari.load_dataset("pong/mine-v0")[0]
    assert (
        minari_episode.infos["frames"][1:].reshape(-1)[: len(input_log.frame_actions)].tolist()
        == input_log.frame_actions.tolist()
    )
    assert (minari_episode.infos["frames"][0] == PAD_ACTION).all()


def test_description_has_replay_settings(tmp_path: Path) -> None:
    env_config = EnvConfig(action_repeat=3, sticky_prob=0.25)
    episode = episode_from_log(InputLog(held_actions(6, 3), seed=11), PONG, 3, 0.25)
    save_episodes("mine-v0", [episode], SPEC, "me", tmp_path, env_config)
    described = read_description("mine-v0", tmp_path)
    origin = described.origin
    assert (origin.game, origin.repeat, origin.sticky) == ("pong", 3, 0.25)
    assert (origin.meanings, origin.rom) == (ACTION_MEANINGS, rom_digest("pong"))
    assert origin.library.startswith("ale-py ")
    (metadata,) = described.episodes
    assert (metadata.steps, metadata.score, metadata.is_verified) == (6, episode.score, False)
    assert metadata.reel is not None
    assert (metadata.reel.length, metadata.reel.seed) == (18, 11)
    assert len(load_episodes("mine-v0", SPEC, tmp_path, env_config)) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"action_repeat": 2}, "made with action repeat 4, the training environment has 2"),
        (
            {"sticky_prob": 0.25},
            "made with sticky probability 0, the training environment has 0.25",
        ),
    ],
)
def test_load_rejects_other_env_settings(tmp_path, settings, message) -> None:
    save_episodes(
        "mine-v0", [episode_from_log(InputLog(held_actions(3)), PONG)], SPEC, "me", tmp_path
    )
    with pytest.raises(DemonstrationError, match=f"^mine-v0 was {message}$"):
        load_episodes("mine-v0", SPEC, tmp_path, EnvConfig(**settings))


def test_appended_sets_are_listed_and_loaded(tmp_path: Path) -> None:
    episodes = [episode_from_log(InputLog(held_actions(3 + i, seed=i)), PONG) for i in range(4)]
    append_episodes("aa/one-v0", episodes[:1], SPEC, "me", tmp_path)
    append_episodes("aa/one-v0", episodes[1:3], SPEC, "me", tmp_path)
    save_episodes("two-v0", episodes[3:], SPEC, "me", tmp_path)
    (tmp_path / "broken-v0" / "data").mkdir(parents=True)
    assert sorted(list_ids(tmp_path)) == ["aa/one-v0", "broken-v0", "two-v0"]
    for loaded, saved in zip(load_episodes("aa/one-v0", SPEC, tmp_path), episodes[:3], strict=True):
        assert loaded.planes.tobytes() == saved.planes.tobytes()
        assert loaded.actions.tolist() == saved.actions.tolist()
    assert [s.steps for s in read_description("aa/one-v0", tmp_path).episodes] == [3, 4, 5]


def test_append_rejects_other_action_repeat(tmp_path: Path) -> None:
    episode = episode_from_log(InputLog(held_actions(3, 2)), PONG, 2)
    save_episodes("two-v0", [episode], SPEC, "me", tmp_path, EnvConfig(action_repeat=2))
    save_episodes(
        "four-v0", [episode_from_log(InputLog(held_actions(3)), PONG)], SPEC, "me", tmp_path
    )
    with pytest.raises(DemonstrationError, match=r"^four-v0 has repeat 4, the others 2$"):
        append_episodes("four-v0", [episode], SPEC, "me", tmp_path, EnvConfig(action_repeat=2))
    assert len(load_episodes("four-v0", SPEC, tmp_path)) == 1
    assert sorted(list_ids(tmp_path)) == ["four-v0", "two-v0"]


def test_interrupted_append_leaves_set_unchanged(tmp_path: Path) -> None:
    """An append that is killed before it writes the metadata adds nothing; the next one works."""
    episodes = [episode_from_log(InputLog(held_actions(3 + i, seed=i)), PONG) for i in range(3)]
    data = save_episodes("mine-v0", episodes[:1], SPEC, "me", tmp_path) / "data"
    before = (data / "metadata.json").read_bytes()
    append_episodes("mine-v0", episodes[1:2], SPEC, "me", tmp_path)
    (data / "metadata.json").write_bytes(before)
    assert [len(e) for e in load_episodes("mine-v0", SPEC, tmp_path)] == [3]
    append_episodes("mine-v0", episodes[2:], SPEC, "me", tmp_path)
    assert [len(e) for e in load_episodes("mine-v0", SPEC, tmp_path)] == [3, 5]
    assert {p.name for p in data.iterdir()} == {"metadata.json", "main_data.hdf5"}


# Collection


def test_collected_atari_episodes_have_input_logs() -> None:
    """No-op steps, then the actions of the policy; the episodes verify."""
    observations = []

    def act(observation: np.ndarray) -> int:
        observations.append(observation.copy())
        return len(observations) % 18

    env_config = EnvConfig(noop_max=30, max_episode_length=12, sticky_prob=0.25)
    episodes, spec = collect_episodes(PONG, env_config, ObservationPolicy(act), range(3))
    assert spec == SPEC
    noop_steps = [
        len(e) - n
        for e, n in zip(
            episodes, np.diff([0, *_episode_starts(observations), len(observations)]), strict=True
        )
    ]
    assert max(noop_steps) > 0
    assert all(0 <= n <= 7 for n in noop_steps)
    for episode, lead in zip(episodes, noop_steps, strict=True):
        assert len(episode) == 12
        assert not episode.terminal
        assert (episode.actions[:lead] == 0).all()
        assert verify_episode(episode, spec, env_config).verified
    stack = np.concatenate([np.zeros((3, 84, 84), np.uint8), episodes[0].planes[:, 0]])
    assert np.array_equal(observations[0], stack[noop_steps[0] : noop_steps[0] + 4])


def _episode_starts(observations: list[np.ndarray]) -> list[int]:
    """The indices of the observations at which the second and later episodes begin."""
    continues = [np.array_equal(a[1:], b[:-1]) for a, b in pairwise(observations)]
    return [i + 1 for i, is_same in enumerate(continues) if not is_same]


def test_collected_game_over_is_terminal() -> None:
    (episode,), spec = collect_episodes("ALE/Breakout-v5", EnvConfig(), lambda _: lambda: 1, [0])
    assert episode.terminal
    assert verify_episode(episode, spec, EnvConfig()).verified


def test_game_without_fire_has_nine_actions(tmp_path: Path) -> None:
    """The action index of the environment is then not the action id of the emulator."""
    env, env_config = "ALE/Skiing-v5", EnvConfig(noop_max=0, max_episode_length=12)
    (episode,), spec = collect_episodes(env, env_config, ObservationPolicy(lambda _: 8), [0])
    assert spec.actions == 9
    assert episode.input_log is not None
    assert (set(episode.actions), set(episode.input_log.frame_actions)) == ({8}, {9})
    assert episode_from_log(episode.input_log, env).actions.tolist() == episode.actions.tolist()
    assert verify_episode(episode, spec, env_config).verified
    save_episodes("mine-v0", [episode], spec, "me", tmp_path)
    meanings = read_description("mine-v0", tmp_path).origin.meanings
    assert (len(meanings), meanings[1], meanings[8]) == (9, "UP", "DOWNLEFT")
    envs = make_envs(env, env_config, 1, 0, 1)
    envs.reset()
    for plane in episode.planes[
        1:-1
    ]:  # at the maximum length, the vector environment returns no new plane
        envs.send(np.array([8]))
        assert np.array_equal(envs.recv().observation[0, -1:], plane)
    envs.close()
    with pytest.raises(
        DemonstrationError, match="the input log has actions that skiing does not have"
    ):
        episode_from_log(InputLog(np.ones(4, np.uint8)), env)


def test_collect_requires_full_actions() -> None:
    with pytest.raises(DemonstrationError, match=r"leave environment\.full_actions on"):
        collect_episodes(PONG, EnvConfig(full_actions=False), ObservationPolicy(lambda _: 0), [0])
