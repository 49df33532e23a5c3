"""The search over the waits of a game, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lookfurther.demos import retime
from lookfurther.demos.aligned_game import (
    AlignedGame,
    find_enemy_bytes,
    find_player_bytes,
    find_waits,
    join_waits,
    record_game,
)
from lookfurther.demos.game_policy import GameClock, GamePolicy
from lookfurther.demos.retime import BACKTRACK_WAITS, WaitSearch
from lookfurther.demos.retimed_games import PassedGames, RetimedGame, best_games, select_games
from lookfurther.demos.step_emulator import StepEmulator
from lookfurther.demos.wait_trials import (
    EDITED_TRIALS,
    LONG_TRIALS,
    MAX_REWARD_DELAY,
    UNCHANGED_TRIALS,
    USUAL_TRIALS,
    TrialLimits,
    Wait,
    WaitLimits,
    WaitTrials,
    edit_actions,
)
from lookfurther.envs.clock import ClockDisplay
from tests.waiting_games import LEFT, MONTEZUMA, NOOP, PLAYER_X, RIGHT, fake_game, game_episode

pytestmark = pytest.mark.usefixtures("few_retimed_games")


def test_waits_are_stretches_without_a_change() -> None:
    """Steps 0 ... 8; places change at the end of steps 0, 4 and 5."""
    places = np.array([0, 1, 1, 1, 1, 2, 3, 3, 3, 3])[:, None]
    assert find_waits(places, 0) == [(1, 4), (6, 9)]
    assert find_waits(places, 2) == [(6, 9)]  # what is left of the first is too short
    assert find_waits(np.arange(9)[:, None], 0) == []


def test_waits_with_no_ops_between_them_are_joined() -> None:
    """A platform that appears changes the place of a player who stands still."""
    waits = [(1, 4), (6, 9), (10, 20), (23, 30), (31, 40)]
    actions = np.zeros(50, np.int64)
    assert join_waits(waits, actions) == [(1, 20), (23, 40)]
    actions[5] = actions[21] = RIGHT
    assert join_waits(waits, actions) == [(1, 4), (6, 20), (23, 40)]
    assert join_waits([], actions) == []


def make_game(actions: np.ndarray, *columns: np.ndarray) -> AlignedGame:
    ram = np.zeros((len(actions) + 1, 128), np.uint8)
    for address, column in enumerate(columns):
        ram[:, address] = column
    rewards, lives = np.zeros(len(actions)), np.zeros(len(ram))
    return AlignedGame(actions, rewards, ram, lives, None, 0)  # type: ignore[arg-type]


def test_player_bytes_move_with_the_player_only() -> None:
    """Byte 0 counts steps, 1 counts every 7 steps, 2 is the player, 3 an enemy, 4 constant."""
    actions = np.tile(np.repeat([RIGHT, NOOP], 20), 5)
    steps = np.arange(len(actions) + 1)
    walked = np.concatenate([[0], np.cumsum(actions == RIGHT)])
    enemy = np.cumsum(np.random.default_rng(0).integers(0, 2, len(steps)))
    game = make_game(actions, steps, steps // 7, walked, enemy, np.full(len(steps), 9))
    player = find_player_bytes(game)
    assert player.tolist() == [2, *range(4, 128)]
    assert find_enemy_bytes(game, player).tolist() == [3]


def record_walk() -> WaitSearch:
    """A game that waits in the steps 10 ... 29 and 32 ... 53."""
    log = game_episode((RIGHT, 2), (NOOP, 20), (LEFT, 2), (NOOP, 22)).input_log
    assert log is not None
    emulator = StepEmulator(log, MONTEZUMA, 4)
    game = record_game(emulator, log.frame_actions[::4].astype(np.int64), log.phase)
    return WaitSearch(emulator, game)


def begin_walk(search: WaitSearch, steps: int = 10) -> RetimedGame:
    """The original before its wait, as a game with this number of steps."""
    search.emulator.play_from(search.game.first_state, [RIGHT, RIGHT])
    policy = GamePolicy(search.emulator.ale.getScreenGrayscale())
    return RetimedGame(search.emulator.ale.cloneState(), (NOOP,) * steps, policy, True)


@pytest.mark.parametrize(
    ("begin", "steps", "longest"),
    [
        (10, 10, 30 + 50),  # as early as the original
        (26, 26, 30 + 4 * 4),  # a short wait
        (10, 30 + 100 - 5, 30 + 100),  # late already
        (10, 30 + 100, 30 + 100),
    ],
)
def test_waits_and_delays_have_limits(begin: int, steps: int, longest: int) -> None:
    pytest.importorskip("ale_py")
    search = record_walk()
    limits = WaitLimits(extension=4, extra_steps=50, delay=100)
    waits = search.play_waits(begin_walk(search, steps), Wait(begin, 30, 54), 9, limits)
    assert [len(waited.actions) for waited in waits] == list(range(steps, longest + 1))


def test_games_that_reach_the_same_ram_are_played_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a game adds no trial, and the original is kept even if all trials fail."""
    pytest.importorskip("ale_py")
    search = record_walk()
    original = begin_walk(search)
    copy = original._replace(is_original=False)
    # No place is like this one, so that every trial fails.
    search.game = search.game._replace(ram=search.game.ram + np.uint8(1))
    search.player = np.arange(128)
    trials: list[int] = []
    play_on = search.play_on

    def count_trials(state: Any, policy: GamePolicy, actions: Sequence[int], *limits: Any) -> Any:
        trials.append(len(actions) == 24)
        return play_on(state, policy, actions, *limits)

    monkeypatch.setattr(search, "play_on", count_trials)
    for games in ([original], [original, copy]):
        trials.clear()
        assert search.try_waits(games, Wait(10, 30, 54), 24, USUAL_TRIALS) == []
        assert sum(trials) == 20 + USUAL_TRIALS.limits.extra_steps + 1
    (kept,) = search.pass_wait([original, copy], Wait(10, 30, 54), 24)
    assert kept.is_original
    assert len(kept.actions) == 54


