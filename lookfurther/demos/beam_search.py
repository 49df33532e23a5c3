"""A beam search for one action per step, so that the game stays close to a human's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookfurther.demos.delayed_log import NOOP, DelayedLog, insert_wait
from lookfurther.demos.episode import RAM_BYTES, InputLog
from lookfurther.demos.playback import (
    PAD_ACTION,
    frames_by_step,
    make_emulator,
    play_log,
    step_ends,
)
from lookfurther.demos.policy_trace import PolicyTable, PolicyTrace
from lookfurther.demos.ram_distance import (
    BYTE_LIMIT_RANGE,
    REPAIR_FRAMES,
    RamRepair,
    compute_byte_limits,
    find_common_actions,
    find_motion_bytes,
    find_ram_repairs,
    ram_distances,
)
from lookfurther.envs.emulator import load_game, make_ale
from lookfurther.envs.factory import find_game

if TYPE_CHECKING:
    from ale_py import ALEState

# The distance of a candidate from the human's play is a sum over RAM bytes, score and lives.
SCORE_PENALTY = 40  # for another score
LOSS_PENALTY = 150  # for each step with a negative reward that the human does not have
LIFE_PENALTY = 60  # for each life more or fewer
CONFLICT_PENALTY = 25  # for each observation that other games have with other actions


class BeamSettings(NamedTuple):
    """The effort of the search. The first settings are enough nearly everywhere."""

    width: int  # candidates that are kept
    action_window: int | None  # steps around a step whose actions it may take; None: whole game
    backtrack_segments: int  # segments to go back first


class ReferencePlay(NamedTuple):
    """The human's game after each frame."""

    ram: np.ndarray  # [F + 1, 128] int16
    scores: np.ndarray  # [F + 1] float64
    losses: np.ndarray  # [F + 1] int64: negative rewards so far
    lives: np.ndarray  # [F + 1] int64
    byte_limits: np.ndarray  # [128] int64: the largest distance that a byte contributes
    repairs: list[RamRepair]  # of the recording, by frame


class Candidate(NamedTuple):
    """A game that was played up to a step."""

    distance: int  # from the human's play
    state: ALEState
    score: float
    action_history: tuple[Any, ...]  # (last action, history before it)
    losses: int = 0  # steps with a negative reward
    trace: PolicyTrace | None = None  # None if the observations do not matter

    @property
    def conflict_penalty(self) -> int:
        """The part of the distance that is due to observations of other games."""
        return CONFLICT_PENALTY * (self.trace.conflicts if self.trace else 0)

    def action_sequence(self) -> np.ndarray:
        """[T] uint8."""
        actions, history = [], self.action_history
        while history:
            action, history = history
            actions.append(action)
        return np.array(actions[::-1], np.uint8)


class Successor(NamedTuple):
    """The result of one more step."""

    ram: np.ndarray  # [128] uint8
    lives: int
    candidate: Candidate


