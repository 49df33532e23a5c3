"""Games of an agent from the no-op starts of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.agent import Agent
from lookfurther.analysis.rollout_envs import AtariRolloutEnv, EnvBuilder
from lookfurther.analysis.rollouts import StackedRollout


class AgentGame(NamedTuple):
    """The steps of one game."""

    noop_frames: int  # before its first step
    action_ids: np.ndarray  # [T] ids of the emulator
    rewards: np.ndarray  # [T]
    lives: np.ndarray  # [T] after each step

    @property
    def score(self) -> float:
        return float(self.rewards.sum())


class GameInProgress(StackedRollout):
    """A game that records its actions, rewards and lives."""

    def __init__(self, agent: Agent, builder: EnvBuilder, noop_frames: int) -> None:
        self.game: AtariRolloutEnv = builder.begin_game(noop_frames, seed=0)
        channels = agent.spec.plane[0]
        observation = np.zeros(agent.spec.observation_shape, agent.spec.dtype)
        observation[-channels:] = self.game.emulator.current_plane()
        super().__init__(self.game, observation, channels)
        self.noop_frames = noop_frames
        self.action_ids: list[int] = []
        self.rewards: list[float] = []
        self.lives: list[int] = []

    def recorded_step(self, action: int) -> None:
        """One step with an action of the agent."""
        before = self.score
        self.step(action)
        self.action_ids.append(self.game.actions[action])
        self.rewards.append(self.score - before)
        self.lives.append(self.game.lives)

    def finish(self) -> AgentGame:
        steps = (np.array(values) for values in (self.action_ids, self.rewards, self.lives))
        return AgentGame(self.noop_frames, *steps)


def play_agent_games(
    agent: Agent, starts: Sequence[int], max_steps: int, epsilon: float = 0.0
) -> list[AgentGame]:
    """Games of an Atari agent after these numbers of no-op frames, all in one batch.

    The actions are greedy, and random with probability `epsilon`; the games are always the same.
    """
    builder, random = EnvBuilder(agent), np.random.default_rng(0)
    games = [GameInProgress(agent, builder, noop_frames) for noop_frames in starts]
    for _ in range(max_steps):
        active = [game for game in games if not game.env.is_over]
        if not active:
            break
        q = agent.q_values(np.stack([game.observation for game in active]))
        is_random = random.random(len(active)) < epsilon
        actions = np.where(is_random, random.integers(q.shape[-1], size=len(active)), q.argmax(-1))
        for game, action in zip(active, actions.tolist(), strict=True):
            game.recorded_step(action)
    return [game.finish() for game in games]
