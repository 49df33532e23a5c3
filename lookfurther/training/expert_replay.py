"""The replay of demonstrations: what it stores, and lower bounds on the values of its states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lookfurther.config import Config
from lookfurther.demos.episode import Episode, best_episode_index, episodes_to_chunk
from lookfurther.demos.imitation import limit_imitation
from lookfurther.demos.noop_starts import find_noop_starts, first_steps
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.replay.summed import SummedHorizonReplay
from lookfurther.returns import discounted_returns
from lookfurther.transforms import REWARD_TRANSFORMS
from lookfurther.types import BEST, TERMINAL, TRUNCATED, Chunk, Spec

# By the setting `replay.horizon_losses`.
REPLAYS: dict[str, type[PrioritizedReplay]] = {
    "separate": PrioritizedReplay,
    "summed": SummedHorizonReplay,
}


def build_expert_replay(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device, seed: int
) -> PrioritizedReplay:
    """The expert replay, filled once, with transformed rewards."""
    r, gamma = config.replay, config.learner.gamma
    horizons = r.expert_horizons or r.horizons
    games = episodes = [*episodes]
    if r.expert_noop_starts:
        starts = find_noop_starts(config.environment, episodes)
        games = [*episodes, *starts.values()]
        episodes = [*episodes, *first_steps(starts, spec.stack + max(horizons))]
    offset = r.expert_priority_offset or r.priority_offset
    replay_config = replace(r, horizons=horizons, priority_offset=offset)
    chunk = build_demo_chunk(config, spec, episodes, horizons)
    capacity = len(chunk.action) + spec.stack
    replay = REPLAYS[r.horizon_losses](spec, 1, capacity, replay_config, gamma, device, seed)
    replay.add(chunk)
    if config.learner.value_floor == "return":
        floors = find_value_floors(config, games, [len(episode) + 1 for episode in episodes])
        replay.value_floors[: len(floors)] = floors
    return replay


def build_demo_chunk(
    config: Config, spec: Spec, episodes: Sequence[Episode], horizons: Sequence[int]
) -> Chunk:
    """Episodes one after another in one lane, with transformed rewards and marks for L_IM."""
    chunk = episodes_to_chunk(
        episodes, max(horizons), len(horizons), config.learner.imitated_episodes
    )
    imitated_steps, env_config = config.learner.imitated_steps, config.environment
    if not is_atari(spec.env):
        env_config = replace(env_config, clock_period=0)  # only Atari games have a clock
    chunk = limit_imitation(chunk, episodes, imitated_steps, spec.stack, env_config)
    reward = REWARD_TRANSFORMS[config.environment.reward_transform](torch.from_numpy(chunk.reward))
    return chunk._replace(reward=reward.numpy())


def spike_replay(config: Config, agent: PrioritizedReplay, episodes: Sequence[Episode]) -> None:
    """Write demonstrations to the agent's replay, where they age like its own steps (Lipton 2016).

    Each goes to the lane with the most space. They do not count as steps of the agent.
    """
    best = best_episode_index(episodes)
    for i, episode in enumerate(episodes):
        chunk = build_demo_chunk(config, agent.spec, [episode], config.replay.horizons)
        if config.learner.imitated_episodes == "best" and i != best:
            chunk = chunk._replace(mark=np.asarray(chunk.mark) & ~np.uint8(BEST))
        lane = int(agent.cursor.argmin())
        if int(agent.cursor[lane]) + len(chunk.action) > agent.slots_per_lane:
            raise ConfigError(
                f"demonstration {i} does not fit: a lane of the replay holds"
                f" {agent.slots_per_lane:,} steps: raise replay.capacity"
            )
        agent.write_slots(chunk, lane)


def find_value_floors(config: Config, games: Sequence[Episode], lengths: Sequence[int]) -> Tensor:
    """Lower bounds of V* at the first `lengths` states of each game: the return from there on.

    A truncated game might go on with negative rewards. If a game shows any, its end has no bound.
    """
    transform = REWARD_TRANSFORMS[config.environment.reward_transform]
    rewards = [transform(torch.from_numpy(np.append(game.rewards, 0))) for game in games]
    unknown = -math.inf if any(bool((reward < 0).any()) for reward in rewards) else 0.0
    floors = []
    for game, reward, length in zip(games, rewards, lengths, strict=True):
        mark = torch.zeros(len(reward), dtype=torch.uint8)
        mark[-1] = TERMINAL if game.terminal else TRUNCATED
        floors.append(discounted_returns(reward, mark, config.learner.gamma, unknown)[:length])
    return torch.cat(floors)