class BeamSearch:
    """Extends candidates step by step and compares them with the human's play.

    With a `policy_table` it prefers candidates that take the actions of the table where they see
    the same observations. One policy can then play all these games.
    """

    def __init__(
        self,
        reference: ReferencePlay,
        delayed: DelayedLog,
        env: str,
        action_repeat: int,
        policy_table: PolicyTable | None = None,
    ) -> None:
        self.reference, self.delayed, self.policy_table = reference, delayed, policy_table
        self.env, self.action_repeat = env, action_repeat
        start_log = delayed.input_log
        self.step_frames = frames_by_step(start_log.frame_actions, action_repeat, start_log.phase)
        self.step_ends = step_ends(start_log, action_repeat).tolist()
        last_frame = len(reference.scores) - 1
        self.reference_frames = np.minimum(delayed.human_frames[self.step_ends], last_frame)
        self.num_steps = len(self.step_frames)
        is_waiting = np.isin(self.step_frames, (NOOP, PAD_ACTION)).all(1)
        self.first_active_step = int(np.argmin(is_waiting))
        self.common_actions = find_common_actions(start_log.frame_actions)
        self.ram_writes: dict[int, list[tuple[int, int]]] = {}
        for frame, address, value in start_log.ram_writes.tolist():
            self.ram_writes.setdefault(frame, []).append((address, value))
        self._ale = make_ale(seed=start_log.seed)
        load_game(self._ale, find_game(env), start_log.variant)

    def with_wait(self, frame: int, count: int) -> BeamSearch:
        """The search for the same game with `count` more no-op frames before a frame."""
        delayed = insert_wait(self.delayed, frame, count)
        return BeamSearch(self.reference, delayed, self.env, self.action_repeat, self.policy_table)

    def repaired_distance(self, begin: int, end: int) -> int:
        """The most that RAM writes of the human's game alone add between two steps."""
        if self.ram_writes:
            return 0
        first, last = self.reference_frames[begin], self.reference_frames[end]
        is_repaired = np.zeros(RAM_BYTES, bool)
        for repair in self.reference.repairs:
            if first - REPAIR_FRAMES < repair.frame <= last:
                is_repaired |= repair.is_repaired
        return int(self.reference.byte_limits[is_repaired].sum())

    def missing_score(self, candidate: Candidate, step: int) -> float:
        """The points that the human has more than a candidate at a step."""
        return float(self.reference.scores[self.reference_frames[step]]) - candidate.score

    def has_human_lives(self, candidate: Candidate, step: int) -> bool:
        """Whether a candidate has as many lives as the human at a step."""
        self._ale.restoreState(candidate.state)
        return self._ale.lives() == int(self.reference.lives[self.reference_frames[step]])

    def initial_candidate(self) -> Candidate:
        trace = None
        if self.policy_table is not None:
            trace = PolicyTrace().add_frame(self._ale.getScreenGrayscale())
        return Candidate(0, self._ale.cloneState(), 0.0, (), trace=trace)

    def extend(
        self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings
    ) -> list[Candidate]:
        """The closest candidates after more steps, best first; empty if all games are over.

        They do not act before the human does.
        """
        for step in range(begin, end):
            actions = self.possible_actions(step, settings.action_window)
            plays = [(c, self._add_known_actions(c.trace, actions)) for c in candidates]
            candidates = self._select(plays, step, settings.width)
        return candidates

    def play_action(self, candidates: list[Candidate], action: int, step: int) -> list[Candidate]:
        """The candidates after a step with this action, closest first, without finished games."""
        return self._select([(c, [action]) for c in candidates], step, len(candidates))

    def _select(
        self, plays: list[tuple[Candidate, list[int]]], step: int, width: int
    ) -> list[Candidate]:
        """The closest games after a step with any of the actions of each candidate."""
        human_frame = self.reference_frames[step + 1]
        return select_nearest(self._expand(plays, step), self.reference, human_frame, width)

    def possible_actions(self, step: int, window: int | None) -> list[int]:
        """The actions that the human takes near a step, or in the whole game; those of it first.

        The first of equally good actions is taken.

        The whole game's may be needed if the game is not exactly the human's. Gravitar's ship, for
        example, enters a planet upside down in another revision of the ROM, and has to turn first.
        """
        if step < self.first_active_step:
            window = 0
        nearby = self.step_frames[max(step - (window or 0), 0) : step + (window or 0) + 1]
        others = self.common_actions if window is None else []
        actions = {*nearby.flatten().tolist(), *others} - {PAD_ACTION}
        shown = self.step_frames[step]
        return sorted(actions, key=lambda action: (action not in shown, action))

    def _expand(self, plays: list[tuple[Candidate, list[int]]], step: int) -> Iterator[Successor]:
        """Each candidate after each of its actions, except games that end before the human's."""
        ale, is_last = self._ale, step + 1 == self.num_steps
        for candidate, actions in plays:
            for action in actions:
                ale.restoreState(candidate.state)
                reward, trace = self._play_step(candidate.trace, action, step)
                if is_last or not ale.game_over(with_truncation=False):
                    history, score = (action, candidate.action_history), candidate.score + reward
                    losses = candidate.losses + (reward < 0)
                    extended = Candidate(0, ale.cloneState(), score, history, losses, trace)
                    yield Successor(ale.getRAM(), ale.lives(), extended)

    def _play_step(
        self, trace: PolicyTrace | None, action: int, step: int
    ) -> tuple[float, PolicyTrace | None]:
        """Hold an action for a step; returns the reward and the trace of the step."""
        reward, screens = 0.0, []
        for frame in range(self.step_ends[step], self.step_ends[step + 1]):
            for address, value in self.ram_writes.get(frame, ()):
                self._ale.setRAM(address, value)
            reward += self._ale.act(action)
            if trace is not None and frame + 2 >= self.step_ends[step + 1]:
                screens.append(self._ale.getScreenGrayscale())
        if trace is None or self.policy_table is None:
            return reward, None
        # An observation is the maximum of the last two frames of a step.
        return reward, trace.add_action(action, self.policy_table).add_frame(np.max(screens, 0))

    def _add_known_actions(self, trace: PolicyTrace | None, actions: list[int]) -> list[int]:
        """The actions to try, with those that other games have for the observation."""
        if trace is None or self.policy_table is None:
            return actions
        known = self.policy_table.actions.get(trace.observation, set())
        return [*actions, *sorted(known - {*actions})]


def record_reference(human_log: InputLog, env: str, action_repeat: int) -> ReferencePlay:
    """Play the human's game and record it after each frame."""
    emulator = make_emulator(human_log, env, action_repeat)
    rewards, rows = [0.0], [(emulator.ram(), emulator.lives)]
    for reward in play_log(human_log, emulator):
        rewards.append(reward)
        rows.append((emulator.ram(), emulator.lives))
    ram = np.array([ram for ram, _ in rows], np.int16)
    lives = np.array([lives for _, lives in rows])
    is_motion = find_motion_bytes(human_log, env, action_repeat, ram)
    byte_limits = compute_byte_limits(ram[::action_repeat], is_motion)
    losses = np.cumsum(np.array(rewards) < 0)
    repairs = find_ram_repairs(human_log, env, action_repeat)
    return ReferencePlay(ram, np.cumsum(rewards), losses, lives, byte_limits, repairs)


def select_nearest(
    successors: Iterator[Successor], reference: ReferencePlay, frame: int, width: int
) -> list[Candidate]:
    """The candidates closest to the human's play, without duplicates.

    Candidates are duplicates if their RAM differs only in bytes that change in every step.
    Otherwise one play with many different timers would soon fill the beam.
    """
    nearest: dict[bytes, Candidate] = {}
    is_key_byte = reference.byte_limits > BYTE_LIMIT_RANGE[0]
    for ram, lives, candidate in successors:
        distance = int(ram_distances(ram, reference.ram[frame], reference.byte_limits))
        distance += LIFE_PENALTY * abs(lives - int(reference.lives[frame]))
        distance += SCORE_PENALTY * int(candidate.score != reference.scores[frame])
        distance += LOSS_PENALTY * max(0, candidate.losses - int(reference.losses[frame]))
        distance += candidate.conflict_penalty
        key = ram[is_key_byte].tobytes()
        if key not in nearest or distance < nearest[key].distance:
            nearest[key] = candidate._replace(distance=distance)
    return sorted(nearest.values(), key=lambda candidate: candidate.distance)[:width]
