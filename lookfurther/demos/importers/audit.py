"""Replay imported input logs and compare them with the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Audit, Episode, InputLog
from lookfurther.demos.playback import (
    GameOverError,
    count_ambiguous_steps,
    episode_from_log,
    truncate_log,
)
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

FrameCheck = Callable[[Emulator, float], None]


class ReplayMismatch(Exception):
    """A replay differs from the recording."""


class RecordedOutcome(NamedTuple):
    """Values stored in a recording, all of which a replay must reproduce."""

    score: float | None
    rewards: np.ndarray | None  # [F] or [F + 1], per frame; may be listed one frame late
    ram_by_frame: dict[int, np.ndarray]  # frames played -> RAM [128] uint8


def audit_input_logs(
    source: str,
    input_logs: Iterable[InputLog],
    env: str,
    env_config: EnvConfig,
    recorded: RecordedOutcome,
    force: bool = False,
) -> Episode:
    """Return the episode of the first input log whose replay matches the recording.

    If none matches, raise an error; with `force`, take the log that matched for the most frames.
    """
    repeat, sticky_prob = env_config.action_repeat, env_config.sticky_prob
    best_log, best_frames, mismatch = None, -1, ""
    for log in input_logs:
        check_frame = _make_frame_check(recorded, log)
        frames = 0

        def on_frame(
            emulator: Emulator, reward: float, check_frame: FrameCheck = check_frame
        ) -> None:
            nonlocal frames
            check_frame(emulator, reward)
            frames = emulator.frame_number

        try:
            episode = episode_from_log(log, env, repeat, sticky_prob, on_frame)
            if recorded.score is not None and episode.score != recorded.score:
                raise ReplayMismatch(f"the score is {episode.score:g}, recorded {recorded.score:g}")
            return _attach_audit(episode, repeat, recorded, "")
        except (ReplayMismatch, GameOverError) as error:
            if frames > best_frames:
                best_log, best_frames, mismatch = log, frames, str(error)
    if not force:
        raise DemonstrationError(
            f"{source} does not replay as recorded: {mismatch}; --force imports it anyway"
        )
    assert best_log is not None
    episode = _unroll_until_game_over(best_log, env, env_config)
    return _attach_audit(episode, repeat, recorded, mismatch)


def _unroll_until_game_over(log: InputLog, env: str, env_config: EnvConfig) -> Episode:
    repeat, sticky_prob = env_config.action_repeat, env_config.sticky_prob
    try:
        return episode_from_log(log, env, repeat, sticky_prob)
    except GameOverError as end:
        return episode_from_log(truncate_log(log, end.frames_played), env, repeat, sticky_prob)


def _attach_audit(
    episode: Episode, action_repeat: int, recorded: RecordedOutcome, mismatch: str
) -> Episode:
    assert episode.input_log is not None
    frames = len(episode.input_log.frame_actions)
    ambiguous = count_ambiguous_steps(episode.input_log, action_repeat)
    checks = {} if mismatch else _count_checks(recorded, episode.input_log)
    audit = Audit(not mismatch, recorded.score, episode.score, frames, ambiguous, mismatch, checks)
    return replace(episode, audit=audit)


def _count_checks(recorded: RecordedOutcome, input_log: InputLog) -> dict[str, int]:
    """Count the values of each kind that a matching replay was compared in."""
    equal = len(_unwritten_checkpoints(recorded, input_log))
    counts = {
        "score": int(recorded.score is not None),
        "rewards": 0 if recorded.rewards is None else len(input_log.frame_actions),
        "ram": equal,
        "ram_repaired": len(recorded.ram_by_frame) - equal,
    }
    return {name: count for name, count in counts.items() if count}


def _unwritten_checkpoints(recorded: RecordedOutcome, input_log: InputLog) -> dict[int, np.ndarray]:
    """Return the RAM of the checkpoints at which the input log writes none."""
    written_frames = set(input_log.ram_writes[:, 0].tolist())
    checkpoints = recorded.ram_by_frame.items()
    return {frame: ram for frame, ram in checkpoints if frame not in written_frames}


def _make_frame_check(recorded: RecordedOutcome, input_log: InputLog) -> FrameCheck:
    """Make a callback that compares the reward of every frame and the RAM at checkpoints.

    RAM is not compared at checkpoints where the input log writes it.
    """
    check_reward = _make_reward_check(recorded.rewards) if recorded.rewards is not None else None
    ram_by_frame = _unwritten_checkpoints(recorded, input_log)

    def check_frame(emulator: Emulator, reward: float) -> None:
        if check_reward:
            check_reward(emulator, reward)
        _check_ram(emulator, ram_by_frame)

    return check_frame


def _make_reward_check(rewards: np.ndarray) -> FrameCheck:
    """Make a callback that compares rewards, which may be listed one frame late."""
    listed = np.append(rewards, 0.0)
    lags = {0, 1} if listed[0] == 0 else {0}

    def check_reward(emulator: Emulator, reward: float) -> None:
        frame = emulator.frame_number - 1
        matching = {lag for lag in lags if listed[frame + lag] == reward}
        if not matching:
            recorded = listed[frame + min(lags)]
            raise ReplayMismatch(
                f"the reward of frame {frame} is {reward:g}, recorded {recorded:g}"
            )
        lags.intersection_update(matching)

    return check_reward


def _check_ram(emulator: Emulator, ram_by_frame: dict[int, np.ndarray]) -> None:
    recorded = ram_by_frame.get(emulator.frame_number)
    if recorded is not None and (different := np.flatnonzero(emulator.ram() != recorded)).size:
        raise ReplayMismatch(
            f"RAM byte {different[0]} differs after {emulator.frame_number} frames"
        )