def test_search_leaves_earlier_games_unchanged() -> None:
    """It can therefore go back to them."""
    pytest.importorskip("ale_py")
    search = record_walk()
    original = begin_walk(search)
    before = original.policy.observation
    first, second = (search.pass_wait([original], Wait(10, 30, 54), 24) for _ in range(2))
    assert original.policy.observation == before
    assert original.cost == (0, 10)
    assert [game.actions for game in first] == [game.actions for game in second]


def test_best_game_of_each_length_and_of_each_enemy_is_kept() -> None:
    passed = PassedGames(max_conflicts=5)
    late, early, clumsy, other = (
        fake_game(conflicts, steps) for conflicts, steps in ((0, 9), (0, 7), (1, 9), (2, 7))
    )
    for game, enemies in ((clumsy, b"a"), (late, b"a"), (early, b"a"), (other, b"b")):
        passed.add(game, enemies)
    assert passed.by_length == {9: late, 7: early}
    assert passed.by_enemies == {b"a": early, b"b": other}
    assert passed.select(8) == [early, late, other]
    assert passed.max_conflicts == 1


def test_passed_games_limit_the_conflicts_of_further_ones() -> None:
    passed = PassedGames(max_conflicts=5)
    for conflicts, limit in ((5, 5), (3, 4), (4, 4), (0, 1)):
        passed.add(fake_game(conflicts, 9), b"")
        assert passed.max_conflicts == limit


def test_best_games_and_some_of_all_lengths_are_kept() -> None:
    games = [fake_game(steps % 2, steps) for steps in range(100)]
    kept = [(game.cost[0], game.cost[1]) for game in select_games(games, 8)]
    assert kept[:4] == [(0, 0), (0, 2), (0, 4), (0, 6)]
    assert kept[4] == (0, 8)
    assert kept[-1] == (1, 99)
    assert len(kept) == 8
    assert len(select_games(games[:5], 8)) == 5


