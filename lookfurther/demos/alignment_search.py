"""Follow a human's game segment by segment: search wider, or wait, where it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lookfurther.demos.beam_search import BeamSearch, BeamSettings, Candidate
from lookfurther.demos.delayed_log import find_human_waits
from lookfurther.errors import DemonstrationError

SEGMENT_STEPS = 50  # steps between two checks of the candidates
MAX_SEGMENT_DRIFT = 100  # increase of the distance in a segment that counts as lost
AHEAD_SEGMENTS = 4  # segments after a lost one in which the human's next reward is looked for
MAX_LOST_SEGMENTS = 5  # segments that may stay lost with every beam setting,
MAX_LOST_SHARE = 0.1  # or this share of those played

BEAM_SETTINGS = (
    BeamSettings(16, 1, 0),
    BeamSettings(48, 1, 1),
    BeamSettings(128, 2, 2),
    BeamSettings(96, None, 2),
    BeamSettings(256, None, 3),
)
PREFERENCE_EFFORT = 2  # an index of BEAM_SETTINGS: beams up to here are tried to miss no reward

# Waits that are tried where the human's game is lost.
WAIT_BEAMS = {2: BeamSettings(8, 1, 0), 3: BeamSettings(32, 1, 0)}  # by index of BEAM_SETTINGS
AHEAD_BEAM = BeamSettings(32, 1, 0)  # looks for the human's game after a lost segment
WAIT_FRAMES = range(8, 129, 8)  # lengths of a wait
WAIT_SEGMENTS = 6  # segments to go back at most
WAIT_PLACES = 2  # the human's latest waits, which are made longer
MIN_HUMAN_WAIT = 8  # frames of such a wait
MAX_WAIT_DRIFT = 20  # increase of the distance that needs no better wait

ProgressCallback = Callable[[int, int], None]  # steps done, steps in total


class AlignmentLost(DemonstrationError):
    """No candidate stays close to the human's play."""

    def __init__(self, step: int) -> None:
        super().__init__(f"no actions follow the human's game after step {step:,}")


