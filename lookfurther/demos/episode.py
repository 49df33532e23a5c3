"""Demonstrated episodes in memory, and their conversion to a chunk for the expert replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lookfurther.demos.episode_arrays import to_actions, to_planes, to_rewards
from lookfurther.envs.emulator import DEFAULT_VARIANT, GameVariant
from lookfurther.errors import DemonstrationError
from lookfurther.types import BEST, END, FIRST, TERMINAL, TRUNCATED, Chunk, Spec

ATARI_ACTIONS, RAM_BYTES = 18, 128
# The comparisons between a recording and its replay. RAM is compared at the checkpoints of a
# recording. Checkpoints at which an importer wrote bytes to the RAM count as repaired.
AUDIT_CHECKS = ("score", "rewards", "end", "observations", "last_picture", "ram", "ram_repaired")


@dataclass(frozen=True)
class InputLog:
    """The inputs of an Atari episode, frame by frame from power-on: enough to play it again."""

    frame_actions: np.ndarray  # [F] uint8: the action id 0 ... 17 of each emulator frame
    ram_writes: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    # [n, 3] int32 (frame, address, value): RAM bytes written just before that frame
    seed: int = 0  # of the emulator; only sticky actions use it
    phase: int = 0  # frames of the first step if it is shorter than the others, otherwise 0
    variant: GameVariant = DEFAULT_VARIANT

    def __post_init__(self) -> None:
        frames, writes = self.frame_actions, self.ram_writes
        if frames.ndim != 1 or frames.dtype != np.uint8 or (frames >= ATARI_ACTIONS).any():
            raise DemonstrationError(
                f"an input log's frames must be actions of 0 ... {ATARI_ACTIONS - 1}"
            )
        if writes.ndim != 2 or writes.shape[1] != 3 or writes.dtype != np.int32:
            raise DemonstrationError(
                "an input log's RAM writes must be rows of frame, address, value"
            )
        if ((writes < 0) | (writes >= (max(len(frames), 1), RAM_BYTES, 256))).any():
            raise DemonstrationError("an input log's RAM write is outside its frames or the RAM")
        if (np.diff(writes[:, 0]) < 0).any():
            raise DemonstrationError(
                "an input log's RAM writes must be in the order of their frames"
            )
        if not -(2**31) <= self.seed < 2**31:
            raise DemonstrationError(f"an input log's seed must fit 32 bits, {self.seed} does not")
        if not 0 <= self.phase < 2**31:
            raise DemonstrationError(f"an input log's phase must be 0 or more, not {self.phase}")


@dataclass(frozen=True)
class Audit:
    """The result of an import or a verification."""

    verified: bool  # replayed, and every comparison was equal
    recorded: float | None  # the score that the source claims
    replayed: float | None  # the score of the replay
    compared: int  # steps or frames until the end or the first difference
    ambiguous: int  # steps with more than one action
    mismatch: str  # a description of the first difference, or ""
    checks: dict[str, int] = field(default_factory=dict)
    # the number of equal values for each of AUDIT_CHECKS; empty in sets of older versions


@dataclass(frozen=True)
class Episode:
    """One demonstrated episode of T steps, with the observations of training."""

    planes: np.ndarray  # [T + 1, *spec.plane]: the newest plane of each observation
    actions: np.ndarray  # [T] int64
    rewards: np.ndarray  # [T] float32, raw
    terminal: bool  # False: truncated, so the last observation has a value
    seed: int | None = None  # of the reset, if known
    input_log: InputLog | None = None  # only of Atari games
    audit: Audit | None = None
    first_imitated_step: int = 0  # earlier steps are an agent's own and are not imitated
    random_steps: tuple[int, ...] = ()  # steps with a random action, which is not imitated

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminal: bool = True,
        layout: str = "hwc",
        seed: int | None = None,
    ) -> Episode:
        """An episode of what an environment returned: T + 1 observations, T actions, T rewards.

        Observations are vectors or images; the last one follows the last action. `terminal` is
        False if the episode was truncated. Images with channels have the axes of `layout`, hwc or
        chw. `seed` is that of the reset, if known: with it, the episode can be replayed.
        """
        planes, steps = to_planes(observations, layout), to_actions(actions)
        episode = cls(planes, steps, to_rewards(rewards), bool(terminal), seed)
        if not len(planes) - 1 == len(steps) == len(episode.rewards):
            raise DemonstrationError(
                "an episode of T actions has T rewards and T + 1 observations, not"
                f" {len(steps)} actions, {len(episode.rewards)} rewards and {len(planes)}"
                " observations"
            )
        return episode

    def __repr__(self) -> str:
        end = "terminal" if self.terminal else "truncated"
        shape, dtype = self.planes.shape[1:], self.planes.dtype
        return f"Episode({len(self)} steps, return {self.score:g}, {end}, planes {shape} {dtype})"

    @property
    def score(self) -> float:
        """The undiscounted return."""
        return float(self.rewards.astype(np.float64).sum())

    @property
    def is_fully_demonstrated(self) -> bool:
        """Whether no action is an agent's own or random."""
        return not (self.first_imitated_step or self.random_steps)

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.actions)


