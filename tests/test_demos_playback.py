"""Playback of input logs: majority actions, storage, and logs of collected episodes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import EnvConfig
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import InputLog, check_episodes
from lookfurther.demos.playback import (
    PAD_ACTION,
    GameOverError,
    block_majority,
    episode_from_log,
    frames_by_step,
    truncate_log,
)
from lookfurther.demos.storage import (
    append_episodes,
    list_ids,
    load_episodes,
    read_description,
    save_episodes,
)
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import make_envs
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator, rom_digest
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

pytest.importorskip("ale_py")

PONG = "ALE/Pong-v5"
SPEC = Spec(PONG, (1, 84, 84), 4, "uint8", 18, 255.0)


def held_actions(steps: int, action_repeat: int = 4, seed: int = 0) -> np.ndarray:
    """Random actions, each held for one step."""
    return np.repeat(np.random.default_rng(seed).integers(0, 18, steps), action_repeat).astype(
        np.uint8
    )


def test_block_majority_matches_hand_computed_actions() -> None:
    frames = np.array([3, 3, 3, 3, 1, 2, 2, 1, 5, 6, 6, 6, 7, 8, 9, 9, 4, 2], np.uint8)
    rows = frames_by_step(frames, 4)
    assert rows[-1].tolist() == [4, 2, PAD_ACTION, PAD_ACTION]
    actions, ambiguous = block_majority(rows)
    assert actions.tolist() == [3, 1, 6, 9, 4]
    assert ambiguous == 4


@given(st.lists(st.integers(0, 17), min_size=1, max_size=40), st.integers(1, 6))
def test_block_majority_is_most_common_then_earliest(played: list, repeat: int) -> None:
    actions, ambiguous = block_majority(frames_by_step(np.array(played, np.uint8), repeat))
    parts = [played[i : i + repeat] for i in range(0, len(played), repeat)]
    assert actions.tolist() == [Counter(part).most_common(1)[0][0] for part in parts]
    assert ambiguous == sum(len(set(part)) > 1 for part in parts)


@pytest.mark.parametrize("repeat", [1, 3, 4])
def test_log_of_held_actions_matches_emulator_steps(repeat: int) -> None:
    frames = held_actions(30, repeat)
    episode = episode_from_log(InputLog(frames), PONG, repeat)
    emulator = Emulator(PONG, repeat)
    assert np.array_equal(episode.planes[0], emulator.current_plane())
    for t, action in enumerate(frames[::repeat].tolist()):
        plane, reward, _ = emulator.step(action)
        assert np.array_equal(episode.planes[t + 1], plane)
        assert (episode.actions[t], episode.rewards[t]) == (action, reward)
    assert (len(episode), episode.terminal) == (30, False)
    check_episodes([episode], SPEC, "a log")


def test_last_partial_step_is_kept() -> None:
    """Its frames count, even if there is only one."""
    emulator, frames = Emulator("ALE/Breakout-v5", 1), []
    score, choices = 0.0, np.random.default_rng(1).integers(0, 4, 600)
    while not score:
        frames.append((0, 1, 3, 4)[choices[len(frames)]])
        score += emulator.step_frame(frames[-1])
    for repeat in (4, len(frames) - 1, len(frames)):
        episode = episode_from_log(InputLog(np.array(frames, np.uint8)), "ALE/Breakout-v5", repeat)
        assert len(episode) == -(-len(frames) // repeat)
        assert episode.rewards[-1] == episode.score == score


def test_ram_writes_precede_their_frame() -> None:
    """The result equals a manual replay with the same writes; without them the game differs."""
    writes = np.array([(40, 49, 120), (40, 54, 90), (90, 49, 30)], np.int32)
    input_log = InputLog(held_actions(40), writes)
    emulator = Emulator(PONG)
    for i, action in enumerate(input_log.frame_actions.tolist()):
        for _, address, value in writes[writes[:, 0] == i].tolist():
            emulator.write_ram(address, value)
        emulator.step_frame(action)
    played = episode_from_log(input_log, PONG)
    assert np.array_equal(played.planes[-1], emulator.current_plane())
    unwritten = episode_from_log(InputLog(input_log.frame_actions), PONG)
    assert np.array_equal(played.planes[:11], unwritten.planes[:11])
    assert not np.array_equal(played.planes[11:], unwritten.planes[11:])
    assert truncate_log(input_log, 50).ram_writes.tolist() == [[40, 49, 120], [40, 54, 90]]


def test_log_longer_than_game_raises_game_over() -> None:
    frames = np.full(6000, 1, np.uint8)
    with pytest.raises(GameOverError, match=r"^the game is over at frame \d+ of 6000$") as caught:
        episode_from_log(InputLog(frames), "ALE/Breakout-v5")
    whole = episode_from_log(InputLog(frames[: caught.value.frames_played]), "ALE/Breakout-v5")
    assert whole.terminal


@pytest.mark.parametrize(
    ("frames", "writes", "seed"),
    [
        (np.array([18], np.uint8), [], 0),
        (np.array([1], np.int64), [], 0),
        (np.zeros((2, 2), np.uint8), [], 0),
        (np.zeros(2, np.uint8), [(2, 0, 0)], 0),
        (np.zeros(2, np.uint8), [(0, 128, 0)], 0),
        (np.zeros(2, np.uint8), [(0, 0, 256)], 0),
        (np.zeros(2, np.uint8), [(0, -1, 0)], 0),
        (np.zeros(2, np.uint8), [(1, 0, 0), (0, 0, 0)], 0),
        (np.zeros(2, np.uint8), [], 2**31),
    ],
)
def test_invalid_input_log_is_an_error(frames, writes, seed) -> None:
    with pytest.raises(DemonstrationError, match=r"^an input log's "):
        InputLog(frames, np.array(writes, np.int32).reshape(-1, 3), seed)


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
