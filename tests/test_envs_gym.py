"""Gymnasium lanes: spaces, frame stacks, next-step resets, and restored episodes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.config import EnvConfig
from lookfurther.envs import get_spec
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.sync import SyncEnvs
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.types import Step
from tests.faulty_envs import (
    Counting,
    Faulty,
    Film,
    Moody,
    fault_at,
    make_lanes,
    play_actions,
    random_actions,
    steps_equal,
)

Env = str | Callable[[], gymnasium.Env]


def test_envs_import_does_not_import_torch():
    """Worker processes must start fast."""
    code = "import sys, lookfurther.envs.subproc; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Spaces


@pytest.mark.parametrize(
    ("box", "layout", "plane", "dtype", "high"),
    [
        (Box(0, 255, (5, 6, 3), np.uint8), "hwc", (3, 5, 6), "uint8", 255),
        (Box(0, 255, (3, 5, 6), np.uint8), "chw", (3, 5, 6), "uint8", 255),
        (Box(0, 10, (5, 6, 3), np.uint8), "hwc", (3, 5, 6), "uint8", 10),
        (Box(0, 9, (5, 6, 2), np.int64), "hwc", (2, 5, 6), "uint8", 9),
        (Box(0, 1, (5, 6, 2), np.bool_), "hwc", (2, 5, 6), "uint8", 1),  # type: ignore[call-overload]
        (Box(0, 255, (5, 6), np.uint8), "hwc", (1, 5, 6), "uint8", 255),
        (Box(0, 4, (5, 6, 3), np.float64), "hwc", (3, 5, 6), "float32", 1),
        (Box(0, 4, (3, 5, 6), np.float32), "chw", (3, 5, 6), "float32", 1),
        (Box(0, 255, (7,), np.uint8), "hwc", (7,), "float32", 1),
        (Box(0, 99, (7,), np.float64), "hwc", (7,), "float32", 1),
    ],
)
def test_observations_become_planes(box, layout, plane, dtype, high):
    envs = make_lanes(partial(Film, box), count=2, layout=layout)
    assert envs.spec == ("Film", plane, 1, dtype, 2, high)
    step = envs.reset()
    assert (step.observation.shape, str(step.observation.dtype)) == ((2, *plane), dtype)
    env = Film(box)
    raw, _ = env.reset(seed=episode_seed(0, 1, 0))
    assert step.observation[1].any()
    cells = itertools.product(*map(range, box.shape))
    for cell in cells:  # cell by cell, independent of the code under test
        moved = cell[2:] + cell[:2] if len(box.shape) == 3 and layout == "hwc" else cell
        moved = (0, *cell) if len(box.shape) == 2 else moved
        assert step.observation[(1, *moved)] == raw[cell]


def episode_seed(seed: int, lane: int, episode: int) -> int:
    return int(np.random.SeedSequence((seed, lane, episode)).generate_state(1)[0])


@given(
    stack=st.integers(1, 4),
    length=st.integers(1, 6),
    channels=st.integers(1, 2),
    steps=st.integers(0, 15),
)
@settings(max_examples=40, deadline=None)
def test_stack_holds_last_planes_of_its_episode(stack, length, channels, steps):
    box = Box(0, 255, (2, 3, channels), np.uint8)
    plain = make_lanes(partial(Film, box, length), count=2)
    stacked = make_lanes(partial(Film, box, length), count=2, frame_stack=stack)
    assert stacked.spec.observation_shape == (stack * channels, 2, 3)
    actions = random_actions(plain, steps)
    trajectories = [[envs.reset(), *play_actions(envs, actions)] for envs in (plain, stacked)]
    history = [deque[np.ndarray]() for _ in range(2)]
    for plain_step, stacked_step in zip(*trajectories, strict=True):
        for i in range(2):
            if plain_step.first[i]:
                history[i] = deque([np.zeros((channels, 2, 3), np.uint8)] * stack, stack)
            history[i].append(plain_step.observation[i])
            assert np.array_equal(stacked_step.observation[i], np.concatenate(history[i]))


def refusal_message(env: Env, **settings: Any) -> str:
    with pytest.raises(ConfigError) as error:
        get_spec(env, EnvConfig(**settings))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unsupported_space_error_names_a_wrapper():
    pendulum = refusal_message("Pendulum-v1")
    assert "Pendulum-v1: its actions are Box(-2.0, 2.0, (1,), float32)" in pendulum
    assert "wrap it" in pendulum
    message = refusal_message("FrozenLake-v1")
    assert "its observations are Discrete(16), not a Box" in message
    wrapper = message.rsplit(" ", 1)[1]
    assert get_spec("FrozenLake-v1", EnvConfig(wrappers=(wrapper,))).plane == (16,)
    message = refusal_message("MiniGrid-Empty-5x5-v0")
    assert "its observations are Dict('direction': Discrete(4), 'image': Box(" in message
    wrapper = message.rsplit(" ", 1)[1]
    assert get_spec("MiniGrid-Empty-5x5-v0", EnvConfig(wrappers=(wrapper,))).plane[1:] == (5, 5)
    assert "neither a vector nor an image" in refusal_message(
        partial(Film, Box(0, 1, (2, 2, 2, 2)))
    )
    assert "0 to 255" in refusal_message(partial(Film, Box(0, 256, (2, 2), np.int64)))
    assert "0 to 255" in refusal_message(partial(Film, Box(-1, 5, (2, 2), np.int8)))


def test_unknown_ids_and_wrappers_raise():
    assert "Did you mean: `CartPole`" in refusal_message("CartPoe-v1")
    assert "`v0`, `v1`" in refusal_message("CartPole-v7")
    assert "No module named 'nowhere'" in refusal_message("nowhere:CartPole-v1")
    assert "no 'nowhere:Class'" in refusal_message("CartPole-v1", wrappers=("nowhere:Class",))
    assert "no 'math:Class'" in refusal_message("CartPole-v1", wrappers=("math:Class",))
    assert "module:Class" in refusal_message("CartPole-v1", wrappers=("Class",))


def test_function_must_return_new_environment():
    assert "must give a gymnasium.Env, not int" in refusal_message(lambda: 3)  # type: ignore[arg-type]
    env = Counting()
    with pytest.raises(ConfigError, match="must build a new environment at every call"):
        make_lanes(lambda: env, count=2)


def test_spec_has_environment_name():
    assert get_spec("CartPole-v1", EnvConfig()).env == "CartPole-v1"
    assert get_spec("gymnasium:CartPole-v1", EnvConfig()).env == "CartPole-v1"
    assert get_spec(Counting, EnvConfig()).env == "Counting"
    assert get_spec(lambda: Counting(), EnvConfig()).env == "Counting"
    assert get_spec(lambda: gymnasium.make("CartPole-v1"), EnvConfig()).env == "CartPole-v1"


def test_wrappers_apply_innermost_first():
    envs = make_lanes(Counting, wrappers=("tests.faulty_envs:PlusOne", "tests.faulty_envs:Twice"))
    envs.reset()
    assert play_actions(envs, np.array([[2]]))[0].reward == (10 * 1 + 2 + 1) * 2


# Episodes


@pytest.mark.parametrize("end", ["terminal", "truncated", "both"])
def test_next_step_autoreset_by_hand(end):
    """Two steps end an episode; the third Step begins the next one and ignores its action."""
    envs = make_lanes(partial(Counting, 2, end, start=5), count=2)
    trajectory = [
        envs.reset(),
        *play_actions(envs, np.array([[0, 1], [2, 2], [1, 1], [0, 2], [0, 0]])),
    ]
    t = [(0, 0), (1, 1), (2, 2), (0, 0), (1, 1), (2, 2)]
    action = [(-1, -1), (5, 6), (7, 7), (-1, -1), (5, 7), (5, 5)]
    reward = [(0, 0), (15, 16), (27, 27), (0, 0), (15, 17), (25, 25)]
    over = [False, False, True, False, False, True]
    for k, step in enumerate(trajectory):
        assert step.observation[:, :2].tolist() == [
            list(x) for x in zip(t[k], action[k], strict=True)
        ]
        assert step.reward.tolist() == list(reward[k])
        assert step.reward.dtype == np.float32
        assert step.first.tolist() == [k in (0, 3)] * 2
        assert step.terminal.tolist() == [over[k] and end != "truncated"] * 2
        assert step.truncated.tolist() == [over[k] and end == "truncated"] * 2
        assert not step.dropped.any()


def test_returned_steps_are_never_overwritten():
    envs = make_lanes("CartPole-v1", count=3, frame_stack=2)
    step = envs.reset()
    copy = Step(*(x.copy() for x in step))
    envs.send(np.zeros(3, int))
    envs.recv()
    assert steps_equal(step, copy)


def test_episode_seed_depends_on_run_lane_and_episode():
    def episode_seeds(lanes: range, run: int, length: int) -> dict[tuple[int, int], float]:
        """The seed in the first observation of each (lane, episode)."""
        envs = SyncEnvs(EnvFactory(partial(Counting, length), EnvConfig()), lanes, run)
        trajectory = [envs.reset(), *play_actions(envs, random_actions(envs, 12))]
        return {
            (lane, episode): step.observation[i, 2]
            for i, lane in enumerate(lanes)
            for episode, step in enumerate(step for step in trajectory if step.first[i])
        }

    all_lanes = episode_seeds(range(5), run=1, length=2)
    two_lanes = episode_seeds(range(2, 4), run=1, length=2)
    longer = episode_seeds(range(5), run=1, length=5)
    assert two_lanes == {key: seed for key, seed in all_lanes.items() if key[0] in (2, 3)}
    assert longer == {key: seed for key, seed in all_lanes.items() if key[1] < 3}
    assert len(set(all_lanes.values())) == len(all_lanes) == 25
    other_run = episode_seeds(range(5), run=2, length=2)
    assert not set(all_lanes.values()) & set(other_run.values())


# Episodes in progress


@given(before=st.integers(0, 45), stack=st.integers(1, 3), seed=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_restored_lanes_continue_identically(before, stack, seed):
    """At any time, even at starts and ends: the same Step, and the same Steps after it."""
    old = make_lanes("CartPole-v1", count=3, seed=seed, frame_stack=stack)
    actions = random_actions(old, before + 20, seed)
    current = [old.reset(), *play_actions(old, actions[:before])][-1]
    state = old.state()
    assert all(x.dtype != object for x in state.values())
    new = make_lanes("CartPole-v1", count=3, seed=seed, frame_stack=stack)
    step, continued = new.restore(state)
    assert continued.all()
    assert steps_equal(step, current)
    for a, b in zip(
        play_actions(old, actions[before:]), play_actions(new, actions[before:]), strict=True
    ):
        assert steps_equal(a, b)


def test_dropped_flag_survives_restore():
    fault = fault_at("step", 2, ValueError("boom"))
    old, new = (make_lanes(partial(Faulty, fault)) for _ in range(2))
    old.reset()
    current = play_actions(old, np.zeros((2, 1), int))[-1]
    step, continued = new.restore(old.state())
    assert continued.all()
    assert current.dropped.all()
    assert steps_equal(step, current)


def test_unrepeatable_episode_begins_again_on_restore():
    old = make_lanes(Moody, count=2)
    old.reset()
    play_actions(old, np.zeros((2, 2), int))
    state = old.state()
    new = make_lanes(Moody, count=2)
    step, continued = new.restore(state)
    assert not continued.any()
    assert step.first.all()
    assert not (step.terminal | step.truncated | step.dropped).any()
    assert (new.state()["episode"] == state["episode"] + 1).all()
    assert (new.state()["length"] == 0).all()


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_episode_with_other_end_begins_again_on_restore(length):
    old = make_lanes(partial(Counting, length=4), count=2)
    old.reset()
    play_actions(old, np.zeros((3, 2), int))
    new = make_lanes(partial(Counting, length=length), count=2)
    step, continued = new.restore(old.state())
    assert (continued == (length == 9)).all()  # three steps do not distinguish 4 from 9
    assert (step.first == ~continued).all()
    assert (step.observation[:, 0] == (3 if length == 9 else 0)).all()


def test_episode_that_raises_begins_again_on_restore():
    old = make_lanes(partial(Counting, 4), count=2)
    old.reset()
    play_actions(old, np.zeros((3, 2), int))
    Faulty.built = 0
    new = make_lanes(partial(Faulty, fault_at("step", 2, ValueError("boom"), number=1)), count=2)
    step, continued = new.restore(old.state())
    assert continued.tolist() == [False, True]
    assert step.first.tolist() == [True, False]


def test_state_with_other_lane_count_raises():
    old = make_lanes(Counting, count=2)
    old.reset()
    with pytest.raises(CheckpointError, match="holds 2 lanes, this run has 3"):
        make_lanes(Counting, count=3).restore(old.state())
