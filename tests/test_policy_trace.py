"""Games that a policy without memory can play."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos import align
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.policy_trace import FRAME_STACK, PolicyTable, trace_episode

FREEWAY = "ALE/Freeway-v5"


def episode_of(frames: list[int], actions: list[int]) -> Episode:
    planes = np.array([*frames, 0], np.uint8)[:, None, None, None]
    return Episode(planes, np.array(actions), np.zeros(len(actions), np.float32), terminal=True)


def table_of(*games: tuple[list[int], list[int]]) -> PolicyTable:
    table = PolicyTable()
    for frames, actions in games:
        table.add_game(trace_episode(episode_of(frames, actions), table))
    return table


def count_conflicts(frames: list[int], actions: list[int], table: PolicyTable) -> int:
    return trace_episode(episode_of(frames, actions), table).conflicts


def test_other_games_determine_the_action() -> None:
    table = table_of(([1, 2, 3], [0, 4, 4]))
    assert count_conflicts([1, 2, 3], [0, 4, 4], table) == 0
    assert count_conflicts([1, 2, 3], [0, 4, 5], table) == 1
    assert count_conflicts([1, 2, 4], [0, 4, 5], table) == 0  # another observation
    assert count_conflicts([2, 3], [7, 7], table) == 0  # the stack is still filling up


def test_waiting_before_a_still_picture_allows_both_actions() -> None:
    """Four frames of 5 fill the stack; from then on the observation is the same."""
    table = table_of(([5] * 7, [0, 0, 0, 0, 0, 0, 3]))
    assert count_conflicts([5] * 5, [0, 0, 0, 0, 3], table) == 0
    assert count_conflicts([5] * 5, [0, 0, 0, 0, 2], table) == 1


game_steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20)


@given(game_steps, game_steps)
def test_conflicts_of_two_games_equal_comparison_of_all_pairs(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    pairs = []
    for steps in (first, second):
        padded = [-1] * (FRAME_STACK - 1) + [frame for frame, _ in steps]
        stacks = [tuple(padded[t : t + FRAME_STACK]) for t in range(len(steps))]
        pairs.append([(stack, action) for stack, (_, action) in zip(stacks, steps, strict=True)])
    expected = 0
    for stack, action in pairs[1]:
        others = [a for other, a in pairs[0] if other == stack]
        expected += bool(others) and action not in others
    columns = [tuple(map(list, zip(*steps, strict=True))) for steps in (first, second)]
    assert count_conflicts(*columns[1], table_of(columns[0])) == expected  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recorded() -> Episode:
    """A player of Freeway who walks up, with a step down at frames 70 ... 74."""
    pytest.importorskip("ale_py")
    frames = np.full(102, 2, np.uint8)
    frames[:10], frames[70:75] = 0, 5
    return episode_from_log(InputLog(frames), FREEWAY)


def test_search_takes_the_actions_of_earlier_games(recorded: Episode) -> None:
    """The second game of a phase sees what the first saw, so it is the same game."""
    table = PolicyTable()
    first = align.align_from_start(recorded, FREEWAY, 4, 1, table)
    size = len(table.actions)
    second = align.align_from_start(recorded, FREEWAY, 4, 1, table)
    assert np.array_equal(first.actions, second.actions)
    assert len(table.actions) == size > 20


def test_search_avoids_other_actions_than_the_table_has(recorded: Episode) -> None:
    """The table waits where the plain game begins to walk: the new game does not walk there."""
    plain_table, table = PolicyTable(), PolicyTable()
    plain = align.align_from_start(recorded, FREEWAY, 4, 0, plain_table)
    steps = [(seen, actions) for seen, actions in plain_table.actions.items() if actions != {0}]
    observation, _ = steps[-1]  # games are added newest first
    table.actions[observation] = {0}
    changed = align.align_from_start(recorded, FREEWAY, 4, 0, table)
    assert table.actions[observation] == {0}
    assert not np.array_equal(plain.actions, changed.actions)
    assert changed.audit is not None
    assert changed.audit.verified
