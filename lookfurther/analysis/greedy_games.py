"""Greedy games of an agent from the no-op starts of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.agent import Agent
from lookfurther.analysis.rollout_envs import AtariRolloutEnv, EnvBuilder
from lookfurther.analysis.rollouts import StackedRollout


class GreedyGame(NamedTuple):
    """The steps of one game."""

    noop_frames: int  # before its first step
    action_ids: np.ndarray  # [T] ids of the emulator
    rewards: np.ndarray  # [T]

    @property
    def score(self) -> float:
        return float(self.rewards.sum())


class GameInProgress(StackedRollout):
    """A game that records its actions and rewards."""

    def __init__(self, agent: Agent, builder: EnvBuilder, noop_frames: int) -> None:
        self.game: AtariRolloutEnv = builder.begin_game(noop_frames, seed=0)
        channels = agent.spec.plane[0]
        observation = np.zeros(agent.spec.observation_shape, agent.spec.dtype)
        observation[-channels:] = self.game.emulator.current_plane()
        super().__init__(self.game, observation, channels)
        self.noop_frames = noop_frames
        self.action_ids: list[int] = []
        self.rewards: list[float] = []

    def recorded_step(self, action: int) -> None:
        """One step with an action of the agent."""
        before = self.score
        self.step(action)
        self.action_ids.append(self.game.actions[action])
        self.rewards.append(self.score - before)

    def finish(self) -> GreedyGame:
        return GreedyGame(self.noop_frames, np.array(self.action_ids), np.array(self.rewards))


def play_greedy_games(agent: Agent, starts: Sequence[int], max_steps: int) -> list[GreedyGame]:
    """Games of an Atari agent after these numbers of no-op frames, all in one batch."""
    builder = EnvBuilder(agent)
    games = [GameInProgress(agent, builder, noop_frames) for noop_frames in starts]
    for _ in range(max_steps):
        active = [game for game in games if not game.env.is_over]
        if not active:
            break
        q = agent.q_values(np.stack([game.observation for game in active]))
        for game, action in zip(active, q.argmax(-1).tolist(), strict=True):
            game.recorded_step(action)
    return [game.finish() for game in games]
