"""The parts of a run, built from its configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch

from lookfurther.actor import Actor
from lookfurther.config import Config
from lookfurther.demos.episode import Episode, episodes_to_chunk
from lookfurther.demos.imitation import limit_imitation
from lookfurther.envs import Envs, make_envs
from lookfurther.learner import Learner
from lookfurther.master_weights import MasterWeights
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.returns import discounted_returns
from lookfurther.training import hardware
from lookfurther.training.actors import ActorGroup, ActorPool
from lookfurther.transforms import REWARD_TRANSFORMS
from lookfurther.types import Spec

# Random streams, so that no two uses of a seed share their numbers.
RANDOM_STREAMS: dict[str, Any] = {"train": (0, 3), "evaluate": 1, "replay": 2, "stagger": 4}


def build_envs(
    env: str | Callable[[], gymnasium.Env], config: Config, lanes: int, stream: int
) -> Envs:
    """Environments of a random stream of their own, in this process but for training's."""
    seed = int(np.random.SeedSequence((config.run.seed, stream)).generate_state(1)[0])
    training = stream in RANDOM_STREAMS["train"]
    settings = config.environment if training else replace(config.environment, processes=0)
    cores = hardware.count_cores()
    if training:  # groups that step at the same time share the cores
        cores = max(1, cores * lanes // config.actor.lanes)
    return make_envs(env, settings, lanes, seed, settings.threads or cores)


def build_training_envs(build_group: Callable[[int, int], Envs], config: Config) -> list[Envs]:
    """The environments to train on, in the groups that take turns."""
    streams = RANDOM_STREAMS["train"][: hardware.count_lane_groups(config)]
    return [build_group(config.actor.lanes // len(streams), stream) for stream in streams]


def build_actor_pool(config: Config, envs: Sequence[Envs], learner: Learner) -> ActorPool:
    """The actors, in groups of lanes, with one copy of the weights among them."""
    online, precision = copy.deepcopy(learner.online_network), learner.online_weights.precision
    copied = MasterWeights(online, precision, learner.objective.passes.actor_q_function)
    groups, first = [], 0
    for part in envs:
        lanes = range(first, first + part.lanes)
        actor = Actor(copied, part.spec, config, lanes)
        groups.append(ActorGroup(part, actor, draw_first_truncations(config, lanes)))
        first = lanes.stop
    return ActorPool(groups, copied)


def draw_first_truncations(config: Config, lanes: range) -> np.ndarray:
    """The step at which each lane's first episode is truncated [m]; 0: it is not.

    Lanes that start together stay in phase where episodes have one length, and every round of
    experience is then of one part of the episode.
    """
    within = config.actor.stagger_steps
    random = np.random.default_rng((config.run.seed, RANDOM_STREAMS["stagger"]))
    steps = random.integers(min(1, within), within + 1, config.actor.lanes)
    return steps[lanes.start : lanes.stop]


def build_mixture(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device
) -> ReplayMixture:
    """Both replays, in the memory of a device."""
    sequence = np.random.SeedSequence((config.run.seed, RANDOM_STREAMS["replay"]))
    seeds = [int(s) for s in sequence.generate_state(2)]
    lanes, capacity, gamma = config.actor.lanes, config.replay.capacity, config.learner.gamma
    agent = PrioritizedReplay(spec, lanes, capacity, config.replay, gamma, device, seeds[0])
    expert = build_expert_replay(config, spec, episodes, device, seeds[1]) if episodes else None
    mixture = ReplayMixture(agent, expert, config.learner.agent_items, config.learner.expert_items)
    if device.type == "cuda" and hardware.is_compiled(config):
        mixture.compile()
    return mixture


def build_expert_replay(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device, seed: int
) -> PrioritizedReplay:
    """The expert replay, filled once, with rewards as the learner is to see them."""
    horizons = config.replay.expert_horizons or config.replay.horizons
    settings = replace(config.replay, horizons=horizons)
    chunk = episodes_to_chunk(
        episodes, max(horizons), len(horizons), config.learner.imitated_episodes
    )
    chunk = limit_imitation(chunk, episodes, spec.stack, config.learner.imitated_steps)
    reward = REWARD_TRANSFORMS[config.environment.reward_transform](torch.from_numpy(chunk.reward))
    capacity = len(chunk.action) + spec.stack
    replay = PrioritizedReplay(spec, 1, capacity, settings, config.learner.gamma, device, seed)
    replay.add(chunk._replace(reward=reward.numpy()))
    VALUE_FLOOR_SETTERS[config.learner.value_floor](replay)
    return replay


def leave_value_floor_unset(replay: PrioritizedReplay) -> None:
    """Leave every state without a lower bound."""


def set_value_floor_to_return(replay: PrioritizedReplay) -> None:
    """Bound the value of every expert state by the return that its episode obtained from it."""
    found = discounted_returns(replay.rewards.cpu(), replay.marks.cpu(), replay.gamma)
    replay.value_floors.copy_(found)


# What bounds the values of expert states from below.
VALUE_FLOOR_SETTERS: dict[str, Callable[[PrioritizedReplay], None]] = {
    "none": leave_value_floor_unset,
    "return": set_value_floor_to_return,
}
