"""Demonstrations whose input log gives states of the emulator for jump starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import step_ends
from lookfurther.envs.demo_starts import DemoPath, RecordedStep
from lookfurther.errors import DemonstrationError


def find_recorded_games(episodes: Sequence[Episode]) -> list[Episode]:
    """The Atari episodes with an input log that replays to the same game.

    Recoveries and perturbed games are left out: some of their steps are an agent's or random.
    """
    games = [
        episode
        for episode in episodes
        if episode.input_log is not None
        and episode.is_fully_demonstrated
        and (episode.audit is None or episode.audit.verified)
    ]
    if not games:
        raise DemonstrationError(
            "no demonstration has an input log that replays (lookfurther demos verify SET):"
            " set actor.jump_start_share 0"
        )
    return games


def make_demo_path(log: InputLog, env: str, action_repeat: int) -> DemoPath:
    """A recorded game in steps of `action_repeat` frames."""
    ends = step_ends(log, action_repeat).tolist()
    bounds = np.searchsorted(log.ram_writes[:, 0], ends).tolist()
    steps = [
        RecordedStep(
            log.frame_actions[begin:end].tobytes(),
            tuple((frame - begin, address, value) for frame, address, value in writes),
        )
        for (begin, end), writes in zip(
            pairwise(ends),
            (log.ram_writes[low:high].tolist() for low, high in pairwise(bounds)),
            strict=True,
        )
    ]
    return DemoPath(env, action_repeat, log.phase % action_repeat, tuple(steps))
