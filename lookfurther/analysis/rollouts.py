"""Where greedy play leaves a demonstration: rollouts from steps along it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from lookfurther.agent import Agent
from lookfurther.analysis.rollout_envs import EnvBuilder, EnvStart, RolloutEnv
from lookfurther.analysis.values import stack_observations
from lookfurther.demos.episode import Episode

GROUP_SIZE = 32  # rollouts played in one batch: each has its own environment


class Divergence(NamedTuple):
    """The first step at which the greedy action is not the demonstrated one."""

    step: int
    agent_action: int
    demonstrated_action: int
    agent_value: float  # of the agent's action, in h space
    demonstrated_value: float
    is_same_observation: bool  # whether the observation is still the demonstrator's
    picture: np.ndarray | None

    @property
    def action_gap(self) -> float:
        """How much higher the network values its own action."""
        return self.agent_value - self.demonstrated_value


class DemonstrationRollout(NamedTuple):
    """Greedy play from a step of a demonstration, and the scores of both over the same steps."""

    start: int
    steps: int  # over which the scores are compared
    is_game_over: bool  # whether the agent's game ended within them
    agent_score: float
    demonstrated_score: float
    divergence: Divergence | None  # None: the rollout repeats the demonstration


class StackedRollout:
    """An episode in progress, with the observation that the network gets."""

    def __init__(self, env: RolloutEnv, observation: np.ndarray, plane_channels: int) -> None:
        self.env, self.observation, self.channels = env, observation, plane_channels
        self.steps, self.score = 0, 0.0

    def step(self, action: int) -> float:
        """One step; returns its reward."""
        plane, reward = self.env.step(action)
        self.observation = np.roll(self.observation, -self.channels, axis=0)
        self.observation[-self.channels :] = plane
        self.score += reward
        self.steps += 1
        return reward


class GreedyRollout(StackedRollout):
    """A rollout from a step of a demonstration; it continues after it leaves the demonstration."""

    def __init__(self, start: EnvStart, episode: Episode, stack: int) -> None:
        observation = observation_at(episode, start.step, stack)
        super().__init__(start.env, observation, episode.planes.shape[1])
        self.start, self.episode, self.stack = start, episode, stack
        self.divergence: Divergence | None = None

    @property
    def demonstration_step(self) -> int:
        """The step of the demonstration that has the same number."""
        return self.start.step + self.steps

    @property
    def is_running(self) -> bool:
        return not self.env.is_over and self.demonstration_step < len(self.episode)

    def greedy_step(self, q: np.ndarray) -> None:
        """One greedy step by the values q [A] of the current observation."""
        action = int(q.argmax())
        demonstrated = int(self.episode.actions[self.demonstration_step])
        if self.divergence is None and action != demonstrated:
            recorded = observation_at(self.episode, self.demonstration_step, self.stack)
            self.divergence = Divergence(
                self.demonstration_step,
                action,
                demonstrated,
                float(q[action]),
                float(q[demonstrated]),
                bool(np.array_equal(self.observation, recorded)),
                self.env.picture() if self.steps else self.start.picture,
            )
        self.step(action)

    def finish(self, max_steps: int) -> DemonstrationRollout:
        """The result. A game that ended early keeps its score."""
        rewards = self.episode.rewards[self.start.step :][:max_steps].astype(np.float64)
        return DemonstrationRollout(
            self.start.step,
            len(rewards),
            self.env.is_over,
            self.score,
            float(rewards.sum()),
            self.divergence,
        )


def observation_at(episode: Episode, step: int, stack: int) -> np.ndarray:
    """The stacked observation at a step of a demonstration."""
    return stack_observations(episode.planes, np.array([step]), stack)[0]


def roll_out_demonstration(
    agent: Agent, builder: EnvBuilder, episode: Episode, starts: Sequence[int], steps: int
) -> Iterator[DemonstrationRollout]:
    """Greedy rollouts of at most `steps` steps from these steps of a demonstration.

    A rollout ends with its episode or with the demonstration, whichever is first.
    """
    env_starts = builder.iter_starts(episode, starts)
    while group := list(islice(env_starts, GROUP_SIZE)):
        rollouts = [GreedyRollout(start, episode, agent.spec.stack) for start in group]
        for _ in range(steps):
            active = [rollout for rollout in rollouts if rollout.is_running]
            if not active:
                break
            q = agent.q_values(np.stack([rollout.observation for rollout in active]))
            for rollout, row in zip(active, q, strict=True):
                rollout.greedy_step(row)
        yield from (rollout.finish(steps) for rollout in rollouts)
