"""A beam search for one action per step, so that the game stays close to a human's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookfurther.demos.delayed_log import NOOP, DelayedLog, insert_wait
from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import (
    PAD_ACTION,
    frames_by_step,
    make_emulator,
    play_log,
    step_ends,
)
from lookfurther.demos.policy_trace import PolicyTable, PolicyTrace
from lookfurther.envs.emulator import load_game, make_ale
from lookfurther.envs.factory import find_game

if TYPE_CHECKING:
    from ale_py import ALEState

# The distance of a candidate from the human's play is a sum over RAM bytes, score and lives.
BYTE_LIMIT_RANGE = (2, 64)  # most for a byte: if it changes in every step, if it rarely changes
SCORE_PENALTY = 40  # for another score
LIFE_PENALTY = 60  # for each life more or fewer
CONFLICT_PENALTY = 25  # for each observation that other games have with other actions


class BeamSettings(NamedTuple):
    """The effort of the search. The first settings are enough nearly everywhere."""

    width: int  # candidates that are kept
    action_window: int  # steps before and after a step whose actions it may take
    backtrack_segments: int  # segments to go back first


class ReferencePlay(NamedTuple):
    """The human's game after each frame."""

    ram: np.ndarray  # [F + 1, 128] int16
    scores: np.ndarray  # [F + 1] float64
    lives: np.ndarray  # [F + 1] int64
    byte_limits: np.ndarray  # [128] int64: the largest distance that a byte contributes


class Candidate(NamedTuple):
    """A game that was played up to a step."""

    distance: int  # from the human's play
    state: ALEState
    score: float
    action_history: tuple[Any, ...]  # (last action, history before it)
    trace: PolicyTrace | None = None  # None if the observations do not matter

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
        self.ram_writes: dict[int, list[tuple[int, int]]] = {}
        for frame, address, value in start_log.ram_writes.tolist():
            self.ram_writes.setdefault(frame, []).append((address, value))
        self._ale = make_ale(seed=start_log.seed)
        load_game(self._ale, find_game(env), start_log.variant)

    def with_wait(self, frame: int, count: int) -> BeamSearch:
        """The search for the same game with `count` more no-op frames before a frame."""
        delayed = insert_wait(self.delayed, frame, count)
        return BeamSearch(self.reference, delayed, self.env, self.action_repeat, self.policy_table)

    def initial_candidate(self) -> Candidate:
        trace = None
        if self.policy_table is not None:
            trace = PolicyTrace().add_frame(self._ale.getScreenGrayscale())
        return Candidate(0, self._ale.cloneState(), 0.0, (), trace)

    def extend(
        self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings
    ) -> list[Candidate]:
        """The closest candidates after more steps, best first; empty if all games are over.

        They do not act before the human does.
        """
        for step in range(begin, end):
            window = settings.action_window if step >= self.first_active_step else 0
            first, last = max(step - window, 0), step + window
            nearby = self.step_frames[first : last + 1]
            actions = sorted(set(nearby.flatten().tolist()) - {PAD_ACTION})
            successors = self._expand(candidates, actions, step)
            human_frame = self.reference_frames[step + 1]
            candidates = select_nearest(successors, self.reference, human_frame, settings.width)
        return candidates

    def _expand(
        self, candidates: list[Candidate], actions: list[int], step: int
    ) -> Iterator[Successor]:
        """Every action after every candidate, except games that end before the human's."""
        ale, is_last = self._ale, step + 1 == self.num_steps
        for candidate in candidates:
            for action in self._add_known_actions(candidate.trace, actions):
                ale.restoreState(candidate.state)
                reward, trace = self._play_step(candidate.trace, action, step)
                if is_last or not ale.game_over(with_truncation=False):
                    history, score = (action, candidate.action_history), candidate.score + reward
                    extended = Candidate(0, ale.cloneState(), score, history, trace)
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
        return sorted({*actions, *known})


def record_reference(human_log: InputLog, env: str, action_repeat: int) -> ReferencePlay:
    """Play the human's game and record it after each frame."""
    emulator = make_emulator(human_log, env, action_repeat)
    score, rows = 0.0, [(emulator.ram(), 0.0, emulator.lives)]
    for reward in play_log(human_log, emulator):
        score += reward
        rows.append((emulator.ram(), score, emulator.lives))
    ram, scores, lives = zip(*rows, strict=True)
    ram = np.array(ram, np.int16)
    byte_limits = compute_byte_limits(ram[::action_repeat])
    return ReferencePlay(ram, np.array(scores), np.array(lives), byte_limits)


def compute_byte_limits(ram: np.ndarray) -> np.ndarray:
    """The largest distance of each byte, [128]; higher if it changes rarely in [T + 1, 128].

    Doors, keys and lives change rarely, and a difference there persists. Timers and random numbers
    change in every step. Positions are in between.
    """
    change_rate = (ram[1:] != ram[:-1]).mean(0)
    limits = BYTE_LIMIT_RANGE[0] / np.maximum(change_rate, 1e-9)
    return np.clip(limits, *BYTE_LIMIT_RANGE).astype(np.int64)


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
        distance += CONFLICT_PENALTY * (candidate.trace.conflicts if candidate.trace else 0)
        key = ram[is_key_byte].tobytes()
        if key not in nearest or distance < nearest[key].distance:
            nearest[key] = candidate._replace(distance=distance)
    return sorted(nearest.values(), key=lambda candidate: candidate.distance)[:width]


def ram_distances(ram: np.ndarray, other_ram: np.ndarray, byte_limits: np.ndarray) -> np.ndarray:
    """The sum of the differences of all bytes modulo 256, each up to its limit; of [..., 128]."""
    difference = (ram.astype(np.int16) - other_ram) & 255
    return np.minimum(np.minimum(difference, 256 - difference), byte_limits).sum(-1)
