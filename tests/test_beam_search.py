"""Candidates of the search that aligns demonstrations: their actions and their order."""

from __future__ import annotations

import numpy as np
import pytest

from lookfurther.demos.beam_search import (
    LOSS_PENALTY,
    BeamSearch,
    BeamSettings,
    Candidate,
    ReferencePlay,
    Successor,
    record_reference,
    select_nearest,
)
from lookfurther.demos.delayed_log import delay_start, without_delay
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import make_emulator, play_log

pytest.importorskip("ale_py")

PONG = "ALE/Pong-v5"


def make_pong_log() -> InputLog:
    """A player who moves, then does nothing for a long time and loses points."""
    moves = np.repeat(np.array([0, 3, 4, 3, 0], np.uint8), [40, 28, 28, 12, 900])
    return InputLog(moves)


@pytest.fixture(scope="module")
def reference() -> ReferencePlay:
    return record_reference(make_pong_log(), PONG, 4)


def test_reference_counts_score_and_losses_of_each_frame(reference: ReferencePlay) -> None:
    emulator, score, losses = make_emulator(make_pong_log(), PONG, 4), 0.0, 0
    for frame, reward in enumerate(play_log(make_pong_log(), emulator), 1):
        score += reward
        losses += reward < 0
        assert (reference.scores[frame], reference.losses[frame]) == (score, losses)
        assert np.array_equal(reference.ram[frame], emulator.ram())
    assert losses > 1
    assert (reference.scores[0], reference.losses[0]) == (0, 0)


def make_successor(
    reference: ReferencePlay, frame: int, losses: int, changed_byte: int
) -> Successor:
    """A game with the human's RAM except for one, and the given number of losses."""
    ram = reference.ram[frame].astype(np.uint8)
    ram[changed_byte] ^= 1
    score = float(reference.scores[frame])
    lives = int(reference.lives[frame])
    return Successor(ram, lives, Candidate(0, None, score, (losses, ()), losses))  # type: ignore


def test_losses_that_the_human_does_not_have_cost_most(reference: ReferencePlay) -> None:
    frame = int(np.flatnonzero(reference.losses == 1)[0])
    # Rarely changing bytes, so that no two candidates are duplicates.
    rare = np.flatnonzero(reference.byte_limits == 64)
    games = [make_successor(reference, frame, losses, rare[losses]) for losses in (3, 2, 1, 0)]
    found = select_nearest(iter(games), reference, frame, 4)
    assert [candidate.losses for candidate in found][2:] == [2, 3]
    assert [candidate.distance for candidate in found] == [
        1,
        1,
        LOSS_PENALTY + 1,
        2 * LOSS_PENALTY + 1,
    ]


def test_search_may_take_actions_of_the_whole_game() -> None:
    log = make_pong_log()
    search = BeamSearch(record_reference(log, PONG, 4), delay_start(log, 0), PONG, 4)
    idle = search.num_steps - 50
    assert search.possible_actions(idle, 1) == [0]
    assert search.possible_actions(idle, None) == [0, 3, 4]
    assert search.possible_actions(0, None) == [0]  # the human has not acted yet
    (best, *_) = search.extend([search.initial_candidate()], 0, 40, BeamSettings(20, None, 0))
    assert len(best.action_sequence()) == 40
    assert set(best.action_sequence()[: search.first_active_step].tolist()) == {0}


def test_player_returns_to_the_humans_place_without_the_humans_actions() -> None:
    """A RAM write moves the human's paddle while the human does nothing; other games have none.

    Only the actions of the whole game lead there.
    """
    paddle = 51
    log = make_pong_log()
    reference = record_reference(log, PONG, 4)
    moved = reference.ram.copy()
    moved[161:, [paddle, 60]] -= 24
    reference = reference._replace(ram=moved)
    search = BeamSearch(reference, delay_start(log, 0), PONG, 4)
    narrow = BeamSettings(1, 1, 0)
    start = search.extend([search.initial_candidate()], 0, 40, narrow)
    assert start[0].distance == 0
    (idle,) = search.extend(start, 40, 50, narrow)
    (best, *_) = search.extend(start, 40, 50, BeamSettings(24, None, 0))
    assert idle.distance >= 40
    assert best.distance <= 16


def test_only_the_humans_ram_writes_are_allowed_as_distance() -> None:
    """A write of a byte that rarely changes, from the segment before it to the one after it."""
    log = InputLog(make_pong_log().frame_actions, np.array([[400, 100, 1]], np.int32))
    reference = record_reference(log, PONG, 4)
    search = BeamSearch(reference, delay_start(log, 0), PONG, 4)
    limit = int(reference.byte_limits[100])
    segments = [(50, 75), (75, 100), (100, 125), (125, 150)]
    assert [search.repaired_distance(*segment) for segment in segments] == [0, limit, limit, 0]
    with_writes = BeamSearch(reference, without_delay(log), PONG, 4)
    assert with_writes.repaired_distance(75, 100) == 0