def best_episode_index(episodes: Sequence[Episode]) -> int:
    """Index of the episode with the highest return: the one L_IM imitates (Sec. 3.4)."""
    return max(range(len(episodes)), key=lambda i: episodes[i].score)


def check_episodes(episodes: Sequence[Episode], spec: Spec, source: str) -> None:
    """Raise if an episode cannot be a demonstration of `spec`, with the episode and the field."""
    if not episodes:
        raise DemonstrationError(f"{source} holds no episodes")
    for i, episode in enumerate(episodes):
        steps = len(episode)
        # Minimum and maximum need no array of flags, as planes may be large. Both pass on NaN.
        low, high = (reduce(episode.planes, initial=0) for reduce in (np.min, np.max))
        faults = {
            "no steps": steps == 0,
            "no imitated step": steps > 0 and not 0 <= episode.first_imitated_step < steps,
            "a random step that it does not have": not all(
                0 <= step < steps for step in episode.random_steps
            ),
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
        for fault, is_present in faults.items():
            if is_present:
                raise DemonstrationError(f"{source}, episode {i}: {fault}")


def episodes_to_chunk(
    episodes: Sequence[Episode],
    max_horizon: int,
    num_horizons: int,
    imitated_episodes: str = "best",
) -> Chunk:
    """All episodes in one lane, one after another; every item can be sampled with priority 1.

    `imitated_episodes` ("best" or "all") selects the episodes that are marked for L_IM.
    The chunk ends with `max_horizon` blank slots, because the priorities of a slot are stored
    `max_horizon` slots later.
    """
    best_index = best_episode_index(episodes)
    planes, actions, rewards, marks = [], [], [], []
    for i, episode in enumerate(episodes):
        mark = np.full(
            len(episode) + 1, BEST if imitated_episodes == "all" or i == best_index else 0, np.uint8
        )
        mark[0] |= FIRST
        mark[-1] |= TERMINAL if episode.terminal else TRUNCATED
        planes.append(episode.planes)
        actions.append(np.append(episode.actions, 0))  # no action follows the last observation
        rewards.append(np.append(episode.rewards, 0))
        marks.append(mark)
    mark = np.concatenate([*marks, np.full(max_horizon, END, np.uint8)])
    has_action = (mark & END) == 0
    priority = np.append(np.zeros(max_horizon), has_action[:-max_horizon]).astype(np.float32)
    blank = np.zeros((max_horizon, *episodes[0].planes.shape[1:]), episodes[0].planes.dtype)
    return Chunk(
        plane=np.concatenate([*planes, blank])[:, None],
        action=np.concatenate([*actions, np.zeros(max_horizon)]).astype(np.int64)[:, None],
        reward=np.concatenate([*rewards, np.zeros(max_horizon)]).astype(np.float32)[:, None],
        mark=mark[:, None],
        priority=np.repeat(priority[:, None, None], num_horizons, -1),
        invalidate_newest=np.zeros(1, np.int64),
    )
