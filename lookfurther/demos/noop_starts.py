"""What a demonstration looks like to an agent that starts after some no-op frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import frames_by_step


def episode_from_start(episode: Episode, noop_frames: int, action_repeat: int) -> Episode | None:
    """The rest of an Atari episode after no-op frames from power-on; None if it has another start.

    An agent can play it if nobody wrote RAM and every later step holds one action. A game with an
    agent's own steps or with random actions is not such a demonstration.
    """
    log = episode.input_log
    if log is None or len(log.ram_writes) or log.frame_actions[:noop_frames].any():
        return None
    if not episode.is_fully_demonstrated:
        return None
    if (noop_frames - log.phase) % action_repeat:
        return None
    first_step = -(-noop_frames // action_repeat)
    rows = frames_by_step(log.frame_actions, action_repeat, log.phase)[first_step:]
    if (rows[:-1] != rows[:-1, :1]).any():
        return None
    return cut_episode(episode, first_step, len(episode.actions))


def cut_episode(episode: Episode, begin: int, end: int) -> Episode:
    """The steps begin ... end - 1 as an episode of its own; truncated if it ends early."""
    is_whole = end >= len(episode.actions)
    return replace(
        episode,
        planes=episode.planes[begin : end + 1],
        actions=episode.actions[begin:end],
        rewards=episode.rewards[begin:end],
        terminal=episode.terminal and is_whole,
        seed=None,
        input_log=None,
        audit=None,
        first_imitated_step=max(0, episode.first_imitated_step - begin),
        random_steps=tuple(step - begin for step in episode.random_steps if begin <= step < end),
    )


def find_noop_starts(env_config: EnvConfig, episodes: Sequence[Episode]) -> dict[int, Episode]:
    """By the no-op frames of a start, the best demonstration that an agent can play from there.

    `lookfurther demos align SET --starts` makes such demonstrations.
    """
    by_score = sorted(episodes, key=lambda episode: episode.score, reverse=True)
    starts = {}
    for noop_frames in range(env_config.noop_max + 1):
        found = (episode_from_start(e, noop_frames, env_config.action_repeat) for e in by_score)
        if demo := next((d for d in found if d is not None and len(d)), None):
            starts[noop_frames] = demo
    return starts


def first_steps(starts: Mapping[int, Episode], steps: int) -> Iterable[Episode]:
    """The first steps of each start, as truncated episodes.

    A frame stack is empty at the start of an episode. So the first observations after a later
    start are not those of the whole game.
    """
    for episode in starts.values():
        yield cut_episode(episode, 0, min(steps, len(episode)))
