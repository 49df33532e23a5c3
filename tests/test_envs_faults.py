"""Broken environments: what stops a run, what is dropped, what starts again (F13, F15, F16)."""

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
    ("swap", "words"),
    [
        ({"reward": NAN}, "the reward is nan"),
        ({"reward": -INF}, "the reward is -inf"),
        ({"reward": 1e39}, "the reward is 1e"),  # beyond float32
        ({"observation": np.array([0, NAN, 0], np.float32)}, "the observation holds"),
        ({"observation": np.array([0, 0, INF], np.float32)}, "the observation holds"),
    ],
)
def test_what_is_not_finite_stops_or_drops(swap, words):
    """F13: by default a stop that names environment, lane, episode and step; if so asked, the lane
    alone begins anew and says that its last episode must be forgotten."""
    healthy = make_lanes(partial(Counting, 4), count=3)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((8, 3), int))]

    env = partial(Faulty, fault_at("step", 2, swap, number=2))  # in lane 1
    envs = make_lanes(env, count=3)
    envs.reset()
    with pytest.raises(EnvironmentFault, match="Faulty, lane 1, episode 0, step 2: " + words):
        play_actions(envs, np.ones((2, 3), int))

    Faulty.built = 0
    envs = make_lanes(env, count=3, on_fault="drop")
    film = [envs.reset(), *play_actions(envs, np.ones((8, 3), int))]
    assert [step.dropped.tolist() for step in film] == [[False, k == 2, False] for k in range(9)]
    assert film[2].first.tolist() == [False, True, False]
    assert film[2].reward[1] == 0
    assert (envs.dropped_episodes, envs.restarts) == (1, 1)
    for a, b in zip(expected, film, strict=True):
        assert steps_equal(select_lanes(a, [0, 2]), select_lanes(b, [0, 2]))
        assert np.isfinite(b.observation).all()
        assert np.isfinite(b.reward).all()


class Image(gymnasium.Env):
    """Shows zeros, and at step 2 a value in one cell."""

    def __init__(self, box: Box, value: int) -> None:
        self.observation_space, self.action_space = box, Discrete(2)
        self.value, self.t = value, 0

    def show(self) -> np.ndarray:
        shown = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        shown[(-1,) * shown.ndim] = self.value if self.t == 2 else 0
        return shown

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.t = 0
        return self.show(), {}

    def step(self, action: int) -> Any:
        self.t += 1
        return self.show(), 0.0, False, False, {}


BYTES = Box(0, 255, (4, 4, 3), np.int64)
PER_CELL = Box(np.zeros(3, np.int32), np.array([9, 9, 2], np.int32), dtype=np.int32)


@pytest.mark.parametrize(
    ("box", "value", "words"),
    [
        (BYTES, 300, "the observation holds 300, but its space is 0 to 255"),  # 44 in a byte
        (BYTES, -1, "the observation holds -1, but its space is 0 to 255"),
        (Box(0, 10, (4, 4, 3), np.uint8), 11, "the observation holds 11, but its space is 0 to 10"),
        (PER_CELL, 3, "the observation holds 3, but its space is 0 to 2"),
    ],
)
def test_integers_outside_their_space_are_refused(box: Box, value: int, words: str) -> None:
    """As values that are not finite are: a stop that names them, or a dropped episode."""
    envs = make_lanes(partial(Image, box, value))
    envs.reset()
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((2, 1), int))
    assert str(error.value) == (
        f"Image, lane 0, episode 0, step 2: {words};"
        " --environment.on-fault drop forgets such episodes"
    )
    envs = make_lanes(partial(Image, box, value), on_fault="drop", max_failures=2)
    film = [envs.reset(), *play_actions(envs, np.zeros((4, 1), int))]
    assert [step.dropped[0] for step in film] == [False, False, True, False, True]
    assert not any(step.observation.any() for step in film)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("value", [0, 44, 255])
def test_integers_at_the_bounds_of_their_space_are_kept(dtype: Any, value: int) -> None:
    envs = make_lanes(partial(Image, Box(0, 255, (4, 4, 3), dtype), value))
    envs.reset()
    step = play_actions(envs, np.zeros((2, 1), int))[-1]
    assert step.observation.max() == value


