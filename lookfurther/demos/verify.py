"""Demonstrations played again: equal in every plane and reward, or the first difference (F28)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Audit, Episode, Tape
from lookfurther.demos.playback import choices, emulator_of, play, step_ends
from lookfurther.envs.emulator import FUSED, Emulator
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.sync import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec


class Played(NamedTuple):
    """One answer of a replay; the first is of the reset."""

    planes: Iterable[np.ndarray]  # the plane, in each way a machine may have rounded it
    reward: float
    terminal: bool


def verify(episode: Episode, spec: Spec, environment: Environment) -> Audit:
    """Replay an episode from its tape or its seed, and compare."""
    ambiguous = 0
    if episode.tape is not None:
        emulator = emulator_of(episode.tape, spec.env, environment.repeat, environment.sticky)
        actions, ambiguous = choices(episode.tape, emulator)
        if not np.array_equal(actions, episode.actions):
            fault = "its actions are not those of its tape's frames"
            return Audit(False, episode.score, None, 0, ambiguous, fault)
        replay = _emulated(episode.tape, emulator)
    elif episode.seed is not None:
        replay = _stepped(episode, spec, environment)
    else:
        fault = "it has neither a seed nor a tape, so it cannot be replayed"
        return Audit(False, episode.score, None, 0, 0, fault)
    return _compare(episode, replay, ambiguous)


def _compare(episode: Episode, replay: Iterator[Played], ambiguous: int) -> Audit:
    """Follow a replay to its end; after the first difference only its score still matters."""
    score, compared, mismatch = 0.0, 0, ""
    t = -1
    for t, played in enumerate(replay):
        score += played.reward
        if not mismatch:
            mismatch = _difference(episode, t, played)
            compared += 1
    if not mismatch and t < len(episode):
        mismatch = f"the replay ends after step {t}, the recording has {len(episode)}"
    equal = {"rewards": len(episode), "end": 1, "observations": len(episode) + 1}
    checks = {} if mismatch else equal
    return Audit(not mismatch, episode.score, score, compared, ambiguous, mismatch, checks)


def _difference(episode: Episode, t: int, played: Played) -> str:
    """What is not the same after t steps, in words."""
    if t > len(episode):
        return f"the recording ends after step {len(episode)}, the replay goes on"
    last = t == len(episode)
    if t and played.reward != episode.rewards[t - 1]:
        return f"step {t}: the reward is {played.reward:g}, recorded {episode.rewards[t - 1]:g}"
    if played.terminal != (last and episode.terminal):
        return f"step {t}: the replay {'ends' if played.terminal else 'does not end'} there"
    different = []
    for plane in played.planes:
        different.append(np.count_nonzero(plane != episode.planes[t]))
        if not different[-1]:
            return ""
    return f"step {t}: {min(different)} of {episode.planes[t].size} values of the plane differ"


def _emulated(tape: Tape, emulator: Emulator) -> Iterator[Played]:
    """An Atari episode, in steps of `repeat` frames."""
    yield Played(_planes(emulator), 0.0, False)
    ends = set(step_ends(tape, emulator.repeat).tolist())
    reward = 0.0
    for i, more in enumerate(play(tape, emulator), 1):
        reward += more
        if i in ends or emulator.over:
            yield Played(_planes(emulator), reward, emulator.over)
            reward = 0.0


def _planes(emulator: Emulator) -> Iterator[np.ndarray]:
    """The plane as this machine rounds it, then as others do."""
    yield emulator.plane(FUSED)
    yield emulator.plane(not FUSED)


def _stepped(episode: Episode, spec: Spec, environment: Environment) -> Iterator[Played]:
    """An episode of a Gymnasium environment."""
    lane = Lane(Blueprint(find(spec.env), environment), 0, 0)
    with closing(lane):
        plane, *_ = lane.begin(seed=episode.seed)
        if lane.spec is not None and lane.spec.plane != spec.plane:
            raise DemonstrationError(
                f"{spec.env} shows planes {lane.spec.plane} here, the recording {spec.plane}:"
                " give the wrappers and the layout it was made with"
            )
        yield Played((plane,), 0.0, False)
        for action in episode.actions.tolist():
            plane, reward, terminal, truncated, first, _ = lane.step(action)
            if first:  # it failed, and was built anew
                return
            yield Played((plane,), float(np.float32(reward)), terminal)
            if terminal or truncated:
                return
