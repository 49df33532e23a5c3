"""Waits that bring the timers of a game back into step with the human's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.alignment_search import (
    BEAM_SETTINGS,
    MAX_LOST_SEGMENTS,
    PREFERENCE_EFFORT,
    AlignmentLost,
    AlignmentSearch,
)
from lookfurther.demos.beam_search import BeamSettings, Candidate
from lookfurther.demos.delayed_log import (
    DelayedLog,
    delay_start,
    find_human_waits,
    insert_wait,
    without_delay,
)
from lookfurther.demos.episode import InputLog

ACTIONS = st.lists(st.integers(0, 17), min_size=1, max_size=40).map(
    lambda actions: np.array(actions, np.uint8)
)


@given(ACTIONS, st.data())
def test_inserted_waits_keep_the_human_actions(actions: np.ndarray, data: st.DataObject) -> None:
    """Without the frames that repeat a human frame, the human's actions remain."""
    delayed = without_delay(InputLog(actions))
    for _ in range(data.draw(st.integers(0, 3))):
        frame = data.draw(st.integers(0, len(delayed.input_log.frame_actions) - 1))
        delayed = insert_wait(delayed, frame, data.draw(st.integers(0, 9)))
    frames, human_frames = delayed.input_log.frame_actions, delayed.human_frames
    is_added = np.diff(human_frames) == 0
    assert np.array_equal(frames[~is_added], actions)
    assert (frames[is_added] == 0).all()
    assert human_frames[0] == 0
    assert human_frames[-1] == len(actions)


@given(ACTIONS, st.integers(1, 4))
def test_found_waits_are_no_op_frames_of_full_length(actions: np.ndarray, length: int) -> None:
    found = find_human_waits(without_delay(InputLog(actions)), 0, len(actions), length)
    assert found == sorted(found, reverse=True)
    for frame in found:
        assert (actions[frame : frame + length] == 0).all()
        assert frame == 0 or actions[frame - 1] != 0
    runs = "".join("0" if action == 0 else "x" for action in actions).split("x")
    assert len(found) == sum(len(run) >= length for run in runs)


class LaserSearch:
    """A game with a laser that the human passes at `LASER_FRAME`, off once in `PERIOD` frames.

    Another game passes it if all its delays before it are a multiple of the period. Candidates
    remember which human frames they have played: a search may extend only its own games.
    """

    LASER_FRAME, PERIOD, action_repeat = 900, 60, 4
    MIN_WAIT_WIDTH = 1  # of the beams that find the way after a wait

    def __init__(self, delayed: DelayedLog, beams: list[BeamSettings] | None = None) -> None:
        self.delayed = delayed
        self.beams = [] if beams is None else beams  # of all extensions, shared by longer games
        self.num_steps = len(delayed.input_log.frame_actions) // 4
        self.step_ends = (4 * np.arange(self.num_steps + 1)).tolist()
        self.reference_frames = delayed.human_frames[self.step_ends]

    def with_wait(self, frame: int, count: int) -> LaserSearch:
        return LaserSearch(insert_wait(self.delayed, frame, count), self.beams)

    def repaired_distance(self, begin: int, end: int) -> int:
        return 0

    def missing_score(self, candidate: Candidate, step: int) -> float:
        return 0

    def has_human_lives(self, candidate: Candidate, step: int) -> bool:
        return True

    def initial_candidate(self) -> Candidate:
        return Candidate(0, None, 0.0, (0,))  # type: ignore[arg-type]

    def extend(self, candidates: list[Candidate], begin: int, end: int, beam: BeamSettings):
        self.beams.append(beam)
        human_frames = self.delayed.human_frames.tolist()
        assert candidates[0].action_history == (*human_frames[: self.step_ends[begin] + 1],)
        played = (*human_frames[: self.step_ends[end] + 1],)
        passing = int(np.argmax(self.delayed.human_frames > self.LASER_FRAME))
        delay = passing - 1 - self.LASER_FRAME
        is_late = delay % self.PERIOD != 0 or beam.width < self.MIN_WAIT_WIDTH
        is_hit = self.step_ends[end] >= passing and is_late
        return [candidates[0]._replace(distance=1000 * is_hit, action_history=played)]