class AlignmentSearch:
    """A search that goes back where all candidates of a segment drift away.

    It then repeats some segments with a wider beam. If that fails too, the closest candidates
    continue: a room that is entered a little later also looks lost, and one missed reward does not
    end the game.

    With `can_wait` it also makes the human's last waits longer. A game that starts later than the
    human's has other timers: lasers and enemies are not where the human met them. One longer wait
    can bring the timers back into step for the rest of the game.
    """

    def __init__(self, search: BeamSearch, can_wait: bool = False) -> None:
        self.search, self.can_wait = search, can_wait
        self.history = [(0, [search.initial_candidate()])]  # (step, candidates), by segment
        self.effort = 0  # an index of BEAM_SETTINGS
        self.lost_until = 0  # the step up to which the wider beam stays
        self.lost_segments = 0
        self.tried_waits: set[tuple[int, int]] = set()  # (frame of the human's game, effort)

    def find_closest(self, on_progress: ProgressCallback | None = None) -> Candidate:
        """The candidate that ends closest to the human's play."""
        while self.history[-1][0] < self.search.num_steps:
            begin, previous = self.history[-1]
            end = min(begin + SEGMENT_STEPS, self.search.num_steps)
            candidates = self.search.extend(previous, begin, end, BEAM_SETTINGS[self.effort])
            max_drift = MAX_SEGMENT_DRIFT + self.search.repaired_distance(begin, end)
            is_lost = self._is_lost(candidates, end, max_drift)
            if is_lost and (self._insert_wait(end) or self._widen_beam(end)):
                continue
            self.lost_segments += is_lost
            self.history.append((end, candidates))
            max_lost = max(MAX_LOST_SEGMENTS, MAX_LOST_SHARE * len(self.history))
            if not candidates or self.lost_segments > max_lost:
                raise AlignmentLost(begin)
            if end >= self.lost_until:
                self.effort = 0
            if on_progress:
                on_progress(end, self.search.num_steps)
        return self.history[-1][1][0]

    def _is_lost(self, candidates: list[Candidate], end: int, max_drift: float) -> bool:
        """Whether all candidates are far away; if waits are possible, also some segments later.

        With narrow beams, a segment is also lost if the candidates gain less than the human, and
        contradictions of other games add to the distance. With wider beams they do not.
        """
        _, previous = self.history[-1]
        if self.effort < PREFERENCE_EFFORT:
            drift = get_distance(candidates) - previous[0].distance
            return drift > max_drift or self._is_reward_missed(candidates[0], end)
        max_distance = max_drift + get_game_distance(previous)
        if get_game_distance(candidates) <= max_distance:
            return False
        return not (self.can_wait and self._is_found_later(candidates, end, max_distance))

    def _is_found_later(self, candidates: list[Candidate], end: int, max_distance: float) -> bool:
        """Whether the candidates are close one segment later, or gain the human's next reward.

        A game with other timers stays at a distance, and can still be the human's.
        """
        search, missing_score = self.search, self.search.missing_score
        for begin in range(end, search.num_steps, SEGMENT_STEPS)[:AHEAD_SEGMENTS]:
            ahead = min(begin + SEGMENT_STEPS, search.num_steps)
            found = search.extend(candidates, begin, ahead, AHEAD_BEAM)
            if begin == end and get_game_distance(found) <= max_distance:
                return True
            if not found or missing_score(found[0], ahead) > missing_score(candidates[0], begin):
                return False
            if missing_score(found[0], begin) < missing_score(candidates[0], begin):
                return search.has_human_lives(found[0], ahead)
            candidates = found
        return False

    def _is_reward_missed(self, candidate: Candidate, end: int) -> bool:
        """Whether the human gains more in the last segment."""
        begin, previous = self.history[-1]
        missing_score = self.search.missing_score
        return missing_score(candidate, end) > missing_score(previous[0], begin)

    def _widen_beam(self, end: int) -> bool:
        """Go back with the next wider beam, if there is one."""
        if self.effort + 1 == len(BEAM_SETTINGS):
            return False
        self.effort, self.lost_until = self.effort + 1, max(end, self.lost_until)
        segments = BEAM_SETTINGS[self.effort].backtrack_segments
        del self.history[max(1, len(self.history) - segments) :]
        return True

    def _insert_wait(self, end: int) -> bool:
        """Go back and wait longer than the human did, if the game is then found again."""
        attempt = int(self.search.reference_frames[end]), self.effort
        if not self.can_wait or self.effort not in WAIT_BEAMS or attempt in self.tried_waits:
            return False
        self.tried_waits.add(attempt)
        trials = self._try_waits(end, WAIT_BEAMS[self.effort])
        best = min(trials, key=lambda trial: trial[0], default=None)
        if best is None or best[0] > MAX_SEGMENT_DRIFT:
            return False
        _, segment, self.search = best
        del self.history[segment + 1 :]
        self.effort = 0
        return True

    def _try_waits(self, end: int, beam: BeamSettings) -> Iterator[tuple[float, int, BeamSearch]]:
        """Drift of the distance, segment to go back to, and search, for each wait."""
        search, first = self.search, max(0, len(self.history) - WAIT_SEGMENTS)
        begin_frame, end_frame = (search.step_ends[i] for i in (self.history[first][0], end))
        waits = find_human_waits(search.delayed, begin_frame, end_frame, MIN_HUMAN_WAIT)
        segment_frames = [search.step_ends[step] for step, _ in self.history]
        for frame in waits[:WAIT_PLACES]:
            segment = max(i for i, first in enumerate(segment_frames) if first <= frame)
            step, candidates = self.history[segment]
            for count in WAIT_FRAMES:
                longer = search.with_wait(frame, count)
                last = end + SEGMENT_STEPS + count // search.action_repeat
                found = longer.extend(candidates, step, min(last, longer.num_steps), beam)
                drift = get_distance(found) - candidates[0].distance
                yield drift, segment, longer
                if drift <= MAX_WAIT_DRIFT:
                    return


def get_distance(candidates: list[Candidate]) -> float:
    """The distance of the closest candidate; infinite if all games are over."""
    return candidates[0].distance if candidates else float("inf")


def get_game_distance(candidates: list[Candidate]) -> float:
    """The smallest distance without the penalty for contradicting other games."""
    distances = (candidate.distance - candidate.conflict_penalty for candidate in candidates)
    return min(distances, default=float("inf"))
