"""Demonstrated episodes: conversion to a chunk and validation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther import config
from lookfurther.demos.episode import (
    Episode,
    best_episode_index,
    check_episodes,
    episodes_to_chunk,
)
from lookfurther.demos.storage import save_episodes
from lookfurther.errors import DemonstrationError
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.types import BEST, END, FIRST, TERMINAL, TRUNCATED, Batch, Spec
from tests.sample_episodes import VECTOR, random_episode, some_episodes

# Conversion to a chunk


def test_episodes_to_chunk_matches_hand_computed_chunk() -> None:
    """Two episodes, then `max_horizon` blank slots for the last priorities."""
    first = Episode(
        np.array([[1], [2], [3]], np.float32),
        np.array([4, 5]),
        np.array([0.5, 0.25], np.float32),
        True,
    )
    second = Episode(
        np.array([[6], [7]], np.float32), np.array([8]), np.array([1], np.float32), False
    )
    chunk = episodes_to_chunk([first, second], max_horizon=3, num_horizons=2)
    assert chunk.plane[:, 0, 0].tolist() == [1, 2, 3, 6, 7, 0, 0, 0]
    assert chunk.action[:, 0].tolist() == [4, 5, 0, 8, 0, 0, 0, 0]
    assert chunk.reward[:, 0].tolist() == [0.5, 0.25, 0, 1, 0, 0, 0, 0]
    marks = [FIRST, 0, TERMINAL, FIRST | BEST, TRUNCATED | BEST, END, END, END]
    assert chunk.mark[:, 0].tolist() == marks
    released = [0, 0, 0, 1, 1, 0, 1, 0]  # for the slots three before that have an action
    assert chunk.priority[:, 0].tolist() == [[p, p] for p in released]
    assert chunk.invalidate_newest.tolist() == [0]
    all_imitated = episodes_to_chunk(
        [first, second], max_horizon=3, num_horizons=2, imitated_episodes="all"
    )
    assert (all_imitated.mark[:5, 0] & BEST == BEST).all()
    assert (all_imitated.mark[5:, 0] & BEST == 0).all()


@given(st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_best_episode_has_highest_undiscounted_return(rewards: list[list[int]]) -> None:
    episodes = [
        Episode(
            np.zeros((len(r) + 1, 1), np.float32),
            np.zeros(len(r), int),
            np.array(r, np.float32),
            True,
        )
        for r in rewards
    ]
    totals = [sum(r) for r in rewards]
    assert [e.score for e in episodes] == totals
    assert best_episode_index(episodes) == totals.index(max(totals))


def transition(spec: Spec, demo: Episode, t: int, n: int, gamma: float) -> tuple:
    """The n-step transition at time t of an episode, computed step by step."""
    blank = np.zeros((spec.stack - 1, *spec.plane), spec.dtype)
    planes = np.concatenate([blank, demo.planes])
    observation_at = lambda i: np.concatenate(planes[i : i + spec.stack])  # noqa: E731
    r, steps = 0.0, 0
    while steps < n and t + steps < len(demo):
        r += gamma**steps * float(demo.rewards[t + steps])
        steps += 1
    is_terminal = demo.terminal and t + steps == len(demo)
    discount = 0.0 if is_terminal else gamma**steps
    next_observation = observation_at(t + steps)
    action = int(demo.actions[t])
    return (
        observation_at(t).tobytes(),
        action,
        np.float32(r),
        np.float32(discount),
        next_observation.tobytes(),
    )


@st.composite
def episode_sets(draw: st.DrawFn) -> tuple[Spec, list[Episode]]:
    plane, dtype = draw(st.sampled_from([((2,), "float32"), ((1, 3, 2), "uint8")]))
    spec = Spec("toy", plane, draw(st.integers(1, 4)), dtype, 3, 255.0 if dtype == "uint8" else 1.0)
    shapes = draw(st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=1, max_size=4))
    return spec, [random_episode(spec, steps, end, i) for i, (steps, end) in enumerate(shapes)]


def item_fields(b: Batch, i: int) -> tuple:
    """Item i of a batch in the order of `transition`, then its e."""
    x, x_next = b.x_both[:, i].numpy()
    a, r, discount, e, *_ = (column[i].numpy() for column in b[1:])
    return x.tobytes(), int(a), r[()], discount[()], x_next.tobytes(), float(e)


def expert_batches(spec: Spec, episodes: list[Episode], **overrides: Any) -> list[Batch]:
    """Batches of every item that the expert replay can sample."""
    settings = config.replace(config.Config(), **overrides)
    replay = build_expert_replay(settings, spec, episodes, torch.device("cpu"), 0)
    return list(replay.iter_items(7))


@settings(deadline=None, max_examples=30)
@given(
    episode_sets(),
    st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    st.sampled_from(["best", "all"]),
)
def test_expert_replay_holds_exactly_all_transitions(
    demo: tuple[Spec, list[Episode]], horizons: list[int], imitated: str
) -> None:
    """No item crosses from one episode into another, and none is lost at an end."""
    (spec, episodes), gamma = demo, 0.75
    chosen = range(len(episodes)) if imitated == "all" else [best_episode_index(episodes)]
    expected = Counter(
        (*transition(spec, e, t, n, gamma), float(i in chosen))
        for i, e in enumerate(episodes)
        for t in range(len(e))
        for n in horizons
    )
    items = Counter(
        item_fields(b, i)
        for b in expert_batches(
            spec,
            episodes,
            replay__horizons=tuple(horizons),
            learner__gamma=gamma,
            learner__imitated_episodes=imitated,
        )
        for i in range(len(b.a))
    )
    assert items == expected


def test_demonstrated_rewards_are_clipped_like_own_rewards() -> None:
    """They are clipped before they are summed; the stored episode stays raw."""
    demo = dataclasses.replace(
        random_episode(VECTOR, 3, True), rewards=np.array([5, -0.5, -7], np.float32)
    )
    settings = {"replay__horizons": (3,), "learner__gamma": 1.0}
    (batch,) = expert_batches(VECTOR, [demo], environment__reward_transform="clip", **settings)
    assert batch.r.tolist() == [-0.5, -1.5, -1.0]
    assert demo.rewards.tolist() == [5, -0.5, -7]


# Validation


def with_broken_field(field: str, value: Any) -> list[Episode]:
    """Three episodes, of which the second has another value in a field."""
    one, two, three = some_episodes()
    return [one, dataclasses.replace(two, **{field: value}), three]


def with_value(array: np.ndarray, value: Any) -> np.ndarray:
    array = array.copy()
    array.flat[-1] = value
    return array


GOOD = some_episodes()[1]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("actions", np.zeros(0, np.int64), "no steps"),
        ("planes", np.zeros((6, 3), np.float32), r"planes \(3,\), but toy shows \(2,\)"),
        ("planes", GOOD.planes.astype(np.float64), "planes of type float64, not float32"),
        ("planes", GOOD.planes[:-1], "5 planes for 5 actions"),
        ("rewards", GOOD.rewards[:-1], "4 rewards for 5 actions"),
        ("rewards", with_value(GOOD.rewards, np.nan), "a reward that is not finite"),
        ("rewards", with_value(GOOD.rewards, np.inf), "a reward that is not finite"),
        ("planes", with_value(GOOD.planes, -np.inf), "a plane value that is not finite"),
        ("actions", with_value(GOOD.actions, 3), r"an action outside 0 \.\.\. 2"),
        ("actions", with_value(GOOD.actions, -1), r"an action outside 0 \.\.\. 2"),
        ("actions", GOOD.actions.reshape(-1, 1), r"actions of shape \(5, 1\)"),
        ("rewards", GOOD.rewards.reshape(-1, 1), r"rewards of shape \(5, 1\)"),
    ],
)
def test_invalid_episode_error_names_fault(
    tmp_path: Path, field: str, value: Any, expected: str
) -> None:
    check_episodes(some_episodes(), VECTOR, "good")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {expected}$"):
        check_episodes(with_broken_field(field, value), VECTOR, "mine-v0")
    with pytest.raises(DemonstrationError, match=f"^mine-v0, episode 1: {expected}$"):
        save_episodes("mine-v0", with_broken_field(field, value), VECTOR, "me", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_plane_value_above_maximum_is_an_error() -> None:
    spec = Spec("grid", (1, 2, 2), 1, "uint8", 3, 1.0)
    planes = np.ones((2, 1, 2, 2), np.uint8)
    good = Episode(planes, np.zeros(1, np.int64), np.zeros(1, np.float32), True)
    check_episodes([good], spec, "good")
    bad = dataclasses.replace(good, planes=with_value(planes, 2))
    with pytest.raises(DemonstrationError, match="mine, episode 1: a plane value above 1"):
        check_episodes([good, bad], spec, "mine")


def test_empty_demonstrations_are_an_error() -> None:
    with pytest.raises(DemonstrationError, match="mine holds no episodes"):
        check_episodes([], VECTOR, "mine")