def make_laser_search() -> LaserSearch:
    """The human acts from frame 10 on, 20 frames later here, and waits at frame 700."""
    actions = np.full(1600, 3, np.uint8)
    actions[:10] = actions[700:720] = 0
    return LaserSearch(delay_start(InputLog(actions), 0))


def test_lost_game_is_found_again_by_a_longer_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 frames at the start, 40 at the human's wait make up a period of 60."""
    monkeypatch.setattr(LaserSearch, "PERIOD", 60)
    alignment = AlignmentSearch(make_laser_search(), can_wait=True)  # type: ignore[arg-type]
    assert alignment.find_closest().distance == 0
    human_frames = alignment.search.delayed.human_frames
    assert np.flatnonzero(np.bincount(human_frames) > 1).tolist() == [0, 700]
    assert (human_frames == 700).sum() == 1 + 40


@pytest.mark.parametrize(("min_width", "tries_all_actions"), [(1, False), (8, False), (32, True)])
def test_waits_are_tried_with_narrow_beams_before_all_actions(
    monkeypatch: pytest.MonkeyPatch, min_width: int, tries_all_actions: bool
) -> None:
    """A beam with the actions of the whole game costs more than waits with a narrow beam."""
    monkeypatch.setattr(LaserSearch, "MIN_WAIT_WIDTH", min_width)
    alignment = AlignmentSearch(make_laser_search(), can_wait=True)  # type: ignore[arg-type]
    alignment.find_closest()
    assert (alignment.search.delayed.human_frames == 700).sum() == 1 + 40
    beams = alignment.search.beams  # type: ignore[attr-defined]
    assert (None in [beam.action_window for beam in beams]) == tries_all_actions


@pytest.mark.parametrize(("can_wait", "period"), [(False, 60), (True, 64)])
def test_game_stays_lost_without_a_fitting_wait(
    monkeypatch: pytest.MonkeyPatch, can_wait: bool, period: int
) -> None:
    """44 frames would make up a period of 64, but waits are multiples of 8 frames."""
    monkeypatch.setattr(LaserSearch, "PERIOD", period)
    alignment = AlignmentSearch(make_laser_search(), can_wait)  # type: ignore[arg-type]
    assert alignment.find_closest().distance == 1000
    assert (np.bincount(alignment.search.delayed.human_frames)[1:] == 1).all()


class HardPlacesSearch:
    """A game whose segments can each be played only with some beam settings or wider ones."""

    num_steps = 6_000

    def __init__(self, needed_effort: dict[int, int]) -> None:
        self.needed_effort = needed_effort  # by the segment's last step; 99: none is enough
        self.reference_frames = np.arange(self.num_steps + 1)
        self.calls = 0

    def repaired_distance(self, begin: int, end: int) -> int:
        return 0

    def missing_score(self, candidate: Candidate, step: int) -> float:
        return 0

    def has_human_lives(self, candidate: Candidate, step: int) -> bool:
        return True

    def initial_candidate(self) -> Candidate:
        return Candidate(0, None, 0.0, (0,))  # type: ignore[arg-type]

    def extend(self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings):
        self.calls += 1
        assert self.calls < 1_000, "the search does not end"
        is_lost = BEAM_SETTINGS.index(settings) < self.needed_effort.get(end, 0)
        return [candidates[0]._replace(distance=candidates[0].distance + 1_000 * is_lost)]


