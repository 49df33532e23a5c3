"""Where episodes stand still: long periods in which almost no new picture is shown.

The same episodes show where lives are lost and which rewards are earned.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lookfurther.agent import Agent
from lookfurther.analysis.life_losses import LifeLoss, find_life_losses
from lookfurther.analysis.reward_order import RewardOrder, compare_rewards
from lookfurther.analysis.rollout_envs import EnvBuilder
from lookfurther.analysis.rollouts import StackedRollout
from lookfurther.demos.episode import Episode

REPEATED_SHARE = 0.9  # of a window's planes; the rest may be new, such as the ticks of a clock


class EpisodeSettings(NamedTuple):
    """How the episodes from the evaluation's starts are played."""

    episodes: int
    max_steps: int
    window: int  # steps that an episode must stand still to be counted
    epsilon: float
    seed: int


@dataclass
class Standstill:
    """One period of one episode in which it stands still."""

    episode: int
    first_step: int
    picture: np.ndarray | None  # when it was noticed, as are score and values
    score: float
    q_values: np.ndarray  # [A], in h space
    action_counts: Counter[int] = field(default_factory=Counter)
    plane_counts: Counter[bytes] = field(default_factory=Counter)  # key: digest

    @property
    def steps(self) -> int:
        return self.action_counts.total()

    @property
    def usual_plane(self) -> bytes:
        """The digest of the plane that it shows most often."""
        return self.plane_counts.most_common(1)[0][0]


class EpisodeTrace(NamedTuple):
    """One episode from a start of the evaluation."""

    score: float
    steps: int
    is_over: bool  # False: cut at the maximum number of steps
    standstills: list[Standstill]
    life_losses: list[LifeLoss]
    reward_order: RewardOrder


class StandstillPlace(NamedTuple):
    """Standstills that show the same plane most often, in one or more episodes."""

    standstills: list[Standstill]
    demonstrated_actions: Counter[int]  # where the demonstration shows that plane

    @property
    def episodes(self) -> list[int]:
        return sorted({standstill.episode for standstill in self.standstills})

    @property
    def steps(self) -> int:
        return sum(standstill.steps for standstill in self.standstills)

    @property
    def action_counts(self) -> Counter[int]:
        return sum((standstill.action_counts for standstill in self.standstills), Counter())

    @property
    def distinct_planes(self) -> int:
        return len(set().union(*(standstill.plane_counts for standstill in self.standstills)))


class StandstillDetector:
    """Detects after each plane whether almost all of the last `window` planes were shown before."""

    def __init__(self, window: int) -> None:
        self.shown: set[bytes] = set()
        self.repeats: deque[bool] = deque(maxlen=window)

    def add(self, digest: bytes) -> bool:
        self.repeats.append(digest in self.shown)
        self.shown.add(digest)
        is_full = len(self.repeats) == self.repeats.maxlen
        return is_full and sum(self.repeats) >= REPEATED_SHARE * len(self.repeats)


class TracedEpisode(StackedRollout):
    """An episode in progress that records where it stands still."""

    def __init__(self, index: int, builder: EnvBuilder, agent: Agent, settings: EpisodeSettings):
        env, plane = builder.begin_episode(index, settings.seed)
        channels = agent.spec.plane[0]
        observation = np.zeros(agent.spec.observation_shape, agent.spec.dtype)
        observation[-channels:] = plane
        super().__init__(env, observation, channels)
        self.index = index
        self.detector = StandstillDetector(settings.window)
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=settings.window)
        self.standstills: list[Standstill] = []
        self.is_still = False
        self.lives, self.values, self.rewards = [env.lives], [], []

    def traced_step(self, action: int, q: np.ndarray) -> None:
        """One step with an action, chosen at the values q [A] of the current observation."""
        digest = plane_digest(self.observation[-self.channels :])
        self.recent.append((action, digest))
        was_still, self.is_still = self.is_still, self.detector.add(digest)
        if self.is_still and not was_still:
            first_step = self.steps + 1 - len(self.recent)
            found = Standstill(self.index, first_step, self.env.picture(), self.score, q.copy())
            self.standstills.append(found)
        if self.is_still:
            counted = [self.recent[-1]] if was_still else self.recent
            for past_action, past_digest in counted:
                self.standstills[-1].action_counts[past_action] += 1
                self.standstills[-1].plane_counts[past_digest] += 1
        self.values.append(float(q.max()))
        self.rewards.append(self.step(action))
        self.lives.append(self.env.lives)

    def finish(self, demonstration: Episode) -> EpisodeTrace:
        losses = find_life_losses(self.lives, self.values)
        order = compare_rewards(self.rewards, demonstration.rewards.tolist())
        return EpisodeTrace(
            self.score, self.steps, self.env.is_over, self.standstills, losses, order
        )


def play_traced_episodes(
    agent: Agent, builder: EnvBuilder, settings: EpisodeSettings, demonstration: Episode
) -> list[EpisodeTrace]:
    """Epsilon-greedy episodes from the evaluation's starts, all in one batch."""
    random = np.random.default_rng(settings.seed)
    episodes = [TracedEpisode(i, builder, agent, settings) for i in range(settings.episodes)]
    for _ in range(settings.max_steps):
        active = [episode for episode in episodes if not episode.env.is_over]
        if not active:
            break
        q = agent.q_values(np.stack([episode.observation for episode in active]))
        is_random = random.random(len(active)) < settings.epsilon
        drawn = random.integers(agent.spec.actions, size=len(active))
        actions = np.where(is_random, drawn, q.argmax(-1))
        for episode, action, row in zip(active, actions.tolist(), q, strict=True):
            episode.traced_step(action, row)
    return [episode.finish(demonstration) for episode in episodes]


def group_standstills(
    traces: Iterable[EpisodeTrace], demonstration: Episode
) -> list[StandstillPlace]:
    """The places of all standstills, the one with the most steps first."""
    groups: list[list[Standstill]] = []
    for standstill in (s for trace in traces for s in trace.standstills):
        plane = standstill.usual_plane
        same = [group for group in groups if any(plane in s.plane_counts for s in group)]
        if same:
            same[0].append(standstill)
        else:
            groups.append([standstill])
    demonstrated = _demonstrated_actions(demonstration, [group[0].usual_plane for group in groups])
    places = [
        StandstillPlace(group, actions) for group, actions in zip(groups, demonstrated, strict=True)
    ]
    return sorted(places, key=lambda place: -place.steps)


def _demonstrated_actions(episode: Episode, digests: Sequence[bytes]) -> list[Counter[int]]:
    """The actions of a demonstration at each of these planes."""
    counts: dict[bytes, Counter[int]] = {digest: Counter() for digest in digests}
    for plane, action in zip(episode.planes, episode.actions.tolist(), strict=False):
        digest = plane_digest(plane)
        if digest in counts:
            counts[digest][action] += 1
    return [counts[digest] for digest in digests]


def plane_digest(plane: np.ndarray) -> bytes:
    return hashlib.blake2b(plane.tobytes(), digest_size=8).digest()
