"""Lanes of two kinds in one group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.split import SplitEnvs

IS_SECOND = np.array([True, False, False, True, False])


@pytest.fixture
def split_and_parts() -> Iterator[tuple[SplitEnvs, Envs, Envs]]:
    """SplitEnvs of two and three lanes, and copies of its two parts."""
    with ExitStack() as stack:

        def open_envs(lanes: int, seed: int) -> Envs:
            envs = make_envs("CartPole-v1", EnvConfig(), lanes, seed, 1)
            return stack.enter_context(closing(envs))

        split = SplitEnvs(open_envs(3, 0), open_envs(2, 1), IS_SECOND)
        yield split, open_envs(3, 0), open_envs(2, 1)


def test_lanes_are_those_of_the_parts(split_and_parts: tuple[SplitEnvs, Envs, Envs]) -> None:
    split, first, second = split_and_parts
    rng = np.random.default_rng(0)
    steps = [envs.reset() for envs in split_and_parts]
    ends = 0
    for t in range(60):
        merged, *parts = steps
        for lanes, part in zip((~IS_SECOND, IS_SECOND), parts, strict=True):
            for ours, theirs in zip(merged, part, strict=True):
                assert ours.dtype == theirs.dtype
                assert np.array_equal(ours[lanes], theirs)
        ends += int(merged.terminal.sum())
        actions = rng.integers(0, 2, 5)
        split.send(actions)
        first.send(actions[~IS_SECOND])
        second.send(actions[IS_SECOND])
        steps = [envs.recv() for envs in split_and_parts]
        is_due = ~(steps[0].terminal | steps[0].first) & (rng.random(5) < 0.1)
        if t % 3 == 0:
            due = (is_due, is_due[~IS_SECOND], is_due[IS_SECOND])
            steps = [envs.truncate(d) for envs, d in zip(split_and_parts, due, strict=True)]
    assert ends > 5


def test_split_envs_have_the_spec_and_all_lanes(
    split_and_parts: tuple[SplitEnvs, Envs, Envs],
) -> None:
    split, first, _ = split_and_parts
    assert (split.spec, split.lanes, split.lives) == (first.spec, 5, None)
    assert split.state() == {}
    step, is_continued = split.restore({})
    assert step.first.all()
    assert not is_continued.any()


def test_lives_are_those_of_the_first_part() -> None:
    pytest.importorskip("ale_py")
    with (
        closing(make_envs("ALE/Breakout-v5", EnvConfig(), 3, 0, 1)) as first,
        closing(make_envs("ALE/Breakout-v5", EnvConfig(), 2, 1, 1)) as second,
    ):
        split = SplitEnvs(first, second, IS_SECOND)
        split.reset()
        assert split.lives is not None
        assert split.lives.tolist() == [0, 5, 5, 0, 5]
