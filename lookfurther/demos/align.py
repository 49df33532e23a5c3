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

from lookfurther.config import Environment
from lookfurther.demos.episode import Episode, Tape
from lookfurther.demos.playback import PAD, blocks, cut, emulator_of, held, play, step_ends, unroll
from lookfurther.demos.verify import verify
from lookfurther.envs import describe
from lookfurther.envs.emulator import console, game_of, switch_on
from lookfurther.errors import DemonstrationError

if TYPE_CHECKING:
    from ale_py import ALEState

# What counts when a way is held against the human's:
BYTE = (2, 64)  # a byte of memory, at most: one that changes in every step, one that hardly does
POINTS = 40  # another score
LIFE = 60  # a life more or fewer
STRETCH = 50  # steps after which ways are looked at
LOST = 100  # so much further apart after a stretch, they have lost the human's
PATIENCE = 5  # stretches that may be lost whatever is tried


class Effort(NamedTuple):
    """How hard is tried; the first does nearly everywhere, the others where it loses the way."""

    width: int  # ways that are followed at a time
    reach: int  # steps before and after, whose actions a step may have
    back: int  # stretches to go back first


EFFORTS = (Effort(48, 1, 0), Effort(128, 2, 2), Effort(384, 3, 4))

Report = Callable[[int, int], None]  # steps done, of how many


class Guide(NamedTuple):
    """The human's game after each step."""

    ram: np.ndarray  # [T + 1, 128] int16
    points: np.ndarray  # [T + 1] float64
    lives: np.ndarray  # [T + 1] int64
    most: np.ndarray  # [128] int64: what a byte counts at most


class Way(NamedTuple):
    """A play so far."""

    apart: int  # from the human's
    state: ALEState
    points: float
    moves: tuple[Any, ...]  # (last action, moves before it)

    def actions(self) -> np.ndarray:
        """[T] uint8."""
        found, moves = [], self.moves
        while moves:
            action, moves = moves
            found.append(action)
        return np.array(found[::-1], np.uint8)


class Reached(NamedTuple):
    """Where a step leads."""

    ram: np.ndarray  # [128] uint8
    lives: int
    way: Way


class Astray(DemonstrationError):
    """The human's way is lost, and is not found again."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the human's way is lost at step {step:,}")


def align(episode: Episode, env: str, repeat: int, report: Report | None = None) -> Episode:
    """An Atari episode with one action a step, as near to the one recorded as it can be."""
    if episode.tape is None:
        raise DemonstrationError("an episode without a tape cannot be aligned")
    return verified(retrace(episode.tape, env, repeat, report), env, repeat)


def own_actions(episode: Episode, env: str, repeat: int) -> Tape:
    """The tape of an agent that does in every step the one action that the episode has for it."""
    if episode.tape is None:
        raise DemonstrationError("an episode without a tape cannot be aligned")
    emulator = emulator_of(episode.tape, env, repeat)
    ids = np.array(emulator.legal)[episode.actions]
    whole = held(episode.tape, ids, repeat)
    return cut(whole, sum(1 for _ in play(whole, emulator)))


def verified(tape: Tape, env: str, repeat: int) -> Episode:
    """The episode of a tape, with what a replay of it shows."""
    environment = Environment(repeat=repeat)
    episode = unroll(tape, env, repeat)
    return replace(episode, audit=verify(episode, describe(env, environment), environment))


def done(episode: Episode, env: str, repeat: int) -> float:
    """The score of an agent that does in every step what the episode says."""
    if episode.tape is None:
        return episode.score
    tape = own_actions(episode, env, repeat)
    return sum(play(tape, emulator_of(tape, env, repeat)))


def retrace(tape: Tape, env: str, repeat: int, report: Report | None = None) -> Tape:
    """The tape of the way that ends nearest to the human's.

    Where a stretch leads all ways away from the human's, it is tried again from before, harder.
    Where that does not help, the nearest go on: a room entered a little later looks lost too, and
    points missed once are not the end.
    """
    follower = Follower(tape, env, repeat)
    marks, effort, lost, missed = [(0, [follower.start()])], 0, 0, 0
    while marks[-1][0] < follower.steps:
        begin, before = marks[-1]
        end = min(begin + STRETCH, follower.steps)
        ways = follower.follow(before, begin, end, EFFORTS[effort])
        off = not ways or ways[0].apart > LOST + before[0].apart
        if off and effort + 1 < len(EFFORTS):
            effort, lost = effort + 1, end
            del marks[max(1, len(marks) - EFFORTS[effort].back) :]
            continue
        missed += off
        if not ways or missed > PATIENCE:
            raise Astray(begin)
        marks.append((end, ways))
        if end >= lost:
            effort = 0
        if report:
            report(end, follower.steps)
    _, (way, *_) = marks[-1]
    whole = held(tape, way.actions(), repeat)
    return cut(whole, sum(1 for _ in play(whole, emulator_of(tape, env, repeat))))


class Follower:
    """Plays beside the human's game."""

    def __init__(self, tape: Tape, env: str, repeat: int) -> None:
        self.guide = guide_of(tape, env, repeat)
        self.blocks = blocks(tape.frames, repeat, tape.phase)
        self.ends = step_ends(tape, repeat).tolist()
        self.steps = len(self.blocks)
        self.writes: dict[int, list[tuple[int, int]]] = {}
        for frame, address, value in tape.writes.tolist():
            self.writes.setdefault(frame, []).append((address, value))
        self._ale = console(seed=tape.seed)
        switch_on(self._ale, game_of(env), tape.variant)

    def start(self) -> Way:
        return Way(0, self._ale.cloneState(), 0.0, ())

    def follow(self, ways: list[Way], begin: int, end: int, effort: Effort) -> list[Way]:
        """The nearest ways after some more steps, best first; none where all games are over."""
        for step in range(begin, end):
            near = self.blocks[max(step - effort.reach, 0) : step + effort.reach + 1]
            actions = sorted(set(near.flatten().tolist()) - {PAD})
            ways = nearest(self._reached(ways, actions, step), self.guide, step + 1, effort.width)
        return ways

    def _reached(self, ways: list[Way], actions: list[int], step: int) -> Iterator[Reached]:
        """What each action leads to from each way, but for games that end before the human's."""
        ale, last = self._ale, step + 1 == self.steps
        frames = range(self.ends[step], self.ends[step + 1])
        for way in ways:
            for action in actions:
                ale.restoreState(way.state)
                points = way.points
                for frame in frames:
                    for address, value in self.writes.get(frame, ()):
                        ale.setRAM(address, value)
                    points += ale.act(action)
                if last or not ale.game_over(with_truncation=False):
                    after = Way(0, ale.cloneState(), points, (action, way.moves))
                    yield Reached(ale.getRAM(), ale.lives(), after)


