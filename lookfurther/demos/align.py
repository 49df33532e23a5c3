"""A human's game in an agent's own steps: one action for each.

A human changes buttons at any frame, an agent only every few. Of a step with two actions training
takes the more frequent one, and that does not lead where the human went: an agent that imitates
every step of such a demonstration soon is elsewhere. A beam search finds one action for each step
so that the emulator's memory stays as near to the human's as it can.
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

# What counts when a way is held against the human's:
BYTE_LIMIT_RANGE = (
    2,
    64,
)  # a byte of memory, at most: one that changes in every step, one that hardly does
SCORE_PENALTY = 40  # another score
LIFE_PENALTY = 60  # a life more or fewer
SEGMENT_STEPS = 50  # steps after which ways are looked at
MAX_SEGMENT_DRIFT = 100  # so much further apart after a stretch, they have lost the human's
MAX_LOST_SEGMENTS = 5  # stretches that may be lost whatever is tried


class BeamSettings(NamedTuple):
    """How hard is tried; the first does nearly everywhere, the others where it loses the way."""

    width: int  # ways that are followed at a time
    action_window: int  # steps before and after, whose actions a step may have
    backtrack_segments: int  # stretches to go back first


BEAM_SETTINGS = (BeamSettings(48, 1, 0), BeamSettings(128, 2, 2), BeamSettings(384, 3, 4))

ProgressCallback = Callable[[int, int], None]  # steps done, of how many


class ReferencePlay(NamedTuple):
    """The human's game after each step."""

    ram: np.ndarray  # [T + 1, 128] int16
    scores: np.ndarray  # [T + 1] float64
    lives: np.ndarray  # [T + 1] int64
    byte_limits: np.ndarray  # [128] int64: what a byte counts at most


class Candidate(NamedTuple):
    """A play so far."""

    distance: int  # from the human's
    state: ALEState
    score: float
    action_history: tuple[Any, ...]  # (last action, moves before it)

    def action_sequence(self) -> np.ndarray:
        """[T] uint8."""
        found, moves = [], self.action_history
        while moves:
            action, moves = moves
            found.append(action)
        return np.array(found[::-1], np.uint8)


class Successor(NamedTuple):
    """Where a step leads."""

    ram: np.ndarray  # [128] uint8
    lives: int
    candidate: Candidate


class AlignmentLost(DemonstrationError):
    """The human's way is lost, and is not found again."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the human's way is lost at step {step:,}")


def align_episode(
    episode: Episode, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> Episode:
    """An Atari episode with one action a step, as near to the one recorded as it can be."""
    if episode.input_log is None:
        raise DemonstrationError("an episode without a tape cannot be aligned")
    return verified_episode(
        search_alignment(episode.input_log, env, action_repeat, on_progress), env, action_repeat
    )


def hold_episode_actions(episode: Episode, env: str, action_repeat: int) -> InputLog:
    """The tape of an agent that does in every step the one action that the episode has for it."""
    if episode.input_log is None:
        raise DemonstrationError("an episode without a tape cannot be aligned")
    emulator = make_emulator(episode.input_log, env, action_repeat)
    ids = np.array(emulator.legal_actions)[episode.actions]
    whole = with_step_actions(episode.input_log, ids, action_repeat)
    return truncate_log(whole, sum(1 for _ in play_log(whole, emulator)))


def verified_episode(input_log: InputLog, env: str, action_repeat: int) -> Episode:
    """The episode of a tape, with what a replay of it shows."""
    environment = EnvConfig(action_repeat=action_repeat)
    episode = episode_from_log(input_log, env, action_repeat)
    return replace(episode, audit=verify_episode(episode, get_spec(env, environment), environment))


def imitation_score(episode: Episode, env: str, action_repeat: int) -> float:
    """The score of an agent that does in every step what the episode says."""
    if episode.input_log is None:
        return episode.score
    tape = hold_episode_actions(episode, env, action_repeat)
    return sum(play_log(tape, make_emulator(tape, env, action_repeat)))


def search_alignment(
    input_log: InputLog, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> InputLog:
    """The tape of the way that ends nearest to the human's.

    Where a stretch leads all ways away from the human's, it is tried again from before, harder.
    Where that does not help, the nearest go on: a room entered a little later looks lost too, and
    points missed once are not the end.
    """
    follower = BeamSearch(input_log, env, action_repeat)
    marks, effort, lost, missed = [(0, [follower.initial_candidate()])], 0, 0, 0
    while marks[-1][0] < follower.num_steps:
        begin, before = marks[-1]
        end = min(begin + SEGMENT_STEPS, follower.num_steps)
        ways = follower.extend(before, begin, end, BEAM_SETTINGS[effort])
        off = not ways or ways[0].distance > MAX_SEGMENT_DRIFT + before[0].distance
        if off and effort + 1 < len(BEAM_SETTINGS):
            effort, lost = effort + 1, end
            del marks[max(1, len(marks) - BEAM_SETTINGS[effort].backtrack_segments) :]
            continue
        missed += off
        if not ways or missed > MAX_LOST_SEGMENTS:
            raise AlignmentLost(begin)
        marks.append((end, ways))
        if end >= lost:
            effort = 0
        if on_progress:
            on_progress(end, follower.num_steps)
    _, (way, *_) = marks[-1]
    whole = with_step_actions(input_log, way.action_sequence(), action_repeat)
    return truncate_log(
        whole, sum(1 for _ in play_log(whole, make_emulator(input_log, env, action_repeat)))
    )


class BeamSearch:
    """Plays beside the human's game."""

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
        """The nearest ways after some more steps, best first; none where all games are over."""
        for step in range(begin, end):
            near = self.step_frames[
                max(step - settings.action_window, 0) : step + settings.action_window + 1
            ]
            actions = sorted(set(near.flatten().tolist()) - {PAD_ACTION})
            candidates = select_nearest(
                self._expand(candidates, actions, step), self.reference, step + 1, settings.width
            )
        return candidates

    def _expand(
        self, candidates: list[Candidate], actions: list[int], step: int
    ) -> Iterator[Successor]:
        """What each action leads to from each way, but for games that end before the human's."""
        ale, last = self._ale, step + 1 == self.num_steps
        frames = range(self.step_ends[step], self.step_ends[step + 1])
        for way in candidates:
            for action in actions:
                ale.restoreState(way.state)
                points = way.score
                for frame in frames:
                    for address, value in self.ram_writes.get(frame, ()):
                        ale.setRAM(address, value)
                    points += ale.act(action)
                if last or not ale.game_over(with_truncation=False):
                    after = Candidate(0, ale.cloneState(), points, (action, way.action_history))
                    yield Successor(ale.getRAM(), ale.lives(), after)