Trial = tuple[int, int, WaitTrials]  # a wait, games to keep, what is tried


@pytest.mark.parametrize("saving_effort", [1, 2, None])
def test_search_goes_back_where_all_games_fail(
    saving_effort: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait 12 of 16 adds ten conflicts unless enough games were kept some waits before."""
    pytest.importorskip("ale_py")
    last_effort = len(BACKTRACK_WAITS) if saving_effort is None else saving_effort
    saving_games = retime.MAX_GAMES << (last_effort + 1 if saving_effort is None else last_effort)
    found, played = search_hard_game(lambda games, _: games >= saving_games, monkeypatch)
    expected: list[Trial] = []
    for effort, back in enumerate((12, *BACKTRACK_WAITS)[: last_effort + 1]):
        games = retime.MAX_GAMES << effort
        expected += [(wait, games, USUAL_TRIALS) for wait in range(max(0, 12 - back), 13)]
        if games < saving_games:
            expected += [(12, games, EDITED_TRIALS), (12, games, LONG_TRIALS)]
    expected += [(wait, retime.MAX_GAMES, USUAL_TRIALS) for wait in range(13, 16)]
    assert played == expected
    assert found.cost == (10 if saving_effort is None else 0, 16)


@pytest.mark.parametrize("saving", [EDITED_TRIALS, LONG_TRIALS])
def test_search_edits_and_waits_long_before_it_goes_back(
    saving: WaitTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    found, played = search_hard_game(lambda _, trials: trials == saving, monkeypatch)
    usual = [(wait, retime.MAX_GAMES, USUAL_TRIALS) for wait in range(16)]
    trials = (EDITED_TRIALS, LONG_TRIALS)[: 1 + (saving == LONG_TRIALS)]
    hard = [(12, retime.MAX_GAMES, trial) for trial in trials]
    assert played == [*usual[:13], *hard, *usual[13:]]
    assert found.cost == (0, 16)


def test_search_with_a_clock_changes_waits_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the hard wait and, after going back, of the waits before it."""
    pytest.importorskip("ale_py")
    few, more = retime.MAX_GAMES, 2 * retime.MAX_GAMES
    found, played = search_hard_game(lambda games, _: games == more, monkeypatch, clock_period=64)
    kept = [(wait, few, UNCHANGED_TRIALS) for wait in range(16)]
    hard = [(12, few, trials) for trials in (USUAL_TRIALS, EDITED_TRIALS, LONG_TRIALS)]
    varied = [(wait, more, USUAL_TRIALS) for wait in range(6, 13)]
    assert played == [*kept[:13], *hard, *varied, *kept[13:]]
    assert found.cost == (0, 16)


def search_hard_game(
    passes: Callable[[int, WaitTrials], bool],
    monkeypatch: pytest.MonkeyPatch,
    clock_period: int = 0,
) -> tuple[RetimedGame, list[Trial]]:
    """Search a game in which only some trials pass wait 12 of 16 without ten more conflicts."""
    search = record_walk()
    search.clock = GameClock(ClockDisplay(clock_period))
    search.waits = [Wait(i, i, i) for i in range(16)]
    played: list[Trial] = []

    def try_waits(
        games: Sequence[RetimedGame], wait: Wait, max_games: int, trials: WaitTrials
    ) -> list[RetimedGame]:
        played.append((wait.begin, max_games, trials))
        failed = wait.begin == 12 and not passes(max_games, trials)
        conflicts = min(game.cost[0] for game in games)
        return [fake_game(conflicts + 10 * failed, games[0].cost[1] + 1)]

    monkeypatch.setattr(search, "try_waits", try_waits)
    monkeypatch.setattr(search, "_begin_game", lambda: fake_game(0, 0))
    return search.find_best(), played


class LifeAtPlace:
    """An emulator whose player has a further life at one place."""

    def __init__(self, ale: Any, place: int) -> None:
        self._ale, self._place = ale, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)

    def lives(self) -> int:
        return 6 + int(self._ale.getRAM()[PLAYER_X] == self._place)