def guide_of(tape: Tape, env: str, repeat: int) -> Guide:
    """The human's game, played again."""
    emulator, ends = emulator_of(tape, env, repeat), set(step_ends(tape, repeat).tolist())
    points, rows = 0.0, [(emulator.ram(), 0.0, emulator.lives)]
    for i, reward in enumerate(play(tape, emulator), 1):
        points += reward
        if i in ends:
            rows.append((emulator.ram(), points, emulator.lives))
    ram, scores, lives = zip(*rows, strict=True)
    ram = np.array(ram, np.int16)
    return Guide(ram, np.array(scores), np.array(lives), most_of(ram))


def most_of(ram: np.ndarray) -> np.ndarray:
    """What a byte counts at most, [128]: the more, the more seldom it changes in [T + 1, 128].

    Doors, keys and lives are such bytes, and a difference there stays. Those that change in every
    step are timers and random numbers, and places lie between.
    """
    share = (ram[1:] != ram[:-1]).mean(0)
    return np.clip(BYTE[0] / np.maximum(share, 1e-9), *BYTE).astype(np.int64)


def nearest(reached: Iterator[Reached], guide: Guide, step: int, width: int) -> list[Way]:
    """The ways that are least apart from the human's, no two alike.

    Two are alike whose memories differ only in what changes in every step: without that, a beam
    is soon full of one way with many timers.
    """
    found: dict[bytes, Way] = {}
    telling = guide.most > BYTE[0]
    for ram, lives, way in reached:
        apart = distance(ram, guide.ram[step], guide.most)
        apart += LIFE * abs(lives - int(guide.lives[step]))
        apart += POINTS * int(way.points != guide.points[step])
        key = ram[telling].tobytes()
        if key not in found or apart < found[key].apart:
            found[key] = way._replace(apart=apart)
    return sorted(found.values(), key=lambda way: way.apart)[:width]


def distance(ram: np.ndarray, other: np.ndarray, most: np.ndarray) -> int:
    """How far two memories are apart: byte by byte, round the circle, each at most so much."""
    there = (ram.astype(np.int16) - other) & 255
    return int(np.minimum(np.minimum(there, 256 - there), most).sum())
