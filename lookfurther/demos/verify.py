"""Demonstrations played again: equal in every plane and reward, or the first difference (F28)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Audit, Episode, InputLog
from lookfurther.demos.playback import majority_actions, make_emulator, play_log, step_ends
from lookfurther.envs.emulator import FUSED_MULTIPLY_ADD, Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec


class PlaybackStep(NamedTuple):
    """One answer of a replay; the first is of the reset."""

    planes: Iterable[np.ndarray]  # the plane, in each way a machine may have rounded it
    reward: float
    terminal: bool


def verify_episode(episode: Episode, spec: Spec, env_config: EnvConfig) -> Audit:
    """Replay an episode from its tape or its seed, and compare."""
    ambiguous = 0
    if episode.input_log is not None:
        emulator = make_emulator(
            episode.input_log, spec.env, env_config.action_repeat, env_config.sticky_prob
        )
        actions, ambiguous = majority_actions(episode.input_log, emulator)
        if not np.array_equal(actions, episode.actions):
            fault = "its actions are not those of its tape's frames"
            return Audit(False, episode.score, None, 0, ambiguous, fault)
        replay = _play_atari(episode.input_log, emulator)
    elif episode.seed is not None:
        replay = _play_gymnasium(episode, spec, env_config)
    else:
        fault = "it has neither a seed nor a tape, so it cannot be replayed"
        return Audit(False, episode.score, None, 0, 0, fault)
    return _compare_playback(episode, replay, ambiguous)


def _compare_playback(episode: Episode, playback: Iterator[PlaybackStep], ambiguous: int) -> Audit:
    """Follow a replay to its end; after the first difference only its score still matters."""
    score, compared, mismatch = 0.0, 0, ""
    t = -1
    for t, played in enumerate(playback):
        score += played.reward
        if not mismatch:
            mismatch = _find_difference(episode, t, played)
            compared += 1
    if not mismatch and t < len(episode):
        mismatch = f"the replay ends after step {t}, the recording has {len(episode)}"
    equal = {"rewards": len(episode), "end": 1, "observations": len(episode) + 1}
    checks = {} if mismatch else equal
    return Audit(not mismatch, episode.score, score, compared, ambiguous, mismatch, checks)


def _find_difference(episode: Episode, t: int, step: PlaybackStep) -> str:
    """What is not the same after t steps, in words."""
    if t > len(episode):
        return f"the recording ends after step {len(episode)}, the replay goes on"
    last = t == len(episode)
    if t and step.reward != episode.rewards[t - 1]:
        return f"step {t}: the reward is {step.reward:g}, recorded {episode.rewards[t - 1]:g}"
    if step.terminal != (last and episode.terminal):
        return f"step {t}: the replay {'ends' if step.terminal else 'does not end'} there"
    different = []
    for plane in step.planes:
        different.append(np.count_nonzero(plane != episode.planes[t]))
        if not different[-1]:
            return ""
    return f"step {t}: {min(different)} of {episode.planes[t].size} values of the plane differ"


def _play_atari(input_log: InputLog, emulator: Emulator) -> Iterator[PlaybackStep]:
    """An Atari episode, in steps of `repeat` frames."""
    yield PlaybackStep(_possible_planes(emulator), 0.0, False)
    ends = set(step_ends(input_log, emulator.action_repeat).tolist())
    reward = 0.0
    for i, more in enumerate(play_log(input_log, emulator), 1):
        reward += more
        if i in ends or emulator.is_over:
            yield PlaybackStep(_possible_planes(emulator), reward, emulator.is_over)
            reward = 0.0


def _possible_planes(emulator: Emulator) -> Iterator[np.ndarray]:
    """The plane as this machine rounds it, then as others do."""
    yield emulator.current_plane(FUSED_MULTIPLY_ADD)
    yield emulator.current_plane(not FUSED_MULTIPLY_ADD)


def _play_gymnasium(episode: Episode, spec: Spec, env_config: EnvConfig) -> Iterator[PlaybackStep]:
    """An episode of a Gymnasium environment."""
    lane = Lane(EnvFactory(find_env_spec(spec.env), env_config), 0, 0)
    with closing(lane):
        plane, *_ = lane.begin_episode(seed=episode.seed)
        if lane.spec is not None and lane.spec.plane != spec.plane:
            raise DemonstrationError(
                f"{spec.env} shows planes {lane.spec.plane} here, the recording {spec.plane}:"
                " give the wrappers and the layout it was made with"
            )
        yield PlaybackStep((plane,), 0.0, False)
        for action in episode.actions.tolist():
            plane, reward, terminal, truncated, first, _ = lane.step(action)
            if first:  # it failed, and was built anew
                return
            yield PlaybackStep((plane,), float(np.float32(reward)), terminal)
            if terminal or truncated:
                return
