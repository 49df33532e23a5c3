"""Tapes of other people's recordings, played and compared with what these claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Audit, Episode, Tape
from lookfurther.demos.playback import GameOver, ambiguous, cut, unroll
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError

Watch = Callable[[Emulator, float], None]


class Differs(Exception):
    """A replay is not what was recorded."""


class Claim(NamedTuple):
    """What a recording says of itself; a replay must agree with all of it."""

    score: float | None
    rewards: np.ndarray | None  # [F] or [F + 1], per frame; may be listed one frame late
    rams: dict[int, np.ndarray]  # [128] uint8 after that many frames


def audited(
    source: str,
    tapes: Iterable[Tape],
    env: str,
    environment: Environment,
    claim: Claim,
    force: bool = False,
) -> Episode:
    """The episode of the first of several tapes that does what was claimed.

    Where none does, it is an error; forced, the tape that was right for longest.
    """
    furthest, played, fault = None, -1, ""
    for tape in tapes:
        watch = _watch(claim, tape)
        frames = 0

        def follow(emulator: Emulator, reward: float, watch: Watch = watch) -> None:
            nonlocal frames
            watch(emulator, reward)
            frames = emulator.frames

        try:
            episode = unroll(tape, env, environment.repeat, environment.sticky, follow)
            if claim.score is not None and episode.score != claim.score:
                raise Differs(f"the score is {episode.score:g}, recorded {claim.score:g}")
            return _with_audit(episode, environment.repeat, claim, "")
        except (Differs, GameOver) as difference:
            if frames > played:
                furthest, played, fault = tape, frames, str(difference)
    if not force:
        raise DemonstrationError(f"{source} does not replay as recorded: {fault}; force takes it")
    assert furthest is not None
    try:
        episode = unroll(furthest, env, environment.repeat, environment.sticky)
    except GameOver as end:
        episode = unroll(cut(furthest, end.frames), env, environment.repeat, environment.sticky)
    return _with_audit(episode, environment.repeat, claim, fault)


def _with_audit(episode: Episode, repeat: int, claim: Claim, fault: str) -> Episode:
    assert episode.tape is not None
    frames = episode.tape.frames
    several = ambiguous(episode.tape, repeat)
    checks = {} if fault else _checks(claim, episode.tape)
    audit = Audit(not fault, claim.score, episode.score, len(frames), several, fault, checks)
    return replace(episode, audit=audit)


def _checks(claim: Claim, tape: Tape) -> dict[str, int]:
    """What a tape that does what was claimed was compared in."""
    equal = len(_unwritten(claim, tape))
    counts = {
        "score": int(claim.score is not None),
        "rewards": 0 if claim.rewards is None else len(tape.frames),
        "ram": equal,
        "ram_repaired": len(claim.rams) - equal,
    }
    return {name: count for name, count in counts.items() if count}


def _unwritten(claim: Claim, tape: Tape) -> dict[int, np.ndarray]:
    """The RAM of the checkpoints at which a tape writes none."""
    written = set(tape.writes[:, 0].tolist())
    return {frame: ram for frame, ram in claim.rams.items() if frame not in written}


def _watch(claim: Claim, tape: Tape) -> Watch:
    """Compare rewards after every frame, and RAM at the checkpoints at which none is written."""
    same_reward = _reward_watch(claim.rewards) if claim.rewards is not None else None
    rams = _unwritten(claim, tape)

    def same(emulator: Emulator, reward: float) -> None:
        if same_reward:
            same_reward(emulator, reward)
        _same_ram(emulator, rams)

    return same


def _reward_watch(rewards: np.ndarray) -> Watch:
    """Compare the reward of every frame, which may be listed one frame late."""
    listed = np.append(rewards, 0.0)
    lags = {0, 1} if listed[0] == 0 else {0}

    def same_reward(emulator: Emulator, reward: float) -> None:
        now = emulator.frames - 1
        right = {lag for lag in lags if listed[now + lag] == reward}
        if not right:
            recorded = listed[now + min(lags)]
            raise Differs(f"the reward of frame {now} is {reward:g}, recorded {recorded:g}")
        lags.intersection_update(right)

    return same_reward


def _same_ram(emulator: Emulator, rams: dict[int, np.ndarray]) -> None:
    recorded = rams.get(emulator.frames)
    if recorded is not None and (different := np.flatnonzero(emulator.ram() != recorded)).size:
        raise Differs(f"RAM byte {different[0]} differs after {emulator.frames} frames")
