"""Go-Explore on Atari games: cells, saved states and found episodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.go_explore import (
    SearchProgress,
    entry_to_input_log,
    run_search,
)
from lookfurther.demos.go_explore import cells as atari
from lookfurther.demos.go_explore.archive import TAIL_STEPS, ArchiveEntry, TrajectoryNode
from lookfurther.demos.go_explore.cells import (
    CANDIDATE_GRIDS,
    NEW_CELL_SHARE,
    AtariExplorationGame,
    CellEncoder,
    CellGrid,
    fit_grid,
    pixel_weights,
)
from lookfurther.demos.go_explore.explorer import EXPLORATION_STEPS, sample_held_actions
from lookfurther.demos.playback import episode_from_log
from lookfurther.errors import DemonstrationError, EnvironmentFault
from tests.corridor_game import GAME, search_config


@pytest.fixture(autouse=True, scope="module")
def small_sample() -> Iterator[None]:
    """Fit grids to two rollouts instead of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "SAMPLE_ROLLOUTS", 2)
        yield


@given(st.integers(1, 30), st.integers(30, 120))
def test_pixel_weights_sum_to_one(parts: int, pixels: int) -> None:
    weights = pixel_weights(parts, pixels)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(0), parts / pixels, rtol=1e-4)


def test_cell_is_quantized_mean_of_its_field() -> None:
    """If the fields hold whole pixels, a plain mean gives the same."""
    screen = np.random.default_rng(0).integers(0, 256, (12, 20)).astype(np.float32)
    means = screen.reshape(3, 4, 5, 4).mean((1, 3))
    assert (
        CellEncoder(CellGrid(3, 5, 8), (12, 20)).encode(screen)
        == (means // 32).astype(np.uint8).tobytes()
    )
    assert set(
        CellEncoder(CellGrid(3, 5, 8), (12, 20)).encode(np.full((12, 20), 255, np.float32))
    ) == {7}


def test_sampled_actions_are_held() -> None:
    held = sample_held_actions(np.random.default_rng(0), (3, 4, 5, 6), 10_000)
    changes = np.count_nonzero(np.diff(held))
    assert len(held) == 10_000
    assert set(held) == {3, 4, 5, 6}
    assert changes == pytest.approx(10_000 / 20 * 3 / 4, rel=0.15)


def test_saved_state_continues_in_other_emulator() -> None:
    one, two = (AtariExplorationGame("montezuma_revenge", CANDIDATE_GRIDS[-1]) for _ in range(2))
    one.reset()
    two.reset()
    acts = sample_held_actions(np.random.default_rng(0), one.actions, 120)
    for action in acts[:60]:
        one.step(action)
    two.restore_state(one.save_state())
    assert [one.step(action) for action in acts[60:]] == [two.step(action) for action in acts[60:]]


@pytest.fixture(scope="module")
def found() -> tuple[Episode, SearchProgress]:
    """The episode that a short search of a real game finds, and its last progress report."""
    reports: list[SearchProgress] = []
    (episode,) = run_search(search_config(2_000), reports.append)
    return episode, reports[-1]


def test_found_episode_replays_to_its_score(found: tuple[Episode, SearchProgress]) -> None:
    """It ends at most TAIL_STEPS after its last reward, with a whole step."""
    episode, progress = found
    assert episode.input_log is not None
    again = episode_from_log(episode.input_log, GAME)
    assert again.score == episode.score == progress.best_score > 0
    last = int(np.flatnonzero(again.rewards)[-1]) + 1
    assert last == progress.best_steps
    assert last <= len(again) <= last + TAIL_STEPS
    assert len(episode.input_log.frame_actions) == 4 * len(again)
    audit = episode.audit
    checks = {"score": 1}
    assert audit == Audit(True, again.score, again.score, 4 * len(again), 0, "", checks)


def test_same_seed_finds_same_input_log(found: tuple[Episode, SearchProgress]) -> None:
    (again,) = run_search(search_config(2_000))
    first_log, log = found[0].input_log, again.input_log
    assert first_log is not None
    assert log is not None
    np.testing.assert_array_equal(log.frame_actions, first_log.frame_actions)


def test_entry_that_does_not_replay_raises() -> None:
    claimed = ArchiveEntry(7.0, 3, 3, TrajectoryNode(None, bytes([0, 2, 2]), 3), b"")
    with pytest.raises(EnvironmentFault, match="of 7 points gives 0 when replayed"):
        entry_to_input_log(claimed, "ALE/Freeway-v5")


def test_input_log_ends_with_the_game() -> None:
    """Five missed balls in Breakout take 485 frames; the last step has one frame."""
    wait = bytes([1] * 200)
    whole = entry_to_input_log(
        ArchiveEntry(0.0, 200, 200, TrajectoryNode(None, wait, 200), b""), "ALE/Breakout-v5"
    )
    assert len(whole.frame_actions) == 485
    assert episode_from_log(whole, "ALE/Breakout-v5").terminal


def test_fit_grid_is_closest_to_target_share() -> None:
    """The test repeats the rollouts; no other grid has a closer ratio."""
    game = AtariExplorationGame("freeway", CANDIDATE_GRIDS[0])
    rng, screens = np.random.default_rng(0), []
    for _ in range(2):
        game.reset()
        for action in sample_held_actions(rng, game.actions, EXPLORATION_STEPS):
            if game.step(action).done:
                break
            screens.append(game.gray_screen())
    counts = {
        grid: len(set(map(CellEncoder(grid, (105, 80)).encode, screens)))
        for grid in CANDIDATE_GRIDS
    }
    errors = {
        grid: abs(math.log(count / (NEW_CELL_SHARE * len(screens))))
        for grid, count in counts.items()
    }
    assert errors[fit_grid("freeway", 0)] == min(errors.values())


def test_search_without_score_raises() -> None:
    with pytest.raises(DemonstrationError, match=r"ALE/Pitfall-v5.*more than 400 frames"):
        run_search(dataclasses.replace(search_config(400), env="ALE/Pitfall-v5"))


def test_search_out_of_time_without_score_raises() -> None:
    short = dataclasses.replace(search_config(10**9), env="ALE/Pitfall-v5", minutes=1e-9)
    with pytest.raises(
        DemonstrationError, match=r"Pitfall-v5 in [\d,]+ frames: give more than 1e-"
    ):
        run_search(short)
