"""Emulator: bit-equal to ale-py's vector environment, and every state can be restored."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lookfurther.config import EnvConfig
from lookfurther.envs import make_envs
from lookfurther.envs.emulator import (
    ACTION_MEANINGS,
    FUSED_MULTIPLY_ADD,
    Emulator,
    resize_by_area,
    rom_digest,
)
from lookfurther.errors import ConfigError

pytest.importorskip("ale_py")

FIRE = 1


def random_actions(steps: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 18, steps).tolist()


def play_side_by_side(game: str, repeat: int, actions: list[int], games: int) -> list[int]:
    """Compare both step by step; return the frames of the last step of each finished game."""
    env = f"ALE/{game}-v5"
    envs = make_envs(env, EnvConfig(noop_max=0, action_repeat=repeat), 1, 0, 1)
    emulator, ends = Emulator(env, repeat), []
    try:
        assert np.array_equal(envs.reset().observation[0, -1:], emulator.current_plane())
        for t, action in enumerate(actions):
            before = emulator.frame_number
            envs.send(np.array([action]))
            step = envs.recv()
            plane, reward, over = emulator.step(action)
            assert np.array_equal(step.observation[0, -1:], plane), f"{env}, step {t}"
            assert (step.reward[0], step.terminal[0]) == (reward, over)
            if over:
                ends.append(emulator.frame_number - before)
                envs.send(np.array([0]))
                assert np.array_equal(envs.recv().observation[0, -1:], emulator.reset())
                if len(ends) == games:
                    break
    finally:
        envs.close()
    return ends


@pytest.mark.parametrize(
    "game", ["MontezumaRevenge", "Pong", "PrivateEye", "Adventure", "JourneyEscape", "Carnival"]
)
def test_emulator_matches_vector_environment(game: str) -> None:
    """Screens of 210, 214, 230 and 250 lines."""
    play_side_by_side(game, 4, random_actions(250), 3)


@pytest.mark.parametrize("repeat", [1, 2, 3, 4, 5])
def test_game_over_mid_step_matches_vector_environment(repeat: int) -> None:
    """The vector environment ignores the screen of the frame that ends the game."""
    actions = random_actions(4000 // repeat, repeat)
    actions = [FIRE if t % 3 == 0 else action for t, action in enumerate(actions)]
    ends = play_side_by_side("Breakout", repeat, actions, 3)
    assert ends
    assert repeat == 1 or set(ends) != {repeat}


def test_step_equals_its_frames() -> None:
    steps, frames = Emulator("ALE/Pong-v5", 3), Emulator("ALE/Pong-v5", 3)
    for action in random_actions(60):
        plane, reward, over = steps.step(action)
        assert (reward, over) == (sum(frames.step_frame(action) for _ in range(3)), frames.is_over)
        assert np.array_equal(plane, frames.current_plane())
        assert np.array_equal(steps.rgb_screen(), frames.rgb_screen())
    assert steps.frame_number == frames.frame_number == 180


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("frames_before", range(6))
def test_step_plays_to_end_of_step_in_phase(phase: int, frames_before: int) -> None:
    emulator = Emulator("ALE/Pong-v5", 3, phase=phase)
    for _ in range(frames_before):
        emulator.step_frame(FIRE)
    emulator.step(FIRE)
    assert 0 < emulator.frame_number - frames_before <= 3
    assert emulator.frame_number % 3 == phase


def record_frames(emulator: Emulator, actions: list[int]) -> list[tuple]:
    """Everything observable of each frame."""
    frames = []
    for action in actions:
        reward = emulator.step_frame(action)
        ram, screen = emulator.ram().tobytes(), emulator.rgb_screen().tobytes()
        frames.append(
            (
                reward,
                emulator.is_over,
                emulator.lives,
                ram,
                screen,
                emulator.current_plane().tobytes(),
            )
        )
    return frames


@pytest.mark.parametrize("game", ["Assault", "BeamRider", "Tennis"])
def test_reset_forgets_previous_game(game: str) -> None:
    """In these games reset_game alone does not."""
    emulator = Emulator(f"ALE/{game}-v5")
    opening = emulator.current_plane()
    first = record_frames(emulator, random_actions(60))
    record_frames(emulator, random_actions(200, seed=1))
    assert np.array_equal(emulator.reset(), opening)
    assert record_frames(emulator, random_actions(60)) == first


@pytest.mark.parametrize(("game", "played"), product(["MontezumaRevenge", "Breakout"], [0, 40, 83]))
def test_restored_state_replays_identically(game: str, played: int) -> None:
    """At the end and in the middle of a step; in this and in another emulator."""
    emulator, other = Emulator(f"ALE/{game}-v5"), Emulator(f"ALE/{game}-v5")
    for action in random_actions(played):
        emulator.step_frame(action)
    state, plane = emulator.clone_state(), emulator.current_plane()
    after = record_frames(emulator, random_actions(50, seed=2))
    for player in (emulator, other):
        record_frames(player, [FIRE] * 5)
        player.restore_state(state)
        assert player.frame_number == played
        assert np.array_equal(player.current_plane(), plane)
        assert record_frames(player, random_actions(50, seed=2)) == after


def test_restored_finished_game_is_over() -> None:
    emulator = Emulator("ALE/Breakout-v5")
    while not emulator.is_over:
        emulator.step(FIRE)
    state = emulator.clone_state()
    emulator.reset()
    assert not emulator.is_over
    emulator.restore_state(state)
    assert emulator.is_over


def test_sticky_actions_depend_on_seed() -> None:
    episodes = []
    for seed in (1, 1, 2):
        emulator = Emulator("ALE/Breakout-v5", sticky_prob=0.5, seed=seed)
        episodes.append(record_frames(emulator, random_actions(100)))
    assert episodes[0] == episodes[1] != episodes[2]


def test_write_ram_sets_one_byte() -> None:
    emulator = Emulator("ALE/Pong-v5")
    emulator.write_ram(77, 200)
    assert emulator.ram()[77] == 200
    assert emulator.ram().shape == (128,)


def test_action_meanings_and_rom_digests() -> None:
    from ale_py import Action, roms

    assert list(ACTION_MEANINGS) == [Action(i).name for i in range(18)]
    path = roms.get_rom_path("pong")
    assert path is not None
    assert rom_digest("pong") == hashlib.sha256(path.read_bytes()).hexdigest()
    assert Emulator("ALE/Pong-v5").minimal_actions == (0, 1, 3, 4, 11, 12)
    with pytest.raises(ConfigError, match="CartPole-v1 is no Atari game"):
        Emulator("CartPole-v1")
    with pytest.raises(ConfigError, match="ale-py has no game 'ponk'"):
        rom_digest("ponk")


def area_mean(grey: np.ndarray, y: int, x: int) -> Fraction:
    """The exact mean of the area that an output pixel covers."""
    height, width = grey.shape
    rows, columns = (
        [Fraction(k * n, 84) for k in (i, i + 1)] for i, n in ((y, height), (x, width))
    )
    total = Fraction(0)
    for j in range(int(rows[0]), min(int(rows[1]) + 1, height)):
        share = min(rows[1], j + 1) - max(rows[0], j)
        for i in range(int(columns[0]), min(int(columns[1]) + 1, width)):
            total += share * (min(columns[1], i + 1) - max(columns[0], i)) * int(grey[j, i])
    return total / ((rows[1] - rows[0]) * (columns[1] - columns[0]))


@settings(max_examples=20)
@given(
    arrays(np.uint8, st.sampled_from([(210, 160), (250, 160), (214, 160)])),
    st.lists(st.tuples(st.integers(0, 83), st.integers(0, 83)), min_size=5, max_size=5),
    st.booleans(),
)
def test_resized_pixel_is_mean_of_its_area(grey: np.ndarray, pixels: list, fused: bool) -> None:
    grey = grey ^ np.random.default_rng(0).integers(0, 256, grey.shape).astype(np.uint8)
    small = resize_by_area(grey, fused)
    assert (small.shape, small.dtype) == ((84, 84), np.uint8)
    for y, x in pixels:
        assert abs(int(small[y, x]) - area_mean(grey, y, x)) <= Fraction(1, 2) + Fraction(1, 1000)


def test_two_roundings_rarely_differ_and_by_one() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (40, 210, 160)).astype(np.uint8)
    with_fused, without_fused = (
        np.stack([resize_by_area(g, fused) for g in grey]).astype(int) for fused in (True, False)
    )
    difference = np.abs(with_fused - without_fused)
    assert difference.max() == 1
    assert 0 < difference.mean() < 0.01
    assert np.array_equal(resize_by_area(grey[0]), resize_by_area(grey[0], FUSED_MULTIPLY_ADD))