def record_reference(input_log: InputLog, env: str, action_repeat: int) -> ReferencePlay:
    """The human's game, played again."""
    emulator, ends = (
        make_emulator(input_log, env, action_repeat),
        set(step_ends(input_log, action_repeat).tolist()),
    )
    points, rows = 0.0, [(emulator.ram(), 0.0, emulator.lives)]
    for i, reward in enumerate(play_log(input_log, emulator), 1):
        points += reward
        if i in ends:
            rows.append((emulator.ram(), points, emulator.lives))
    ram, scores, lives = zip(*rows, strict=True)
    ram = np.array(ram, np.int16)
    return ReferencePlay(ram, np.array(scores), np.array(lives), compute_byte_limits(ram))


def compute_byte_limits(ram: np.ndarray) -> np.ndarray:
    """What a byte counts at most, [128]: the more, the more seldom it changes in [T + 1, 128].

    Doors, keys and lives are such bytes, and a difference there stays. Those that change in every
    step are timers and random numbers, and places lie between.
    """
    share = (ram[1:] != ram[:-1]).mean(0)
    return np.clip(BYTE_LIMIT_RANGE[0] / np.maximum(share, 1e-9), *BYTE_LIMIT_RANGE).astype(
        np.int64
    )


def select_nearest(
    successors: Iterator[Successor], reference: ReferencePlay, step: int, width: int
) -> list[Candidate]:
    """The ways that are least apart from the human's, no two alike.

    Two are alike whose memories differ only in what changes in every step: without that, a beam
    is soon full of one way with many timers.
    """
    found: dict[bytes, Candidate] = {}
    telling = reference.byte_limits > BYTE_LIMIT_RANGE[0]
    for ram, lives, way in successors:
        apart = ram_distance(ram, reference.ram[step], reference.byte_limits)
        apart += LIFE_PENALTY * abs(lives - int(reference.lives[step]))
        apart += SCORE_PENALTY * int(way.score != reference.scores[step])
        key = ram[telling].tobytes()
        if key not in found or apart < found[key].distance:
            found[key] = way._replace(distance=apart)
    return sorted(found.values(), key=lambda way: way.distance)[:width]


def ram_distance(ram: np.ndarray, reference_ram: np.ndarray, byte_limits: np.ndarray) -> int:
    """How far two memories are apart: byte by byte, round the circle, each at most so much."""
    there = (ram.astype(np.int16) - reference_ram) & 255
    return int(np.minimum(np.minimum(there, 256 - there), byte_limits).sum())
