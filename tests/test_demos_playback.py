"""Playback of input logs: majority actions, RAM writes and ends."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.episode import InputLog, check_episodes
from lookfurther.demos.playback import (
    PAD_ACTION,
    GameOverError,
    block_majority,
    episode_from_log,
    frames_by_step,
    truncate_log,
)
from lookfurther.envs.emulator import Emulator
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
