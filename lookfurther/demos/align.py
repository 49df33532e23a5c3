"""Align a human's game to an agent's steps: find one action for each step.

A human changes buttons at any frame, an agent only every few frames. Training takes the most
frequent action of each step, and playing these actions soon diverges from the human's trajectory.
A beam search finds one action for each step so that the emulator's RAM stays as close to the
human's as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import (
    PAD_ACTION,
    episode_from_log,
    frames_by_step,
    make_emulator,
    play_log,
    play_steps,
    step_ends,
    truncate_log,
    with_step_actions,
)
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import load_game, make_ale
from lookfurther.envs.factory import find_game
from lookfurther.errors import DemonstrationError

if TYPE_CHECKING:
    from ale_py import ALEState

# The distance of a candidate from the human's play is a sum over RAM bytes, score and lives.
BYTE_LIMIT_RANGE = (2, 64)  # most for a byte: if it changes in every step, if it rarely changes
SCORE_PENALTY = 40  # for another score
LIFE_PENALTY = 60  # for each life more or fewer
SEGMENT_STEPS = 50  # steps between two checks of the candidates
MAX_SEGMENT_DRIFT = 100  # increase of the distance in a segment that counts as lost
MAX_LOST_SEGMENTS = 5  # segments that may stay lost with every beam setting


class BeamSettings(NamedTuple):
    """The effort of the search. The first settings suffice nearly everywhere."""

    width: int  # candidates that are kept
    action_window: int  # steps before and after a step whose actions it may take
    backtrack_segments: int  # segments to go back first


BEAM_SETTINGS = (BeamSettings(48, 1, 0), BeamSettings(128, 2, 2), BeamSettings(384, 3, 4))

ProgressCallback = Callable[[int, int], None]  # steps done, steps in total


class ReferencePlay(NamedTuple):
    """The human's game after each step."""

    ram: np.ndarray  # [T + 1, 128] int16
    scores: np.ndarray  # [T + 1] float64
    lives: np.ndarray  # [T + 1] int64
    byte_limits: np.ndarray  # [128] int64: the largest distance that a byte contributes


class Candidate(NamedTuple):
    """A play of the first steps."""

    distance: int  # from the human's play
    state: ALEState
    score: float
    action_history: tuple[Any, ...]  # (last action, history before it)

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


class AlignmentLost(DemonstrationError):
    """No candidate stays close to the human's play."""

    def __init__(self, step: int) -> None:
        super().__init__(f"no actions follow the human's game after step {step:,}")


