"""Other waits of aligned games."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.align import truncate_at_game_over
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.game_policy import GameClock, GamePolicy, trace_policy
from lookfurther.demos.playback import episode_from_log, step_ends
from lookfurther.demos.retime import WaitSearch, retime_episode
from lookfurther.envs import get_spec
from lookfurther.envs.clock import ClockDisplay
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError
from tests.waiting_games import (
    BREAKOUT,
    FIRE,
    LEFT,
    MONTEZUMA,
    NOOP,
    RIGHT,
    fake_game,
    game_episode,
)

pytestmark = pytest.mark.usefixtures("few_retimed_games")

# On the platform of the start, twice.
WALK_AND_WAIT = ((RIGHT, 2), (NOOP, 20), (LEFT, 2), (NOOP, 9)) * 2


@pytest.mark.parametrize("phase", [0, 3])
def test_needless_wait_is_left_out(phase: int) -> None:
    """The player walks on its platform, where nothing happens: it need not wait."""
    pytest.importorskip("ale_py")
    waiting = game_episode(*WALK_AND_WAIT, phase=phase)
    retimed = retime_episode(waiting, MONTEZUMA, 4)
    assert len(retimed) <= len(waiting) - 20
    assert retimed.audit is not None
    assert retimed.audit.verified
    assert retimed.score == waiting.score
    assert retimed.input_log is not None
    assert retimed.input_log.phase == phase
    assert (retimed.actions[:8] == NOOP).all()  # the starts of an evaluation stay


def test_game_without_waits_is_kept() -> None:
    pytest.importorskip("ale_py")
    walking = game_episode((RIGHT, 2), (LEFT, 2), (RIGHT, 2))
    assert retime_episode(walking, MONTEZUMA, 4) is walking


def test_agent_without_memory_plays_the_retimed_game() -> None:
    """It looks up the action of each observation.

    Nothing moves in Breakout before the ball is served, so the human's waits look alike to their
    end. An agent without memory cannot play such a game.
    """
    pytest.importorskip("ale_py")
    waiting = game_episode((RIGHT, 2), (NOOP, 12), (LEFT, 5), (NOOP, 6), (RIGHT, 2), env=BREAKOUT)
    assert count_conflicts(waiting) == 2
    assert play_by_lookup(waiting) != waiting.actions.tolist()
    retimed = retime_episode(waiting, BREAKOUT, 4)
    assert count_conflicts(retimed) == 0
    assert play_by_lookup(retimed) == retimed.actions.tolist()


def count_conflicts(episode: Episode, clock_period: int = 0) -> int:
    return trace_policy(episode, 4, ClockDisplay(clock_period)).conflicts


def test_waits_that_an_agent_with_a_clock_can_play_are_kept() -> None:
    """Equal observations at other times are no conflict."""
    pytest.importorskip("ale_py")
    moves = ((RIGHT, 2), (NOOP, 12), (LEFT, 5), (NOOP, 6), (RIGHT, 2))
    waiting = game_episode(*moves, env=BREAKOUT)
    assert count_conflicts(waiting, 64) == 0
    assert play_by_lookup(waiting, 64) == waiting.actions.tolist()
    assert retime_episode(waiting, BREAKOUT, 4, clock=ClockDisplay(64)) is waiting


def test_only_the_wait_with_a_conflict_is_changed() -> None:
    """The first wait is longer than the clock's period. The second one is not."""
    pytest.importorskip("ale_py")
    moves = ((RIGHT, 2), (NOOP, 30), (LEFT, 5), (NOOP, 8), (RIGHT, 2))
    waiting = game_episode(*moves, env=BREAKOUT)
    assert count_conflicts(waiting, 16) == 1
    retimed = retime_episode(waiting, BREAKOUT, 4, clock=ClockDisplay(16))
    assert count_conflicts(retimed, 16) == 0
    assert play_by_lookup(retimed, 16) == retimed.actions.tolist()
    after = [LEFT] * 5 + [NOOP] * 8 + [RIGHT] * 2
    assert retimed.actions.tolist()[-len(after) :] == after


def test_waits_longer_than_the_clock_period_are_conflicts() -> None:
    """The clock returns to the time at which the human waited."""
    pytest.importorskip("ale_py")
    waiting = game_episode((RIGHT, 2), (NOOP, 12), (LEFT, 5), (NOOP, 4), env=BREAKOUT)
    assert count_conflicts(waiting, 4) == 1
    assert play_by_lookup(waiting, 4) != waiting.actions.tolist()
    retimed = retime_episode(waiting, BREAKOUT, 4, clock=ClockDisplay(4))
    assert count_conflicts(retimed, 4) == 0
    assert play_by_lookup(retimed, 4) == retimed.actions.tolist()


