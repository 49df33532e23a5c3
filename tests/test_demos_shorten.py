"""Shorter waits of aligned games."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.shorten import (
    EXTRA_WAIT,
    AlignedGame,
    ShortenedGame,
    find_player_bytes,
    find_waits,
    pass_wait,
    play_waits,
    record_game,
    shorten_episode,
)
from lookfurther.demos.step_emulator import StepEmulator
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError

MONTEZUMA = "ALE/MontezumaRevenge-v5"
NOOP, RIGHT, LEFT = 0, 3, 4


def test_waits_are_stretches_without_a_change() -> None:
    """Steps 0 ... 8; places change at the end of steps 0, 4 and 5."""
    places = np.array([0, 1, 1, 1, 1, 2, 3, 3, 3, 3])[:, None]
    assert find_waits(places, 0) == [(1, 4), (6, 9)]
    assert find_waits(places, 2) == [(6, 9)]  # what is left of the first is too short
    assert find_waits(np.arange(9)[:, None], 0) == []


# On the platform of the start, twice.
WALK_AND_WAIT = ((RIGHT, 2), (NOOP, 20), (LEFT, 2), (NOOP, 9)) * 2


def make_game(actions: np.ndarray, *columns: np.ndarray) -> AlignedGame:
    ram = np.zeros((len(actions) + 1, 128), np.uint8)
    for address, column in enumerate(columns):
        ram[:, address] = column
    return AlignedGame(actions, np.zeros(len(actions)), ram, None, 0)  # type: ignore[arg-type]


def test_player_bytes_move_with_the_player_only() -> None:
    """Byte 0 counts steps, 1 counts every 7 steps, 2 is the player, 3 an enemy, 4 constant."""
    actions = np.tile(np.repeat([RIGHT, NOOP], 20), 5)
    steps = np.arange(len(actions) + 1)
    walked = np.concatenate([[0], np.cumsum(actions == RIGHT)])
    enemy = np.cumsum(np.random.default_rng(0).integers(0, 2, len(steps)))
    game = make_game(actions, steps, steps // 7, walked, enemy, np.full(len(steps), 9))
    assert find_player_bytes(game).tolist() == [2, *range(4, 128)]


def game_episode(*moves: tuple[int, int], phase: int = 0) -> Episode:
    """(action, steps) of Montezuma's Revenge, after 8 no-ops as an alignment from a start has."""
    actions = np.concatenate([np.full(n, a) for a, n in ((NOOP, 8), *moves)])
    frames = np.repeat(actions, 4)[-phase % 4 :].astype(np.uint8)
    return episode_from_log(InputLog(frames, phase=phase), MONTEZUMA)


@pytest.mark.parametrize("phase", [0, 3])
def test_needless_wait_is_left_out(phase: int) -> None:
    """The player walks on its platform, where nothing happens: it need not wait."""
    pytest.importorskip("ale_py")
    waiting = game_episode(*WALK_AND_WAIT, phase=phase)
    shortened = shorten_episode(waiting, MONTEZUMA, 4)
    assert len(shortened) <= len(waiting) - 20
    assert shortened.audit is not None
    assert shortened.audit.verified
    assert shortened.score == waiting.score
    assert shortened.input_log is not None
    assert shortened.input_log.phase == phase
    assert (shortened.actions[:8] == NOOP).all()  # the starts of an evaluation stay


def test_game_without_waits_is_kept() -> None:
    pytest.importorskip("ale_py")
    walking = game_episode((RIGHT, 2), (LEFT, 2), (RIGHT, 2))
    assert shorten_episode(walking, MONTEZUMA, 4) is walking


def record_walk() -> tuple[StepEmulator, AlignedGame]:
    """A game that waits in the steps 10 ... 29 and plays 24 steps afterwards."""
    log = game_episode((RIGHT, 2), (NOOP, 20), (LEFT, 2), (NOOP, 22)).input_log
    assert log is not None
    emulator = StepEmulator(log, MONTEZUMA, 4)
    return emulator, record_game(emulator, log.frame_actions[::4].astype(np.int64), log.phase)


