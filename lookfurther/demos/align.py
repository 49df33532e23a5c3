"""Align a human's game to an agent's steps: find one action for each step.

A human changes buttons at any frame, an agent only every few frames. Training takes the most
frequent action of each step, and playing these actions soon diverges from the human's trajectory.
A beam search finds one action for each step so that the emulator's RAM stays as close to the
human's as possible. It can also start where an evaluation starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.beam_search import NOOP, BeamSearch, BeamSettings, Candidate
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import (
    episode_from_log,
    make_emulator,
    play_log,
    truncate_log,
    with_step_actions,
)
from lookfurther.demos.policy_trace import PolicyTable
from lookfurther.demos.verify import verify_episode
from lookfurther.envs import get_spec
from lookfurther.envs.atari import NOOP_MAX
from lookfurther.errors import DemonstrationError

SEGMENT_STEPS = 50  # steps between two checks of the candidates
MAX_SEGMENT_DRIFT = 100  # increase of the distance in a segment that counts as lost
MAX_LOST_SEGMENTS = 5  # segments that may stay lost with every beam setting

BEAM_SETTINGS = (BeamSettings(48, 1, 0), BeamSettings(128, 2, 2), BeamSettings(384, 3, 4))

ProgressCallback = Callable[[int, int], None]  # steps done, steps in total


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


def align_from_start(
    episode: Episode,
    env: str,
    action_repeat: int,
    phase: int,
    policy_table: PolicyTable,
    on_progress: ProgressCallback | None = None,
) -> Episode:
    """The human's game as an agent can play it after `phase` no-op frames and more full steps.

    An agent without memory takes equal actions for equal observations. The search avoids other
    actions than those of `policy_table`, and adds the new game to it.
    """
    human_log = _require_log(episode)
    start_log = make_start_log(human_log, phase)
    search = BeamSearch(human_log, start_log, env, action_repeat, policy_table)
    closest = find_closest(search, on_progress)
    if closest.trace:
        policy_table.add_game(closest.trace)
    input_log = _hold_actions(start_log, closest.action_sequence(), env, action_repeat)
    return verified_episode(input_log, env, action_repeat)


def make_start_log(human_log: InputLog, phase: int) -> InputLog:
    """The human's actions from this emulator's power-on, after enough no-op frames for any start.

    An evaluation starts with 0 ... `NOOP_MAX` no-op frames. If the player does nothing for that
    long, only the remainder modulo the action repeat matters: the other starts are suffixes of the
    same game. The RAM writes of an old recording are left out: an agent's game has none.
    """
    first_action = int(np.argmax(human_log.frame_actions != NOOP))
    delay = max(0, NOOP_MAX - first_action)
    frames = np.concatenate([np.full(delay, NOOP, np.uint8), human_log.frame_actions])
    return InputLog(frames, seed=human_log.seed, phase=phase, variant=human_log.variant)


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
    human_log: InputLog, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> InputLog:
    """The human's game with one action per step, from the same start."""
    closest = find_closest(BeamSearch(human_log, human_log, env, action_repeat), on_progress)
    return _hold_actions(human_log, closest.action_sequence(), env, action_repeat)


def find_closest(search: BeamSearch, on_progress: ProgressCallback | None = None) -> Candidate:
    """The candidate that ends closest to the human's play.

    If all candidates of a segment drift away, the search goes back and repeats it with a wider
    beam. If that fails too, the closest candidates continue: a room that is entered a little later
    also looks lost, and one missed reward does not end the game.
    """
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
    return closest
