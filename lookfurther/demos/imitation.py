"""Which steps of a demonstration the imitation loss imitates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import find_ambiguous_steps
from lookfurther.envs.clock import make_clock_display
from lookfurther.types import BEST, Chunk


def all_steps(episode: Episode, frame_stack: int, env_config: EnvConfig) -> np.ndarray:
    """[T]: every step, as in the paper."""
    return np.ones(len(episode), bool)


def unambiguous_steps(episode: Episode, frame_stack: int, env_config: EnvConfig) -> np.ndarray:
    """[T]: steps with one action, which is the one shown the last time their observation occurs.

    A human waits, then continues, and sometimes both observations are equal in every pixel. An
    agent without memory that imitates the waiting never continues. The last action does.

    A clock in the picture does not count. With it an agent could imitate the wait exactly, but
    where it may continue sooner, L_IM would keep the value of that action below that of waiting.

    A human also changes buttons within a step. No action of an agent has the same effect.
    """
    clock_rows = make_clock_display(env_config).rows
    shown = episode.planes[:, :, :-clock_rows] if clock_rows else episode.planes
    planes = [hashlib.sha256(plane.tobytes()).digest() for plane in shown]
    stacks = [tuple(planes[max(0, t + 1 - frame_stack) : t + 1]) for t in range(len(episode))]
    last_action = dict(zip(stacks, episode.actions.tolist(), strict=True))
    is_last_action = episode.actions == [last_action[stack] for stack in stacks]
    if episode.input_log is None:
        return is_last_action
    return is_last_action & ~find_ambiguous_steps(episode.input_log, env_config.action_repeat)


IMITATED_STEPS: dict[str, Callable[[Episode, int, EnvConfig], np.ndarray]] = {
    "all": all_steps,
    "unambiguous": unambiguous_steps,
}


def limit_imitation(
    chunk: Chunk,
    episodes: Sequence[Episode],
    imitated_steps: str,
    frame_stack: int,
    env_config: EnvConfig,
) -> Chunk:
    """The chunk of these episodes, with the mark of L_IM on the imitated steps only."""
    select = IMITATED_STEPS[imitated_steps]
    imitated = np.concatenate(
        [np.append(select(e, frame_stack, env_config), True) for e in episodes]
    )
    begins = np.cumsum([0, *(len(e) + 1 for e in episodes)])
    for begin, episode in zip(begins.tolist(), episodes, strict=False):
        imitated[begin : begin + episode.first_imitated_step] = False
        imitated[[begin + step for step in episode.random_steps]] = False
    mark = np.array(chunk.mark)
    mark[: len(imitated)][~imitated] &= ~np.uint8(BEST)
    return chunk._replace(mark=mark)
