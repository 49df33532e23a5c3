"""Broken environments: which faults stop a run, drop an episode or restart an environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lookfurther.errors import EnvironmentFault
from tests.faulty_envs import (
    Counting,
    Faulty,
    Film,
    fault_at,
    make_lanes,
    play_actions,
    select_lanes,
    steps_equal,
)

NAN, INF = float("nan"), float("inf")
VECTOR = np.zeros(3, np.float32)


@pytest.fixture(autouse=True)
def _count_from_one() -> None:
    Faulty.built = 0


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ({"reward": NAN}, "the reward is nan"),
        ({"reward": -INF}, "the reward is -inf"),
        ({"reward": 1e39}, "the reward is 1e"),  # beyond float32
        ({"observation": np.array([0, NAN, 0], np.float32)}, "the observation holds"),
        ({"observation": np.array([0, 0, INF], np.float32)}, "the observation holds"),
    ],
)
def test_non_finite_value_stops_or_drops_episode(replacement, message):
    """By default the run stops and names environment, lane, episode and step. With on_fault drop,
    only this lane begins a new episode and marks its last one as dropped."""
    healthy = make_lanes(partial(Counting, 4), count=3)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((8, 3), int))]

    env = partial(Faulty, fault_at("step", 2, replacement, number=2))  # in lane 1
    envs = make_lanes(env, count=3)
    envs.reset()
    with pytest.raises(EnvironmentFault, match="Faulty, lane 1, episode 0, step 2: " + message):
        play_actions(envs, np.ones((2, 3), int))

    Faulty.built = 0
    envs = make_lanes(env, count=3, on_fault="drop")
    trajectory = [envs.reset(), *play_actions(envs, np.ones((8, 3), int))]
    assert [step.dropped.tolist() for step in trajectory] == [
        [False, k == 2, False] for k in range(9)
    ]
    assert trajectory[2].first.tolist() == [False, True, False]
    assert trajectory[2].reward[1] == 0
    assert (envs.dropped_episodes, envs.restarts) == (1, 1)
    for a, b in zip(expected, trajectory, strict=True):
        assert steps_equal(select_lanes(a, [0, 2]), select_lanes(b, [0, 2]))
        assert np.isfinite(b.observation).all()
        assert np.isfinite(b.reward).all()


class Image(gymnasium.Env):
    """Returns zeros, and at step 2 a value in one cell."""

    def __init__(self, box: Box, value: int) -> None:
        self.observation_space, self.action_space = box, Discrete(2)
        self.value, self.t = value, 0

    def make_observation(self) -> np.ndarray:
        observation = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        observation[(-1,) * observation.ndim] = self.value if self.t == 2 else 0
        return observation

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.t = 0
        return self.make_observation(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self.make_observation(), 0.0, False, False, {}


BYTES = Box(0, 255, (4, 4, 3), np.int64)
PER_CELL = Box(np.zeros(3, np.int32), np.array([9, 9, 2], np.int32), dtype=np.int32)


@pytest.mark.parametrize(
    ("box", "value", "message"),
    [
        (BYTES, 300, "the observation holds 300, but its space is 0 to 255"),  # 44 in a byte
        (BYTES, -1, "the observation holds -1, but its space is 0 to 255"),
        (Box(0, 10, (4, 4, 3), np.uint8), 11, "the observation holds 11, but its space is 0 to 10"),
        (PER_CELL, 3, "the observation holds 3, but its space is 0 to 2"),
    ],
)
def test_integer_outside_space_stops_or_drops_episode(box: Box, value: int, message: str) -> None:
    """The same as for values that are not finite."""
    envs = make_lanes(partial(Image, box, value))
    envs.reset()
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((2, 1), int))
    assert str(error.value) == (
        f"Image, lane 0, episode 0, step 2: {message};"
        " --environment.on-fault drop forgets such episodes"
    )
    envs = make_lanes(partial(Image, box, value), on_fault="drop", max_failures=2)
    trajectory = [envs.reset(), *play_actions(envs, np.zeros((4, 1), int))]
    assert [step.dropped[0] for step in trajectory] == [False, False, True, False, True]
    assert not any(step.observation.any() for step in trajectory)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("value", [0, 44, 255])
def test_integer_at_bounds_is_accepted(dtype: Any, value: int) -> None:
    envs = make_lanes(partial(Image, Box(0, 255, (4, 4, 3), dtype), value))
    envs.reset()
    step = play_actions(envs, np.zeros((2, 1), int))[-1]
    assert step.observation.max() == value


def test_repeated_drops_stop_the_run():
    envs = make_lanes(
        partial(Faulty, fault_at("step", 1, {"reward": NAN})), on_fault="drop", max_failures=3
    )
    envs.reset()
    play_actions(envs, np.ones((2, 1), int))
    with pytest.raises(EnvironmentFault, match="failure 3 in a row, the last is NonFiniteValue"):
        play_actions(envs, np.ones((1, 1), int))
    envs = make_lanes(
        partial(Faulty, fault_at("reset", 0, {"observation": VECTOR + NAN})), on_fault="drop"
    )
    with pytest.raises(EnvironmentFault, match="failure 3 in a row"):
        envs.reset()


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (np.zeros(4, np.float32), r"float32 \(4,\), but the space is float32 \(3,\)"),
        (np.zeros(3, np.float64), r"float64 \(3,\), but the space is float32 \(3,\)"),
        (np.zeros((3, 1), np.float32), r"float32 \(3, 1\), but"),
    ],
)
def test_other_shape_or_dtype_stops_the_run(replacement, message):
    """With either setting of on_fault."""
    for where, t, on_fault in [("step", 2, "stop"), ("step", 2, "drop"), ("reset", 0, "drop")]:
        fault = fault_at(where, t, {"observation": replacement})
        envs = make_lanes(partial(Faulty, fault), count=1, on_fault=on_fault)
        with pytest.raises(EnvironmentFault, match=f"lane 0, episode 0, step {t}: .*{message}"):
            _ = envs.reset(), play_actions(envs, np.zeros((2, 1), int))


def test_rebuilt_environment_with_other_spaces_stops():
    def changing_env() -> gymnasium.Env:
        if Faulty.built == 0:
            return Faulty(fault_at("step", 1, ValueError("boom")))
        return Film(Box(0, 1, (9,)))

    envs = make_lanes(changing_env)
    envs.reset()
    with pytest.raises(EnvironmentFault, match=r"built again it is .*\(9,\).* before .*\(3,\)"):
        play_actions(envs, np.zeros((1, 1), int))


def test_raising_environment_restarts_alone():
    """The other lanes continue unchanged; the broken environment is closed."""
    healthy = make_lanes(partial(Counting, 4), count=3)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((8, 3), int))]
    broken = []

    def fault(env: Faulty, where: str) -> None:
        if (where, env.t, env.number) == ("step", 3, 1):
            broken.append(env)
            raise ValueError("boom")

    envs = make_lanes(partial(Faulty, fault), count=3)
    trajectory = [envs.reset(), *play_actions(envs, np.ones((8, 3), int))]
    assert [step.dropped.tolist() for step in trajectory] == [
        [k == 3, False, False] for k in range(9)
    ]
    assert trajectory[3].first.tolist() == [True, False, False]
    assert (envs.dropped_episodes, envs.restarts, Faulty.built) == (1, 1, 4)
    assert broken[0].closed
    for a, b in zip(expected, trajectory, strict=True):
        assert steps_equal(select_lanes(a, [1, 2]), select_lanes(b, [1, 2]))


def test_good_step_resets_failure_count():
    """One good step between failures resets the count: such an environment never stops the run."""
    fault = fault_at("step", 2, ValueError("boom"))
    envs = make_lanes(partial(Faulty, fault), max_failures=2)
    envs.reset()
    trajectory = play_actions(envs, np.zeros((40, 1), int))
    assert (
        envs.dropped_episodes
        == envs.restarts
        == sum(step.dropped.sum() for step in trajectory)
        == 20
    )

    envs = make_lanes(partial(Faulty, fault_at("step", 1, ValueError("boom"))), max_failures=3)
    envs.reset()
    play_actions(envs, np.zeros((2, 1), int))
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((1, 1), int))
    assert str(error.value) == (
        "Faulty, lane 0, episode 2, step 1: failure 3 in a row, the last is ValueError: boom"
    )
    assert isinstance(error.value.__cause__, ValueError)


def test_failed_reset_drops_no_episode():
    """The episode before it had ended; the next one begins with another seed."""
    done = []

    def fault(env: Faulty, where: str) -> None:
        if where == "reset" and Faulty.built == 1:
            done.append(env.seed)
            if len(done) == 2:
                raise ValueError("boom")

    envs = make_lanes(partial(Faulty, fault, length=2))
    envs.reset()
    trajectory = play_actions(envs, np.zeros((3, 1), int))
    assert [(s.terminal[0], s.first[0], s.dropped[0]) for s in trajectory] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
    ]
    assert (envs.dropped_episodes, envs.restarts) == (0, 1)
    assert trajectory[2].observation[0, 2] not in np.array(done, np.float32)

    envs = make_lanes(partial(Faulty, fault_at("reset", 0, ValueError("boom"))))
    with pytest.raises(EnvironmentFault, match="failure 3 in a row, the last is ValueError: boom"):
        envs.reset()


def test_failing_constructor_is_retried():
    def fault(env: Faulty, where: str) -> None:
        if where == "build" and Faulty.built < 3:
            raise ValueError("boom\nat length")

    assert make_lanes(partial(Faulty, fault), max_failures=3).restarts == 2
    Faulty.built = 0
    with pytest.raises(EnvironmentFault, match=r"lane 0, when built: .*ValueError: boom at length"):
        make_lanes(partial(Faulty, fault), max_failures=2)
