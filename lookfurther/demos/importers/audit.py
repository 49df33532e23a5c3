"""Tapes of other people's recordings, played and compared with what these claim."""

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
    """A replay is not what was recorded."""


class RecordedOutcome(NamedTuple):
    """What a recording says of itself; a replay must agree with all of it."""

    score: float | None
    rewards: np.ndarray | None  # [F] or [F + 1], per frame; may be listed one frame late
    ram_by_frame: dict[int, np.ndarray]  # [128] uint8 after that many frames


def audit_input_logs(
    source: str,
    input_logs: Iterable[InputLog],
    env: str,
    env_config: EnvConfig,
    recorded: RecordedOutcome,
    force: bool = False,
) -> Episode:
    """The episode of the first of several tapes that does what was claimed.

    Where none does, it is an error; forced, the tape that was right for longest.
    """
    furthest, played, fault = None, -1, ""
    for tape in input_logs:
        watch = _make_frame_check(recorded, tape)
        frames = 0

        def follow(emulator: Emulator, reward: float, watch: FrameCheck = watch) -> None:
            nonlocal frames
            watch(emulator, reward)
            frames = emulator.frame_number

        try:
            episode = episode_from_log(
                tape, env, env_config.action_repeat, env_config.sticky_prob, follow
            )
            if recorded.score is not None and episode.score != recorded.score:
                raise ReplayMismatch(f"the score is {episode.score:g}, recorded {recorded.score:g}")
            return _attach_audit(episode, env_config.action_repeat, recorded, "")
        except (ReplayMismatch, GameOverError) as difference:
            if frames > played:
                furthest, played, fault = tape, frames, str(difference)
    if not force:
        raise DemonstrationError(f"{source} does not replay as recorded: {fault}; force takes it")
    assert furthest is not None
    try:
        episode = episode_from_log(furthest, env, env_config.action_repeat, env_config.sticky_prob)
    except GameOverError as end:
        episode = episode_from_log(
            truncate_log(furthest, end.frames_played),
            env,
            env_config.action_repeat,
            env_config.sticky_prob,
        )
    return _attach_audit(episode, env_config.action_repeat, recorded, fault)


def _attach_audit(
    episode: Episode, action_repeat: int, recorded: RecordedOutcome, mismatch: str
) -> Episode:
    assert episode.input_log is not None
    frames = episode.input_log.frame_actions
    several = count_ambiguous_steps(episode.input_log, action_repeat)
    checks = {} if mismatch else _count_checks(recorded, episode.input_log)
    audit = Audit(
        not mismatch, recorded.score, episode.score, len(frames), several, mismatch, checks
    )
    return replace(episode, audit=audit)


def _count_checks(recorded: RecordedOutcome, input_log: InputLog) -> dict[str, int]:
    """What a tape that does what was claimed was compared in."""
    equal = len(_unwritten_checkpoints(recorded, input_log))
    counts = {
        "score": int(recorded.score is not None),
        "rewards": 0 if recorded.rewards is None else len(input_log.frame_actions),
        "ram": equal,
        "ram_repaired": len(recorded.ram_by_frame) - equal,
    }
    return {name: count for name, count in counts.items() if count}


def _unwritten_checkpoints(recorded: RecordedOutcome, input_log: InputLog) -> dict[int, np.ndarray]:
    """The RAM of the checkpoints at which a tape writes none."""
    written = set(input_log.ram_writes[:, 0].tolist())
    return {frame: ram for frame, ram in recorded.ram_by_frame.items() if frame not in written}


def _make_frame_check(recorded: RecordedOutcome, input_log: InputLog) -> FrameCheck:
    """Compare rewards after every frame, and RAM at the checkpoints at which none is written."""
    same_reward = _make_reward_check(recorded.rewards) if recorded.rewards is not None else None
    rams = _unwritten_checkpoints(recorded, input_log)

    def same(emulator: Emulator, reward: float) -> None:
        if same_reward:
            same_reward(emulator, reward)
        _check_ram(emulator, rams)

    return same


def _make_reward_check(rewards: np.ndarray) -> FrameCheck:
    """Compare the reward of every frame, which may be listed one frame late."""
    listed = np.append(rewards, 0.0)
    lags = {0, 1} if listed[0] == 0 else {0}

    def same_reward(emulator: Emulator, reward: float) -> None:
        now = emulator.frame_number - 1
        right = {lag for lag in lags if listed[now + lag] == reward}
        if not right:
            recorded = listed[now + min(lags)]
            raise ReplayMismatch(f"the reward of frame {now} is {reward:g}, recorded {recorded:g}")
        lags.intersection_update(right)

    return same_reward


def _check_ram(emulator: Emulator, ram_by_frame: dict[int, np.ndarray]) -> None:
    recorded = ram_by_frame.get(emulator.frame_number)
    if recorded is not None and (different := np.flatnonzero(emulator.ram() != recorded)).size:
        raise ReplayMismatch(
            f"RAM byte {different[0]} differs after {emulator.frame_number} frames"
        )
