"""Demonstrations in memory, and the film the expert replay is filled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lookfurther.envs.emulator import DEFAULT_VARIANT, GameVariant
from lookfurther.errors import DemonstrationError
from lookfurther.types import BEST, END, FIRST, TERMINAL, TRUNCATED, Chunk, Spec

ATARI_ACTIONS, RAM_BYTES = 18, 128  # of the Atari emulator: action ids, bytes
# What a replay may be compared in. RAM is compared at a recording's checkpoints; those at which
# bytes were written instead are counted as repaired.
AUDIT_CHECKS = ("score", "rewards", "end", "observations", "last_picture", "ram", "ram_repaired")


@dataclass(frozen=True)
class InputLog:
    """What an emulator needs to play an Atari episode again, frame by frame, from power-on."""

    frame_actions: np.ndarray  # [F] uint8: the action id 0 ... 17 of each emulator frame
    ram_writes: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    # [n, 3] int32 (frame, address, value): RAM bytes written just before that frame
    seed: int = 0  # of the emulator; matters with sticky actions only
    phase: int = 0  # frames of the first step, where that is shorter than the others
    variant: GameVariant = DEFAULT_VARIANT

    def __post_init__(self) -> None:
        frames, writes = self.frame_actions, self.ram_writes
        if frames.ndim != 1 or frames.dtype != np.uint8 or (frames >= ATARI_ACTIONS).any():
            raise DemonstrationError(
                f"a tape's frames must be actions of 0 ... {ATARI_ACTIONS - 1}"
            )
        if writes.ndim != 2 or writes.shape[1] != 3 or writes.dtype != np.int32:
            raise DemonstrationError("a tape's RAM writes must be rows of frame, address, value")
        if ((writes < 0) | (writes >= (max(len(frames), 1), RAM_BYTES, 256))).any():
            raise DemonstrationError("a tape's RAM write lies outside its frames or the RAM")
        if (np.diff(writes[:, 0]) < 0).any():
            raise DemonstrationError("a tape's RAM writes must be in the order of their frames")
        if not -(2**31) <= self.seed < 2**31:
            raise DemonstrationError(f"a tape's seed must fit 32 bits, {self.seed} does not")
        if not 0 <= self.phase < 2**31:
            raise DemonstrationError(f"a tape's phase must be 0 or more, not {self.phase}")


@dataclass(frozen=True)
class Audit:
    """What an import or a verification found."""

    verified: bool  # replayed, and equal in all that was compared
    recorded: float | None  # the score the source claims
    replayed: float | None  # the score the replay gave
    compared: int  # steps or frames that were played until the end or the first difference
    ambiguous: int  # steps whose frames held more than one action
    mismatch: str  # "" or the first difference, in words
    checks: dict[str, int] = field(default_factory=dict)
    # how many of each of CHECKS were found equal; empty where a set of an older version does not
    # say what was compared


@dataclass(frozen=True)
class Episode:
    """One demonstrated episode of T steps, as training sees it."""

    planes: np.ndarray  # [T + 1, *spec.plane]: the newest plane of each observation
    actions: np.ndarray  # [T] int64
    rewards: np.ndarray  # [T] float32, raw
    terminal: bool  # False: cut off, so the last observation has a value
    seed: int | None = None  # what the environment was reset with, where known
    input_log: InputLog | None = None  # of an Atari game
    audit: Audit | None = None

    @property
    def score(self) -> float:
        """The undiscounted return."""
        return float(self.rewards.astype(np.float64).sum())

    def __len__(self) -> int:
        """Steps."""
        return len(self.actions)


def best_episode_index(episodes: Sequence[Episode]) -> int:
    """Index of the episode with the highest return: the one L_IM imitates (Sec. 3.4)."""
    return max(range(len(episodes)), key=lambda i: episodes[i].score)


def check_episodes(episodes: Sequence[Episode], spec: Spec, source: str) -> None:
    """Refuse what cannot be demonstrations of `spec`, naming episode and field."""
    if not episodes:
        raise DemonstrationError(f"{source} holds no episodes")
    for i, episode in enumerate(episodes):
        steps = len(episode)
        # No array of flags: planes may be large. What is not a number is in both.
        low, high = (f(episode.planes, initial=0) for f in (np.min, np.max))
        faults = {
            "no steps": steps == 0,
            f"planes {episode.planes.shape[1:]}, but {spec.env} shows {spec.plane}": (
                episode.planes.shape[1:] != spec.plane
            ),
            f"planes of type {episode.planes.dtype}, not {spec.dtype}": (
                str(episode.planes.dtype) != spec.dtype
            ),
            f"{len(episode.planes)} planes for {steps} actions": len(episode.planes) != steps + 1,
            f"actions of shape {episode.actions.shape}": episode.actions.ndim != 1,
            f"rewards of shape {episode.rewards.shape}": episode.rewards.ndim != 1,
            f"{len(episode.rewards)} rewards for {steps} actions": len(episode.rewards) != steps,
            "a reward that is not finite": not np.isfinite(episode.rewards).all(),
            "a plane value that is not finite": not np.isfinite([low, high]).all(),
            f"a plane value above {spec.high:g}": spec.dtype == "uint8" and high > spec.high,
            f"an action outside 0 ... {spec.actions - 1}": bool(
                ((episode.actions < 0) | (episode.actions >= spec.actions)).any()
            ),
        }
        for fault, holds in faults.items():
            if holds:
                raise DemonstrationError(f"{source}, episode {i}: {fault}")


def episodes_to_chunk(
    episodes: Sequence[Episode],
    max_horizon: int,
    num_horizons: int,
    imitated_episodes: str = "best",
) -> Chunk:
    """All episodes one after another as one lane, every item samplable at priority 1.

    `imitated` says whether the best episode or all of them carry the mark of L_IM.
    `lag` blank slots close the film: a slot's priorities travel so many slots behind it.
    """
    chosen = best_episode_index(episodes)
    planes, actions, rewards, marks = [], [], [], []
    for i, episode in enumerate(episodes):
        mark = np.full(
            len(episode) + 1, BEST if imitated_episodes == "all" or i == chosen else 0, np.uint8
        )
        mark[0] |= FIRST
        mark[-1] |= TERMINAL if episode.terminal else TRUNCATED
        planes.append(episode.planes)
        actions.append(np.append(episode.actions, 0))  # no action follows the last observation
        rewards.append(np.append(episode.rewards, 0))
        marks.append(mark)
    mark = np.concatenate([*marks, np.full(max_horizon, END, np.uint8)])
    alive = (mark & END) == 0
    priority = np.append(np.zeros(max_horizon), alive[:-max_horizon]).astype(np.float32)
    blank = np.zeros((max_horizon, *episodes[0].planes.shape[1:]), episodes[0].planes.dtype)
    return Chunk(
        plane=np.concatenate([*planes, blank])[:, None],
        action=np.concatenate([*actions, np.zeros(max_horizon)]).astype(np.int64)[:, None],
        reward=np.concatenate([*rewards, np.zeros(max_horizon)]).astype(np.float32)[:, None],
        mark=mark[:, None],
        priority=np.repeat(priority[:, None, None], num_horizons, -1),
        invalidate_newest=np.zeros(1, np.int64),
    )
