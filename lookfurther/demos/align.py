"""Align a human's game to an agent's steps: find one action for each step.

A human changes buttons at any frame, an agent only every few frames. Training takes the most
frequent action of each step, and playing these actions soon diverges from the human's trajectory.
A beam search finds one action for each step so that the emulator's RAM stays as close to the
human's as possible. It can also start where an evaluation starts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.alignment_search import AlignmentSearch, ProgressCallback
from lookfurther.demos.beam_search import BeamSearch, record_reference
from lookfurther.demos.delayed_log import delay_start, without_delay
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.noop_starts import cut_episode
from lookfurther.demos.playback import (
    episode_from_log,
    make_emulator,
    play_log,
    step_ends,
    truncate_log,
    with_step_actions,
)
from lookfurther.demos.policy_trace import PolicyTable
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError


def align_episode(
    episode: Episode, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> Episode:
    """An Atari episode with one action per step, as close to the recorded one as possible."""
    input_log = search_alignment(_require_log(episode), env, action_repeat, on_progress)
    return verified_episode(input_log, env, action_repeat)


def align_from_start(
    episode: Episode,
    env: str,
    action_repeat: int,
    phase: int,
    policy_table: PolicyTable | None = None,
    on_progress: ProgressCallback | None = None,
) -> Episode:
    """The human's game as an agent can play it after `phase` no-op frames and more full steps.

    An agent without memory takes equal actions for equal observations. With a `policy_table` the
    search avoids other actions than those of the table, and adds the new game to it.
    """
    human_log = _require_log(episode)
    reference = record_reference(human_log, env, action_repeat)
    delayed = delay_start(human_log, phase)
    search = BeamSearch(reference, delayed, env, action_repeat, policy_table)
    alignment = AlignmentSearch(search, can_wait=True)
    closest = alignment.find_closest(on_progress)
    if closest.trace and policy_table is not None:
        policy_table.add_game(closest.trace)
    start_log = alignment.search.delayed.input_log
    input_log = with_step_actions(start_log, closest.action_sequence(), action_repeat)
    return verified_episode(input_log, env, action_repeat)


def cut_recording(episode: Episode, steps: int, action_repeat: int) -> Episode:
    """The first steps of a recorded game, which can still be played again."""
    if len(episode) <= steps:
        return episode
    input_log = _require_log(episode)
    frames = int(step_ends(input_log, action_repeat)[steps])
    return replace(cut_episode(episode, 0, steps), input_log=truncate_log(input_log, frames))


def hold_episode_actions(episode: Episode, env: str, action_repeat: int) -> InputLog:
    """The input log of an agent that takes the episode's one action in every step."""
    input_log = _require_log(episode)
    emulator = make_emulator(input_log, env, action_repeat)
    action_ids = np.array(emulator.legal_actions)[episode.actions]
    return with_step_actions(input_log, action_ids, action_repeat)


def _require_log(episode: Episode) -> InputLog:
    if episode.input_log is None:
        raise DemonstrationError("an episode without an input log cannot be aligned")
    return episode.input_log


def truncate_at_game_over(input_log: InputLog, env: str, action_repeat: int) -> InputLog:
    """The frames of an input log that the emulator plays: the game may end within a step."""
    emulator = make_emulator(input_log, env, action_repeat)
    return truncate_log(input_log, sum(1 for _ in play_log(input_log, emulator)))


def verified_episode(input_log: InputLog, env: str, action_repeat: int) -> Episode:
    """The episode of an input log up to the end of the game, with the audit of its replay."""
    env_config = EnvConfig(action_repeat=action_repeat)
    played = truncate_at_game_over(input_log, env, action_repeat)
    episode = episode_from_log(played, env, action_repeat)
    return replace(episode, audit=verify_episode(episode, get_spec(env, env_config), env_config))


def imitation_score(episode: Episode, env: str, action_repeat: int) -> float:
    """The score of an agent that takes the episode's action in every step."""
    if episode.input_log is None:
        return episode.score
    input_log = hold_episode_actions(episode, env, action_repeat)
    return sum(play_log(input_log, make_emulator(input_log, env, action_repeat)))


def search_alignment(
    human_log: InputLog, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> InputLog:
    """The human's game with one action per step, from the same start."""
    reference = record_reference(human_log, env, action_repeat)
    search = BeamSearch(reference, without_delay(human_log), env, action_repeat)
    closest = AlignmentSearch(search).find_closest(on_progress)
    return with_step_actions(human_log, closest.action_sequence(), action_repeat)