@pytest.mark.parametrize(("saved", "longest"), [(0, 30), (5, 30), (EXTRA_WAIT + 20, 10)])
def test_wait_is_at_most_as_long_as_the_steps_saved_allow(saved: int, longest: int) -> None:
    """No game becomes longer than the original, and no wait longer than by EXTRA_WAIT."""
    pytest.importorskip("ale_py")
    emulator, game = record_walk()
    late = 60 if saved > 10 else 0  # the wait begins at step 70 of a longer original
    begin, wait_end = 10 + late, 30 + late
    actions = np.concatenate([np.zeros(late, np.int64), game.action_ids])
    shortened = ShortenedGame(game.first_state, (NOOP,) * (begin - saved), saved == 0)
    waits = list(
        play_waits(emulator, game._replace(action_ids=actions), shortened, (begin, wait_end))
    )
    lengths = [len(waited) for _, _, waited in waits]
    assert lengths == list(range(begin - saved, longest + late + 1))
    if saved <= EXTRA_WAIT:
        assert lengths[-1] == wait_end


def test_games_that_reach_the_same_ram_are_played_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a game adds no trial; the original is always played on."""
    pytest.importorskip("ale_py")
    emulator, game = record_walk()
    emulator.play_from(game.first_state, [RIGHT, RIGHT])
    original = ShortenedGame(emulator.ale.cloneState(), tuple(game.action_ids[:10].tolist()), True)
    copy = original._replace(is_original=False)
    # No place is like this one, so that every trial fails.
    elsewhere = game._replace(ram=game.ram + np.uint8(1))
    trials: list[int] = []
    play_from = emulator.play_from

    def count_trials(state: Any, actions: Sequence[int]) -> float:
        trials.append(len(actions) == 24)
        return play_from(state, actions)

    monkeypatch.setattr(emulator, "play_from", count_trials)
    player = np.arange(128)
    for games in ([original], [original, copy], [copy, original]):
        trials.clear()
        assert pass_wait(emulator, elsewhere, player, games, (10, 30, 54)) == []
        assert sum(trials) == 21 + (games[0] is copy)


def test_short_last_step_is_played() -> None:
    """A recording may end within a step."""
    pytest.importorskip("ale_py")
    log = game_episode(*WALK_AND_WAIT).input_log
    assert log is not None
    cut = episode_from_log(InputLog(log.frame_actions[:-3]), MONTEZUMA)
    assert len(shorten_episode(cut, MONTEZUMA, 4)) <= len(cut) - 20


def test_game_that_no_agent_can_play_is_refused() -> None:
    pytest.importorskip("ale_py")
    human = episode_from_log(InputLog(np.array([0, 3, 3, 3, 4] * 8, np.uint8)), MONTEZUMA)
    with pytest.raises(DemonstrationError, match="several actions: use demos align"):
        shorten_episode(human, MONTEZUMA, 4)
    written = InputLog(np.zeros(16, np.uint8), np.array([[1, 2, 3]], np.int32))
    with pytest.raises(DemonstrationError, match="only aligned Atari episodes"):
        shorten_episode(episode_from_log(written, MONTEZUMA), MONTEZUMA, 4)


def test_shorten_command_saves_a_verified_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    waiting = game_episode(*WALK_AND_WAIT)
    storage.save_episodes("waiting-v0", [waiting], get_spec(MONTEZUMA, EnvConfig()), "a test")
    assert main(["demos", "shorten", "waiting", "--name", "short"]) == 0
    (episode,) = catalog.open_set("short").episodes
    assert len(episode) <= len(waiting) - 20
    assert f"before: return 0, {len(waiting)} steps" in capfd.readouterr().out
    assert main(["demos", "verify", "short"]) == 0