def play_by_lookup(episode: Episode, clock_period: int = 1) -> list[int]:
    """The actions of an agent that knows the last action of each observation of an episode.

    The first 8 no-ops are the start of the game. A clock with a period of 1 shows nothing.
    """
    keys = [plane.tobytes() for plane in episode.planes]
    stacks = [(step % clock_period, *keys[step - 3 : step + 1]) for step in range(8, len(episode))]
    table = dict(zip(stacks, episode.actions.tolist()[8:], strict=True))
    emulator = Emulator(BREAKOUT)
    planes, actions = [emulator.current_plane().tobytes()], [NOOP] * 8
    for step in range(len(episode)):
        if step >= 8:
            actions.append(table.get((step % clock_period, *planes[-4:]), NOOP))
        planes.append(emulator.step(actions[step])[0].tobytes())
    return actions


def test_conflicts_are_further_actions_of_an_observation() -> None:
    """Stacks of four frames: a a a a, a a a b, a a b a, a b a a, b a a a, a a a a."""
    frames = {name: np.full(3, ord(name), np.uint8) for name in "ab"}
    policy = GamePolicy(frames["a"])
    for _ in range(3):
        policy.add_step(NOOP, frames["a"])  # the first stacks are not full
    assert policy.conflicts == 0
    policy.add_step(NOOP, frames["b"])
    for name in "aaaa":
        policy.add_step(NOOP, frames[name])
    assert policy.conflicts == 0
    policy.settle()
    other = policy.copy()
    other.add_step(RIGHT, frames["b"])  # a a a a again, with another action
    assert (policy.conflicts, other.conflicts) == (0, 1)
    policy.add_step(NOOP, frames["b"])
    assert policy.conflicts == 0
    for name in "aaaa":
        other.add_step(NOOP, frames[name])
    for action, conflicts in ((RIGHT, 1), (LEFT, 2)):  # RIGHT is known now
        again = other.copy()
        again.add_step(action, frames["b"])
        assert again.conflicts == conflicts


@pytest.mark.parametrize(("period", "conflicts"), [(0, 1), (1, 1), (2, 0), (3, 3), (4, 0), (5, 5)])
def test_conflicts_need_the_same_time(period: int, conflicts: int) -> None:
    """Two actions in turn, of one observation: each time of an odd clock has both of them."""
    frame = np.zeros(1, np.uint8)
    policy = GamePolicy(frame, GameClock(ClockDisplay(period)))
    for action in (RIGHT, LEFT) * 20:
        policy.add_step(action, frame)
    assert policy.conflicts == conflicts
    assert policy.copy().clock == policy.clock


def test_clock_of_frames_tells_games_of_different_starts_apart() -> None:
    """Equal pictures and steps, other actions: a conflict unless the start differs in frames."""
    pytest.importorskip("ale_py")
    actions = np.repeat([NOOP, NOOP, RIGHT, NOOP, LEFT], 4).astype(np.uint8)
    others = np.repeat([NOOP, NOOP, LEFT, NOOP, LEFT], 4).astype(np.uint8)
    first = episode_from_log(InputLog(actions), BREAKOUT)
    late_log = InputLog(np.concatenate([[NOOP], others]).astype(np.uint8), phase=1)
    for clock, conflicts in ((ClockDisplay(64), 1), (ClockDisplay(64, "frames"), 0)):
        known = trace_policy(first, 4, clock).settle()
        other = episode_from_log(late_log, BREAKOUT)
        assert trace_policy(other, 4, clock, known).conflicts == conflicts
        same_start = episode_from_log(InputLog(others), BREAKOUT)
        assert trace_policy(same_start, 4, clock, known).conflicts >= 1


def test_short_last_step_is_played() -> None:
    """A recording may end within a step."""
    pytest.importorskip("ale_py")
    log = game_episode(*WALK_AND_WAIT).input_log
    assert log is not None
    cut = episode_from_log(InputLog(log.frame_actions[:-3]), MONTEZUMA)
    assert len(retime_episode(cut, MONTEZUMA, 4)) <= len(cut) - 20