def test_games_that_get_a_life_pass_the_wait() -> None:
    """As the original does: it gets the life some steps after the wait."""
    pytest.importorskip("ale_py")
    search, wait = record_walk(), Wait(10, 30, 34)
    original, ale = begin_walk(search), search.emulator.ale
    x = search.game.ram[:, PLAYER_X]
    place_before, place = (int(x[step]) for step in (wait.end + 1, wait.next_begin))
    search.game = search.game._replace(lives=6 + (x == place))
    assert search.game.lives[wait.end : wait.next_begin + 1].tolist() == [6, 6, 7, 7, 7]
    search.emulator.ale = LifeAtPlace(ale, place)  # type: ignore[assignment]
    assert search.try_waits([original], wait, 24, USUAL_TRIALS)
    search.emulator.ale = LifeAtPlace(ale, place_before)  # type: ignore[assignment]
    assert search.try_waits([original], wait, 24, USUAL_TRIALS) == []  # it is lost again


def test_trial_ends_where_a_reward_is_too_late() -> None:
    """The original gets 100 points at step 5, and loses them again at step 30."""
    rewards = np.cumsum([0, 0, 0, 0, 0, 100, *[0] * 24, -100, 0])
    limits = TrialLimits(max_conflicts=1, min_lives=3, rewards=rewards)
    last = 5 + MAX_REWARD_DELAY
    assert [limits.hold(step, 1, 3, 0) for step in (0, last - 1, last)] == [True, True, False]
    assert limits.hold(last, 1, 3, 100)
    assert limits.hold(30 + MAX_REWARD_DELAY, 1, 3, 0)
    assert limits.hold(1000, 1, 3, 0)  # an edited trial may be longer
    assert not limits.hold(0, 2, 3, 0)
    assert not limits.hold(0, 1, 2, 0)
    assert TrialLimits(0).hold(99, 0, 0, -1)


def test_edits_are_small_changes_of_the_first_steps() -> None:
    left_out, added = [(), (0,), (4,)], [(0, 4, 0), (4, 4, 0), (4, 0, 0)]
    assert sorted(edit_actions((4, 0))) == sorted([*left_out, *added, (0, 0), (0, 4), (4, 4)])
    assert edit_actions(()) == []
    actions = tuple(np.random.default_rng(0).integers(0, 3, 20).tolist())
    edits = edit_actions(actions)
    assert len(set(edits)) == len(edits)
    assert actions not in edits
    assert {len(edit) for edit in edits} == {17, 18, 19, 20, 21}
    assert all(edit[-4:] == actions[-4:] for edit in edits)  # four steps after the last edited one


def test_edited_games_reach_the_same_place_without_conflicts() -> None:
    pytest.importorskip("ale_py")
    search, wait = record_walk(), Wait(10, 30, 34)
    games = search.try_waits([begin_walk(search)], wait, 24, EDITED_TRIALS)
    assert {game.cost[0] for game in games} == {0}
    own = tuple(search.game.action_ids[wait.end : wait.next_begin].tolist())
    assert own == (LEFT, LEFT, NOOP, NOOP)
    for game in games:
        search.emulator.ale.restoreState(game.state)
        there = search.emulator.ale.getRAM() == search.game.ram[wait.next_begin]
        assert there[search.player].all()
    assert any(game.actions[-4:] != own for game in games)


def test_shortest_of_the_best_games_are_edited() -> None:
    games = [fake_game(*cost) for cost in ((1, 5), (0, 9), (0, 7), (0, 8))]
    assert best_games(games, 2) == [games[2], games[3]]
