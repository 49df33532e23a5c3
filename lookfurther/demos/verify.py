"""Verify a demonstration: play it again and compare every plane and reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.playback import (
    PlaybackStep,
    majority_actions,
    make_emulator,
    make_lane,
    play_from_seed,
    play_steps,
)
from lookfurther.envs.trust import import_modules
from lookfurther.errors import DemonstrationError
from lookfurther.system.processes import parallel_map
from lookfurther.types import Spec


def verify_episodes(
    episodes: Sequence[Episode], spec: Spec, env_config: EnvConfig, modules: Sequence[str] = ()
) -> Iterator[Audit]:
    """Verify episodes with one process per core, which first imports `modules`."""
    verify = partial(_verify_in_process, spec=spec, env_config=env_config, modules=modules)
    return parallel_map(verify, episodes)


def _verify_in_process(
    episode: Episode, spec: Spec, env_config: EnvConfig, modules: Sequence[str]
) -> Audit:
    import_modules(modules)
    return verify_episode(episode, spec, env_config)


def verify_episode(episode: Episode, spec: Spec, env_config: EnvConfig) -> Audit:
    """Play an episode again from its input log or its seed, and compare."""
    ambiguous = 0
    if episode.input_log is not None:
        emulator = make_emulator(
            episode.input_log, spec.env, env_config.action_repeat, env_config.sticky_prob
        )
        actions, ambiguous = majority_actions(episode.input_log, emulator)
        if not np.array_equal(actions, episode.actions):
            fault = "its actions are not those of its input log"
            return Audit(False, episode.score, None, 0, ambiguous, fault)
        playback = play_steps(episode.input_log, emulator)
    elif episode.seed is not None:
        playback = _play_gymnasium(episode, spec, env_config)
    else:
        fault = "it has neither a seed nor an input log, so it cannot be replayed"
        return Audit(False, episode.score, None, 0, 0, fault)
    return _compare_playback(episode, playback, ambiguous)


def _play_gymnasium(episode: Episode, spec: Spec, env_config: EnvConfig) -> Iterator[PlaybackStep]:
    """Play an episode of a Gymnasium environment; its rewards are float32 as in the recording."""
    with closing(make_lane(spec.env, env_config)) as lane:
        for step in play_from_seed(episode, lane):
            if lane.spec is not None and lane.spec.plane != spec.plane:
                raise DemonstrationError(
                    f"{spec.env} shows planes {lane.spec.plane} here, the recording {spec.plane}:"
                    " give the wrappers and the layout it was made with"
                )
            yield step._replace(reward=float(np.float32(step.reward)))


def _compare_playback(episode: Episode, playback: Iterator[PlaybackStep], ambiguous: int) -> Audit:
    """Compare until the first difference, then play on to get the score."""
    score, compared, mismatch = 0.0, 0, ""
    t = -1
    for t, step in enumerate(playback):
        score += step.reward
        if not mismatch:
            mismatch = _find_difference(episode, t, step)
            compared += 1
    if not mismatch and t < len(episode):
        mismatch = f"the replay ends after step {t}, the recording has {len(episode)}"
    equal = {"rewards": len(episode), "end": 1, "observations": len(episode) + 1}
    checks = {} if mismatch else equal
    return Audit(not mismatch, episode.score, score, compared, ambiguous, mismatch, checks)


def _find_difference(episode: Episode, t: int, step: PlaybackStep) -> str:
    """The first difference after t steps, or ""."""
    if t > len(episode):
        return f"the recording ends after step {len(episode)}, the replay continues"
    is_last = t == len(episode)
    if t and step.reward != episode.rewards[t - 1]:
        return f"step {t}: the reward is {step.reward:g}, recorded {episode.rewards[t - 1]:g}"
    if step.is_terminal != (is_last and episode.terminal):
        return f"step {t}: the replay {'ends' if step.is_terminal else 'does not end'} there"
    differences = []
    for plane in step.planes:
        differences.append(np.count_nonzero(plane != episode.planes[t]))
        if not differences[-1]:
            return ""
    return f"step {t}: {min(differences)} of {episode.planes[t].size} values of the plane differ"
