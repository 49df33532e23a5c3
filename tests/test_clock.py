"""The clock in the picture: every player of a game sees the same time since power-on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.config import ClockUnit, EnvConfig
from lookfurther.demos import catalog
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.imitation import unambiguous_steps
from lookfurther.demos.playback import draw_demo_clock, episode_from_log, make_emulator, play_steps
from lookfurther.demos.storage import save_episodes
from lookfurther.envs import get_spec, make_envs
from lookfurther.envs.atari import SCREEN_SIZE, AtariEnvs
from lookfurther.envs.clock import (
    ClockDisplay,
    draw_clock,
    draw_clock_in_stacks,
    make_clock_display,
)
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

UNITS = ("steps", "frames")
DISPLAYS = st.builds(ClockDisplay, st.integers(1, 64), st.sampled_from(UNITS), st.integers(1, 12))
BOXING = "ALE/Boxing-v5"
CLOCK = EnvConfig(clock_period=32)
FRAME_CLOCK = EnvConfig(clock_period=32, clock_unit="frames")


def planes_at(frames: np.ndarray, display: ClockDisplay) -> np.ndarray:
    """Grey planes with the clock after these frames."""
    planes = np.full((len(frames), SCREEN_SIZE, SCREEN_SIZE), 7, np.uint8)
    draw_clock(planes, frames, display)
    return planes


@given(DISPLAYS)
def test_all_times_of_a_period_look_different_and_the_clock_repeats(display: ClockDisplay):
    length = display.period * display.action_repeat  # in frames
    frames = np.arange(2 * length)
    if display.unit == "steps":  # all frames of a step look equal
        planes = planes_at(frames, display)
        first = planes[:: display.action_repeat]
        assert np.array_equal(planes, np.repeat(first, display.action_repeat, 0))
        frames = frames[:: display.action_repeat]
    planes, times = planes_at(frames, display), len(frames) // 2
    assert len({plane.tobytes() for plane in planes}) == times
    assert np.array_equal(planes[:times], planes[times:])
    assert (planes[:, : -display.rows] == 7).all()


@pytest.mark.parametrize("unit", UNITS)
def test_marks_of_a_clock_by_hand(unit: ClockUnit):
    """Frame 78, step 19 of 64: marks at 19 mod 8 = 3, 19 div 8 = 2 and 78 mod 4 = 2."""
    display = make_clock_display(EnvConfig(clock_period=64, clock_unit=unit))
    positions = (3, 2) if unit == "steps" else (3, 2, 2)
    marks = planes_at(np.array([78]), display)[0, -2 * len(positions) :]
    size = SCREEN_SIZE // 8
    for rows, position in zip(np.split(marks, len(positions)), positions, strict=True):
        expected = np.zeros(SCREEN_SIZE, np.uint8)
        expected[position * size : (position + 1) * size] = 255
        assert (rows == expected).all()


@given(DISPLAYS, st.integers(0, 4000), st.integers(0, 6))
def test_each_plane_of_a_stack_shows_its_own_time(display: ClockDisplay, frame: int, elapsed: int):
    elapsed = min(elapsed, frame // display.action_repeat)
    stacks = np.zeros((1, 4, SCREEN_SIZE, SCREEN_SIZE), np.uint8)
    draw_clock_in_stacks(stacks, np.array([frame]), np.array([elapsed]), display)
    for age in range(4):
        rows = stacks[0, 3 - age, -display.rows :]
        is_played = age <= elapsed
        then = np.array([frame - age * display.action_repeat])
        shown = planes_at(then, display)[0, -display.rows :]
        assert np.array_equal(rows, shown if is_played else np.zeros_like(rows))


def test_no_clock_changes_nothing():
    planes = planes_at(np.arange(5), ClockDisplay())
    stacks = planes[None, :4].copy()
    draw_clock_in_stacks(stacks, np.array([40]), np.array([10]), ClockDisplay())
    assert (planes == 7).all()
    assert (stacks == 7).all()


@pytest.mark.parametrize("clock", [CLOCK, FRAME_CLOCK])
def test_vector_environment_shows_the_time_since_power_on_and_nothing_else_changes(
    clock: EnvConfig,
):
    pytest.importorskip("ale_py")
    lanes, steps = 3, 40
    settings = EnvConfig(max_episode_length=25), replace(clock, max_episode_length=25)
    with (
        closing(make_envs(BOXING, settings[0], lanes, 0, 1)) as plain,
        closing(make_envs(BOXING, settings[1], lanes, 0, 1)) as clocked,
    ):
        rng, ends = np.random.default_rng(0), 0
        without, shown = plain.reset(), clocked.reset()
        stacks = np.zeros_like(shown.observation)
        for t in range(steps):
            assert isinstance(clocked, AtariEnvs)
            stacks = np.where(shown.first[:, None, None, None], 0, np.roll(stacks, -1, 1))
            stacks[:, -1] = without.observation[:, -1]
            draw_clock(stacks[:, -1], clocked.episode_frames, make_clock_display(clock))
            assert np.array_equal(shown.observation, stacks), t
            assert np.array_equal(shown.reward, without.reward)
            ends += int(shown.first.sum())
            if t == 10:  # a lane that is truncated begins again with a new time
                cut = np.array([True, False, False])
                plain.truncate(cut)
                clocked.truncate(cut)
            actions = rng.integers(18, size=lanes)
            plain.send(actions)
            clocked.send(actions)
            without, shown = plain.recv(), clocked.recv()
        assert ends > lanes


@pytest.mark.parametrize("clock", [CLOCK, FRAME_CLOCK])
@pytest.mark.parametrize("phase", [0, 3])
def test_demonstration_shows_what_an_emulator_with_a_clock_shows(phase: int, clock: EnvConfig):
    pytest.importorskip("ale_py")
    log = InputLog(np.random.default_rng(0).integers(0, 18, 201).astype(np.uint8), phase=phase)
    episode = episode_from_log(log, BOXING)
    draw_demo_clock(episode, clock, "a set")
    emulator = make_emulator(log, BOXING, 4, clock=make_clock_display(clock))
    played = [emulator.current_plane() for _ in play_steps(log, emulator)]
    assert np.array_equal(episode.planes, np.stack(played))


def test_loaded_set_has_a_clock_only_if_the_settings_have_one(tmp_path, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episode = episode_from_log(InputLog(np.zeros(80, np.uint8)), BOXING)
    spec = get_spec(BOXING, EnvConfig())
    save_episodes("boxing-v0", [episode], spec, "a test", None, EnvConfig())
    (plain,) = catalog.load_set("boxing-v0", spec, EnvConfig())
    (clocked,) = catalog.load_set("boxing-v0", spec, CLOCK)
    assert np.array_equal(plain.planes, episode.planes)
    draw_clock(plain.planes[:, 0], 4 * np.arange(21), ClockDisplay(32))
    assert np.array_equal(plain.planes, clocked.planes)


def test_demonstration_without_an_input_log_has_no_known_time():
    episode = Episode(np.zeros((2, 1, 84, 84), np.uint8), np.zeros(1, int), np.zeros(1), False)
    with pytest.raises(DemonstrationError, match=r"set environment\.clock_period 0"):
        draw_demo_clock(episode, CLOCK, "a set, episode 0")


@pytest.mark.parametrize("clock", [CLOCK, FRAME_CLOCK])
def test_clock_tells_the_steps_of_a_wait_apart_but_they_are_not_imitated(clock: EnvConfig):
    """Ten equal pictures with nine no-ops and a jump, then five other pictures with no-ops."""
    planes = np.zeros((16, 1, SCREEN_SIZE, SCREEN_SIZE), np.uint8)
    planes[10:, 0, 0] = np.arange(6)[:, None] + 1
    actions = np.array([0] * 9 + [1] + [0] * 5)
    episode = Episode(planes, actions, np.zeros(15, np.float32), terminal=False)
    draw_clock(planes[:, 0], 4 * np.arange(16), make_clock_display(clock))
    assert len({plane.tobytes() for plane in planes}) == 16
    # Only full stacks of the first picture are equal: steps 3 to 9.
    expected = [True] * 3 + [False] * 6 + [True] * 6
    assert unambiguous_steps(episode, 4, clock).tolist() == expected
    assert unambiguous_steps(episode, 4, EnvConfig()).all()


def test_recorded_agent_sees_the_clock_but_its_demonstration_stores_none():
    pytest.importorskip("ale_py")
    seen = []

    def act(observation: np.ndarray) -> int:
        seen.append(observation.copy())
        return 0

    settings = replace(CLOCK, max_episode_length=6, noop_max=0)
    ((episode,), _) = collect_episodes(BOXING, settings, ObservationPolicy(act), [0])
    assert np.array_equal(episode.planes[0], Emulator(BOXING).current_plane())
    for t, observation in enumerate(seen):
        expected = episode.planes[t].copy()
        draw_clock(expected[0], 4 * t, ClockDisplay(32))
        assert np.array_equal(observation[-1:], expected)