@pytest.mark.parametrize("first", range(len(BEAM_SETTINGS)))
@pytest.mark.parametrize("second", range(len(BEAM_SETTINGS)))
@pytest.mark.parametrize("gap", [50, 100, 150])
def test_search_ends_at_hard_places_close_together(first: int, second: int, gap: int) -> None:
    """Going back from one hard place must not repeat what it did at the other one forever."""
    search = HardPlacesSearch({300: first, 300 + gap: second})
    alignment = AlignmentSearch(search)  # type: ignore[arg-type]
    assert alignment.find_closest().distance == 0
    assert alignment.lost_segments == 0


def test_long_game_may_lose_more_segments() -> None:
    """Five segments, or a tenth of those played: here one in twenty, then one in five."""
    search = HardPlacesSearch(dict.fromkeys(range(1000, 6001, 1000), 99))
    alignment = AlignmentSearch(search)  # type: ignore[arg-type]
    assert alignment.find_closest().distance == 6_000
    assert alignment.lost_segments == 6 > MAX_LOST_SEGMENTS
    search = HardPlacesSearch(dict.fromkeys(range(250, 6001, 250), 99))
    with pytest.raises(AlignmentLost, match="after step 1,450"):
        AlignmentSearch(search).find_closest()  # type: ignore[arg-type]


class MissedRewardSearch(HardPlacesSearch):
    """The human gains 100 points in the segment that ends at step 300, narrow beams do not."""

    def missing_score(self, candidate: Candidate, step: int) -> float:
        return 100 * (step >= 300) - candidate.score

    def extend(self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings):
        self.calls += 1
        is_gained = end == 300 and BEAM_SETTINGS.index(settings) >= self.needed_effort[end]
        return [candidates[0]._replace(score=candidates[0].score + 100 * is_gained)]


@pytest.mark.parametrize("effort", range(len(BEAM_SETTINGS)))
def test_missed_reward_is_searched_with_wider_beams_up_to_a_limit(effort: int) -> None:
    """A game that misses a reward is not lost: it costs a few segments, then it goes on."""
    search = MissedRewardSearch({300: effort})
    alignment = AlignmentSearch(search)  # type: ignore[arg-type]
    assert alignment.find_closest().score == 100 * (effort <= PREFERENCE_EFFORT)
    assert alignment.lost_segments == 0
    assert search.calls <= 6_000 // 50 + 8


class OtherTimersSearch(HardPlacesSearch):
    """From step 100 on, the game is 300 away from the human's, with every beam.

    The human gains 100 points before step 250; the candidates do, too, if `is_gained`.
    """

    def __init__(self, is_gained: bool, has_lives: bool) -> None:
        super().__init__({})
        self.is_gained, self.has_lives = is_gained, has_lives
        self.widest = 0  # index of the widest beam that was used

    def missing_score(self, candidate: Candidate, step: int) -> float:
        return 100 * (step >= 250) - candidate.score

    def has_human_lives(self, candidate: Candidate, step: int) -> bool:
        return self.has_lives

    def extend(self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings):
        if settings in BEAM_SETTINGS:
            self.widest = max(self.widest, BEAM_SETTINGS.index(settings))
        score = 100.0 if end >= 250 and self.is_gained else 0.0
        return [candidates[0]._replace(distance=300 if end >= 100 else 0, score=score)]


@pytest.mark.parametrize("is_gained", [False, True])
@pytest.mark.parametrize("has_lives", [False, True])
def test_game_with_other_timers_is_not_lost_if_it_gains_the_next_reward(
    monkeypatch: pytest.MonkeyPatch, is_gained: bool, has_lives: bool
) -> None:
    """The widest beams and longer waits are for games that miss the reward or lose a life."""
    monkeypatch.setattr(AlignmentSearch, "_insert_wait", lambda *_: False)
    search = OtherTimersSearch(is_gained, has_lives)
    alignment = AlignmentSearch(search, can_wait=True)  # type: ignore[arg-type]
    assert alignment.find_closest().distance == 300
    is_found = is_gained and has_lives
    assert (search.widest, alignment.lost_segments) == (
        (PREFERENCE_EFFORT, 0) if is_found else (len(BEAM_SETTINGS) - 1, 1)
    )