def align_episode(
    episode: Episode, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> Episode:
    """An Atari episode with one action per step, as close to the recorded one as possible."""
    input_log = search_alignment(_require_log(episode), env, action_repeat, on_progress)
    return verified_episode(input_log, env, action_repeat)


def hold_episode_actions(episode: Episode, env: str, action_repeat: int) -> InputLog:
    """The input log of an agent that takes the episode's one action in every step."""
    input_log = _require_log(episode)
    emulator = make_emulator(input_log, env, action_repeat)
    action_ids = np.array(emulator.legal_actions)[episode.actions]
    return _hold_actions(input_log, action_ids, env, action_repeat)


def _require_log(episode: Episode) -> InputLog:
    if episode.input_log is None:
        raise DemonstrationError("an episode without an input log cannot be aligned")
    return episode.input_log


def _hold_actions(
    input_log: InputLog, action_ids: np.ndarray, env: str, action_repeat: int
) -> InputLog:
    """The input log with one action per step, truncated where the game is over."""
    held = with_step_actions(input_log, action_ids, action_repeat)
    emulator = make_emulator(input_log, env, action_repeat)
    return truncate_log(held, sum(1 for _ in play_log(held, emulator)))


def verified_episode(input_log: InputLog, env: str, action_repeat: int) -> Episode:
    """The episode of an input log, with the audit of its replay."""
    env_config = EnvConfig(action_repeat=action_repeat)
    episode = episode_from_log(input_log, env, action_repeat)
    return replace(episode, audit=verify_episode(episode, get_spec(env, env_config), env_config))


def imitation_score(episode: Episode, env: str, action_repeat: int) -> float:
    """The score of an agent that takes the episode's action in every step."""
    if episode.input_log is None:
        return episode.score
    input_log = hold_episode_actions(episode, env, action_repeat)
    return sum(play_log(input_log, make_emulator(input_log, env, action_repeat)))


def search_alignment(
    input_log: InputLog, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> InputLog:
    """The input log of the candidate that ends closest to the human's play.

    If all candidates of a segment drift away, the search goes back and repeats it with a wider
    beam. If that fails too, the closest candidates continue: a room that is entered a little later
    also looks lost, and one missed reward does not end the game.
    """
    search = BeamSearch(input_log, env, action_repeat)
    history, effort, lost_until, lost_segments = [(0, [search.initial_candidate()])], 0, 0, 0
    while history[-1][0] < search.num_steps:
        begin, previous = history[-1]
        end = min(begin + SEGMENT_STEPS, search.num_steps)
        candidates = search.extend(previous, begin, end, BEAM_SETTINGS[effort])
        max_distance = MAX_SEGMENT_DRIFT + previous[0].distance
        is_lost = not candidates or candidates[0].distance > max_distance
        if is_lost and effort + 1 < len(BEAM_SETTINGS):
            effort, lost_until = effort + 1, end
            del history[max(1, len(history) - BEAM_SETTINGS[effort].backtrack_segments) :]
            continue
        lost_segments += is_lost
        if not candidates or lost_segments > MAX_LOST_SEGMENTS:
            raise AlignmentLost(begin)
        history.append((end, candidates))
        if end >= lost_until:
            effort = 0
        if on_progress:
            on_progress(end, search.num_steps)
    _, (closest, *_) = history[-1]
    return _hold_actions(input_log, closest.action_sequence(), env, action_repeat)


class BeamSearch:
    """Extends candidates step by step and compares them with the human's play."""

    def __init__(self, input_log: InputLog, env: str, action_repeat: int) -> None:
        self.reference = record_reference(input_log, env, action_repeat)
        self.step_frames = frames_by_step(input_log.frame_actions, action_repeat, input_log.phase)
        self.step_ends = step_ends(input_log, action_repeat).tolist()
        self.num_steps = len(self.step_frames)
        self.ram_writes: dict[int, list[tuple[int, int]]] = {}
        for frame, address, value in input_log.ram_writes.tolist():
            self.ram_writes.setdefault(frame, []).append((address, value))
        self._ale = make_ale(seed=input_log.seed)
        load_game(self._ale, find_game(env), input_log.variant)

    def initial_candidate(self) -> Candidate:
        return Candidate(0, self._ale.cloneState(), 0.0, ())

    def extend(
        self, candidates: list[Candidate], begin: int, end: int, settings: BeamSettings
    ) -> list[Candidate]:
        """The closest candidates after more steps, best first; empty if all games are over."""
        for step in range(begin, end):
            first, last = max(step - settings.action_window, 0), step + settings.action_window
            nearby = self.step_frames[first : last + 1]
            actions = sorted(set(nearby.flatten().tolist()) - {PAD_ACTION})
            successors = self._expand(candidates, actions, step)
            candidates = select_nearest(successors, self.reference, step + 1, settings.width)
        return candidates

    def _expand(
        self, candidates: list[Candidate], actions: list[int], step: int
    ) -> Iterator[Successor]:
        """Every action after every candidate, except games that end before the human's."""
        ale, is_last = self._ale, step + 1 == self.num_steps
        frames = range(self.step_ends[step], self.step_ends[step + 1])
        for candidate in candidates:
            for action in actions:
                ale.restoreState(candidate.state)
                score = candidate.score
                for frame in frames:
                    for address, value in self.ram_writes.get(frame, ()):
                        ale.setRAM(address, value)
                    score += ale.act(action)
                if is_last or not ale.game_over(with_truncation=False):
                    history = (action, candidate.action_history)
                    extended = Candidate(0, ale.cloneState(), score, history)
                    yield Successor(ale.getRAM(), ale.lives(), extended)


def record_reference(input_log: InputLog, env: str, action_repeat: int) -> ReferencePlay:
    """Play the human's game and record it after each step."""
    emulator = make_emulator(input_log, env, action_repeat)
    score, rows = 0.0, []
    for step in play_steps(input_log, emulator):
        score += step.reward
        rows.append((emulator.ram(), score, emulator.lives))
    ram, scores, lives = zip(*rows, strict=True)
    ram = np.array(ram, np.int16)
    return ReferencePlay(ram, np.array(scores), np.array(lives), compute_byte_limits(ram))


def compute_byte_limits(ram: np.ndarray) -> np.ndarray:
    """The largest distance of each byte, [128]; higher if it changes rarely in [T + 1, 128].

    Doors, keys and lives change rarely, and a difference there persists. Timers and random numbers
    change in every step. Positions are in between.
    """
    change_rate = (ram[1:] != ram[:-1]).mean(0)
    limits = BYTE_LIMIT_RANGE[0] / np.maximum(change_rate, 1e-9)
    return np.clip(limits, *BYTE_LIMIT_RANGE).astype(np.int64)


def select_nearest(
    successors: Iterator[Successor], reference: ReferencePlay, step: int, width: int
) -> list[Candidate]:
    """The candidates closest to the human's play, without duplicates.

    Candidates are duplicates if their RAM differs only in bytes that change in every step.
    Otherwise one play with many different timers would soon fill the beam.
    """
    nearest: dict[bytes, Candidate] = {}
    is_key_byte = reference.byte_limits > BYTE_LIMIT_RANGE[0]
    for ram, lives, candidate in successors:
        distance = ram_distance(ram, reference.ram[step], reference.byte_limits)
        distance += LIFE_PENALTY * abs(lives - int(reference.lives[step]))
        distance += SCORE_PENALTY * int(candidate.score != reference.scores[step])
        key = ram[is_key_byte].tobytes()
        if key not in nearest or distance < nearest[key].distance:
            nearest[key] = candidate._replace(distance=distance)
    return sorted(nearest.values(), key=lambda candidate: candidate.distance)[:width]


def ram_distance(ram: np.ndarray, reference_ram: np.ndarray, byte_limits: np.ndarray) -> int:
    """The sum of the differences of all bytes modulo 256, each up to its limit."""
    difference = (ram.astype(np.int16) - reference_ram) & 255
    return int(np.minimum(np.minimum(difference, 256 - difference), byte_limits).sum())