def test_game_may_end_within_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakout ends when the fifth ball is lost, at the first frame of a step.

    A search plays whole steps. Here it finds the game without one of the first no-ops.
    """
    pytest.importorskip("ale_py")
    moves = ((NOOP, 12), *((FIRE, 1), (NOOP, 60)) * 5)
    actions = np.concatenate([np.full(n, a) for a, n in moves])
    log = truncate_at_game_over(InputLog(np.repeat(actions, 4).astype(np.uint8)), BREAKOUT, 4)
    assert len(log.frame_actions) % 4 == 1
    waiting = episode_from_log(log, BREAKOUT)
    found = fake_game(0, 0)._replace(actions=tuple(actions[1 : len(waiting)].tolist()))
    monkeypatch.setattr(WaitSearch, "find_best", lambda *_: found)
    retimed = retime_episode(waiting, BREAKOUT, 4)
    assert retimed.terminal
    assert retimed.input_log is not None
    assert len(retimed.input_log.frame_actions) == len(log.frame_actions) - 4


def test_game_that_no_agent_can_play_is_refused() -> None:
    pytest.importorskip("ale_py")
    human = episode_from_log(InputLog(np.array([0, 3, 3, 3, 4] * 8, np.uint8)), MONTEZUMA)
    with pytest.raises(DemonstrationError, match="several actions: use demos align"):
        retime_episode(human, MONTEZUMA, 4)
    written = InputLog(np.zeros(16, np.uint8), np.array([[1, 2, 3]], np.int32))
    with pytest.raises(DemonstrationError, match="only aligned Atari episodes"):
        retime_episode(episode_from_log(written, MONTEZUMA), MONTEZUMA, 4)


def test_retime_command_saves_a_verified_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    waiting = game_episode(*WALK_AND_WAIT)
    storage.save_episodes("waiting-v0", [waiting], get_spec(MONTEZUMA, EnvConfig()), "a test")
    assert main(["demos", "retime", "waiting", "--name", "retimed"]) == 0
    (episode,) = catalog.open_set("retimed").episodes
    assert len(episode) <= len(waiting) - 20
    assert f"before: return 0, {len(waiting)} steps" in capfd.readouterr().out
    assert main(["demos", "verify", "retimed"]) == 0


def test_retime_command_counts_conflicts_with_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    waiting = game_episode((RIGHT, 2), (NOOP, 12), (LEFT, 5), (NOOP, 6), env=BREAKOUT)
    storage.save_episodes("waiting-v0", [waiting], get_spec(BREAKOUT, EnvConfig()), "a test")
    retime = ["demos", "retime", "waiting", "--name", "retimed", "--clock-period"]
    assert main([*retime, "65"]) == 2
    assert "--clock-period must be in 0 ... 64, not 65" in capfd.readouterr().err
    assert main([*retime, "64"]) == 0
    printed = capfd.readouterr().out
    assert printed.count("0 conflicting actions") == 2  # before and after


def test_retimed_games_of_a_set_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second game goes on four steps before the first one. It then waits as long."""
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    first = game_episode((RIGHT, 2), (NOOP, 12), (LEFT, 5), env=BREAKOUT)
    moves = ((RIGHT, 2), (NOOP, 8), (LEFT, 5), (NOOP, 4), (RIGHT, 2))
    second = game_episode(*moves, env=BREAKOUT)
    storage.save_episodes("two-v0", [first, second], get_spec(BREAKOUT, EnvConfig()), "a test")
    assert main(["demos", "retime", "two", "--name", "agreed", "--clock-period", "64"]) == 0
    same, retimed = catalog.open_set("agreed").episodes
    assert same.actions.tolist() == first.actions.tolist()
    expected = [NOOP] * 8 + [RIGHT] * 2 + [NOOP] * 12 + [LEFT] * 5 + [NOOP] * 4 + [RIGHT] * 2
    assert retimed.actions.tolist() == expected
    assert count_conflicts(second, 64) == 0
    known = trace_policy(first, 4, ClockDisplay(64)).settle()
    assert trace_policy(second, 4, ClockDisplay(64), known).conflicts > 0
    assert trace_policy(retimed, 4, ClockDisplay(64), known).conflicts == 0
    last_line = next(line for line in capfd.readouterr().out.splitlines() if "episode 1: r" in line)
    assert "33 steps, 0 conflicting actions, before: return 0, 29 steps" in last_line


def test_games_of_other_starts_need_not_agree_with_a_clock_of_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third game has the first one's start and waits as long. The second one has another."""
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    first = game_episode((RIGHT, 2), (NOOP, 12), (LEFT, 5), env=BREAKOUT)
    moves = ((RIGHT, 2), (NOOP, 8), (LEFT, 5), (NOOP, 4), (RIGHT, 2))
    games = [first, *(game_episode(*moves, phase=phase, env=BREAKOUT) for phase in (3, 0))]
    storage.save_episodes("games-v0", games, get_spec(BREAKOUT, EnvConfig()), "a test")
    clock = ("--clock-period", "64", "--clock-unit", "frames")
    assert main(["demos", "retime", "games", "--name", "retimed", *clock]) == 0
    retimed = catalog.open_set("retimed").episodes
    display = ClockDisplay(64, "frames")
    alone = retime_episode(games[1], BREAKOUT, 4, clock=display)
    assert retimed[1].actions.tolist() == alone.actions.tolist() == games[1].actions.tolist()
    assert [len(episode) for episode in retimed] == [27, 29, 33]
    known = trace_policy(first, 4, display).settle()
    assert trace_policy(retimed[2], 4, display, known).conflicts == 0


@given(st.integers(0, 3), st.integers(1, 64), st.integers(1, 60))
def test_time_of_a_step_is_what_the_clock_shows(phase: int, period: int, steps: int) -> None:
    log = InputLog(np.zeros(4 * steps + phase, np.uint8), phase=phase)
    frames = step_ends(log, 4)[:-1].tolist()
    full_steps = [max(0, step - 1) if phase else step for step in range(len(frames))]
    clocks = [GameClock(ClockDisplay(period), frame) for frame in frames]
    assert [clock.time for clock in clocks] == [step % period for step in full_steps]
    for before, after in pairwise(clocks[1:]):
        assert before.after_step() == after