def test_dropping_for_ever_is_not_an_option():
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
    ("swap", "words"),
    [
        (np.zeros(4, np.float32), r"float32 \(4,\), but the space says float32 \(3,\)"),
        (np.zeros(3, np.float64), r"float64 \(3,\), but the space says float32 \(3,\)"),
        (np.zeros((3, 1), np.float32), r"float32 \(3, 1\), but"),
    ],
)
def test_another_shape_or_dtype_is_refused(swap, words):
    """F16, under either setting of on_fault."""
    for where, t, on_fault in [("step", 2, "stop"), ("step", 2, "drop"), ("reset", 0, "drop")]:
        fault = fault_at(where, t, {"observation": swap})
        envs = make_lanes(partial(Faulty, fault), count=1, on_fault=on_fault)
        with pytest.raises(EnvironmentFault, match=f"lane 0, episode 0, step {t}: .*{words}"):
            _ = envs.reset(), play_actions(envs, np.zeros((2, 1), int))


def test_a_rebuilt_environment_must_keep_its_spaces():
    def changeling() -> gymnasium.Env:
        if Faulty.built == 0:
            return Faulty(fault_at("step", 1, ValueError("boom")))
        return Film(Box(0, 1, (9,)))

    envs = make_lanes(changeling)
    envs.reset()
    with pytest.raises(EnvironmentFault, match=r"built anew it is .*\(9,\).* before .*\(3,\)"):
        play_actions(envs, np.zeros((1, 1), int))


def test_an_environment_that_raises_restarts_alone():
    """F15: the others go on as if nothing had happened; the broken one is closed."""
    healthy = make_lanes(partial(Counting, 4), count=3)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((8, 3), int))]
    broken = []

    def fault(env: Faulty, where: str) -> None:
        if (where, env.t, env.number) == ("step", 3, 1):
            broken.append(env)
            raise ValueError("boom")

    envs = make_lanes(partial(Faulty, fault), count=3)
    film = [envs.reset(), *play_actions(envs, np.ones((8, 3), int))]
    assert [step.dropped.tolist() for step in film] == [[k == 3, False, False] for k in range(9)]
    assert film[3].first.tolist() == [True, False, False]
    assert (envs.dropped_episodes, envs.restarts, Faulty.built) == (1, 1, 4)
    assert broken[0].closed
    for a, b in zip(expected, film, strict=True):
        assert steps_equal(select_lanes(a, [1, 2]), select_lanes(b, [1, 2]))


def test_failures_count_only_in_a_row():
    """One good step between failures clears the count: such an environment goes on for ever."""
    often = fault_at("step", 2, ValueError("boom"))
    envs = make_lanes(partial(Faulty, often), max_failures=2)
    envs.reset()
    film = play_actions(envs, np.zeros((40, 1), int))
    assert envs.dropped_episodes == envs.restarts == sum(step.dropped.sum() for step in film) == 20

    envs = make_lanes(partial(Faulty, fault_at("step", 1, ValueError("boom"))), max_failures=3)
    envs.reset()
    play_actions(envs, np.zeros((2, 1), int))
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((1, 1), int))
    assert str(error.value) == (
        "Faulty, lane 0, episode 2, step 1: failure 3 in a row, the last is ValueError: boom"
    )
    assert isinstance(error.value.__cause__, ValueError)


def test_a_failed_reset_drops_nothing():
    """The episode before it had ended well; the next one is opened with another seed."""
    done = []

    def fault(env: Faulty, where: str) -> None:
        if where == "reset" and Faulty.built == 1:
            done.append(env.seed)
            if len(done) == 2:
                raise ValueError("boom")

    envs = make_lanes(partial(Faulty, fault, length=2))
    envs.reset()
    film = play_actions(envs, np.zeros((3, 1), int))
    assert [(s.terminal[0], s.first[0], s.dropped[0]) for s in film] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
    ]
    assert (envs.dropped_episodes, envs.restarts) == (0, 1)
    assert film[2].observation[0, 2] not in np.array(done, np.float32)

    envs = make_lanes(partial(Faulty, fault_at("reset", 0, ValueError("boom"))))
    with pytest.raises(EnvironmentFault, match="failure 3 in a row, the last is ValueError: boom"):
        envs.reset()


def test_a_constructor_is_tried_again():
    def fault(env: Faulty, where: str) -> None:
        if where == "build" and Faulty.built < 3:
            raise ValueError("boom\nat length")

    assert make_lanes(partial(Faulty, fault), max_failures=3).restarts == 2
    Faulty.built = 0
    with pytest.raises(EnvironmentFault, match=r"lane 0, when built: .*ValueError: boom at length"):
        make_lanes(partial(Faulty, fault), max_failures=2)
