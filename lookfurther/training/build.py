"""Builds the parts of a run from its configuration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from lookfurther.actor import Actor
from lookfurther.config import ActorConfig, Config
from lookfurther.demos.episode import Episode
from lookfurther.demos.recorded_paths import find_recorded_games, make_demo_path
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.demo_starts import make_demo_start_envs
from lookfurther.envs.naming import is_atari
from lookfurther.envs.split import SplitEnvs
from lookfurther.errors import ConfigError
from lookfurther.learner import Learner
from lookfurther.master_weights import MasterWeights
from lookfurther.objective_variants import choose_objective
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.shared import AnnealedMixture, PriorityMixture, SharedMixture
from lookfurther.system.processes import count_cores
from lookfurther.training.actors import ActorGroup, ActorPool
from lookfurther.training.episode_limits import EpisodeLimits, longest_reward_gap
from lookfurther.training.expert_replay import REPLAYS, build_expert_replay, spike_replay
from lookfurther.training.hardware import Hardware
from lookfurther.training.jump_start import (
    JumpStartGroup,
    JumpStarts,
    jump_start_lanes,
)
from lookfurther.types import Spec

# Streams of a run's seed: no two uses share random numbers.
RANDOM_STREAMS: dict[str, Any] = {
    "train": (0, 3),
    "evaluate": 1,
    "replay": 2,
    "stagger": 4,
    "cluster": 5,
    "jump_start": 6,
}
# By the setting `learner.demonstrations`.
MIXTURES: dict[str, type[ReplayMixture]] = {
    "fixed": ReplayMixture,
    "annealed": AnnealedMixture,
    "priority": PriorityMixture,
    "spike": ReplayMixture,
}


def build_envs(
    env: str | Callable[[], gymnasium.Env],
    config: Config,
    lanes: int,
    stream: int | tuple[int, ...],
) -> Envs:
    """Environments seeded by a random stream; those of an evaluation use no worker processes."""
    entropy = (config.run.seed, *(stream if isinstance(stream, tuple) else (stream,)))
    seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    is_training = stream != RANDOM_STREAMS["evaluate"]
    env_config = config.environment if is_training else replace(config.environment, processes=0)
    cores = count_cores()
    if is_training:  # groups that step at the same time share the cores
        cores = max(1, cores * lanes // config.actor.lanes)
    return make_envs(env, env_config, lanes, seed, env_config.threads or cores)


def build_training_envs(
    build_group: Callable[[int, int], Envs], settings: ActorConfig, groups: int
) -> list[Envs]:
    """The environments to train on, without jump starts, in groups of lanes that take turns."""
    streams = RANDOM_STREAMS["train"][:groups]
    is_jumping = jump_start_lanes(settings.lanes // len(streams), settings.jump_start_share)
    return [build_group(int((~is_jumping).sum()), stream) for stream in streams]


def build_learner(config: Config, network: nn.Module, hardware: Hardware) -> Learner:
    """The learner of a network, on its device and with torch configured for it."""
    hardware.configure_torch()
    return Learner(
        network,
        config.learner,
        hardware.device,
        hardware.precision,
        hardware.is_compiled,
        choose_objective(config),
    )


def build_actor_pool(
    config: Config, envs: Sequence[Envs], learner: Learner, episodes: Sequence[Episode] = ()
) -> ActorPool:
    """The actors, in groups of lanes that share one copy of the weights."""
    network, precision = copy.deepcopy(learner.online_network), learner.online_weights.precision
    weights = MasterWeights(network, precision, learner.objective.passes.actor_q_function)
    groups, group_lanes = [], config.actor.lanes // len(envs)
    for i, group_envs in enumerate(envs):
        lanes = range(i * group_lanes, (i + 1) * group_lanes)
        actor = Actor(weights, group_envs.spec, config, lanes)
        groups.append(_build_group(config, group_envs, actor, episodes))
    return ActorPool(groups, weights)


def _build_group(
    config: Config, envs: Envs, actor: Actor, episodes: Sequence[Episode]
) -> ActorGroup:
    limits = build_limits(config, actor.lanes, episodes)
    if not config.actor.jump_start_share:
        return ActorGroup(envs, actor, limits)
    return build_jump_start_group(config, envs, actor, limits, episodes)


def build_limits(config: Config, lanes: range, episodes: Sequence[Episode] = ()) -> EpisodeLimits:
    """The limits of the episodes of a group of lanes."""
    settings, longest = config.actor, max(map(len, episodes), default=0)
    gap = longest_reward_gap(episodes)
    if settings.max_reward_gap and not gap:
        raise ConfigError(
            "actor.max_reward_gap needs a demonstration with a positive reward: set it to 0"
        )
    return EpisodeLimits(
        draw_first_truncations(config, lanes),
        math.ceil(settings.max_demo_lengths * longest),
        math.ceil(settings.max_reward_gap * gap),
        settings.life_loss,
    )


def build_jump_start_group(
    config: Config, envs: Envs, actor: Actor, limits: EpisodeLimits, episodes: Sequence[Episode]
) -> JumpStartGroup:
    """A group in which a share of the lanes has jump starts; `envs` are its other lanes."""
    if not is_atari(envs.spec.env):
        raise ConfigError(f"actor.jump_start_share is for Atari games only, not {config.env}")
    settings, lanes = config.actor, len(actor.lanes)
    is_jumping = jump_start_lanes(lanes, settings.jump_start_share)
    demos, repeat = find_recorded_games(episodes), config.environment.action_repeat
    stream = (config.run.seed, RANDOM_STREAMS["jump_start"], actor.lanes.start)
    random = np.random.SeedSequence(stream)
    # Twice the share of these lanes: a group waits while it chooses actions.
    processes = max(1, count_cores() * lanes // settings.lanes)
    env_config = replace(config.environment, processes=min(processes, int(is_jumping.sum())))
    jump_envs = make_demo_start_envs(
        [make_demo_path(log, config.env, repeat) for demo in demos if (log := demo.input_log)],
        env_config,
        settings.life_loss != "continue",
        int(is_jumping.sum()),
        int(random.generate_state(1)[0]),
    )
    jumps = JumpStarts(
        demos,
        is_jumping,
        settings.jump_start_length,
        np.random.default_rng(random),
        is_limited=settings.jump_start_range == "reached",
    )
    return JumpStartGroup(SplitEnvs(envs, jump_envs, is_jumping), actor, limits, jumps)


def draw_first_truncations(config: Config, lanes: range) -> np.ndarray:
    """The step at which each lane's first episode is truncated [m]; 0 means never.

    If all episodes have the same length, lanes that start together stay in phase. Every round of
    experience then covers only one part of the episode.
    """
    max_steps = config.actor.stagger_steps
    rng = np.random.default_rng((config.run.seed, RANDOM_STREAMS["stagger"]))
    steps = rng.integers(min(1, max_steps), max_steps + 1, config.actor.lanes)
    return steps[lanes.start : lanes.stop]


def choose_mixture_device(config: Config, learner_device: torch.device) -> torch.device:
    """Where the mixture samples: the host if the share of demonstrations is not fixed."""
    is_shared = issubclass(MIXTURES[config.learner.demonstrations], SharedMixture)
    return torch.device("cpu") if is_shared else learner_device


def build_mixture(
    config: Config,
    spec: Spec,
    episodes: Sequence[Episode],
    device: torch.device,
    is_compiled: bool = False,
) -> ReplayMixture:
    """The agent replay and the expert replay, in the memory of a device."""
    sequence = np.random.SeedSequence((config.run.seed, RANDOM_STREAMS["replay"]))
    seeds = [int(s) for s in sequence.generate_state(2)]
    lanes, capacity, learner = config.actor.lanes, config.replay.capacity, config.learner
    replay_class = REPLAYS[config.replay.horizon_losses]
    agent = replay_class(spec, lanes, capacity, config.replay, learner.gamma, device, seeds[0])
    expert = None
    if learner.demonstrations == "spike":
        spike_replay(config, agent, episodes)
    elif episodes:
        expert = build_expert_replay(config, spec, episodes, device, seeds[1])
    mixture_class = MIXTURES[learner.demonstrations]
    mixture = mixture_class(agent, expert, learner.agent_items, learner.expert_items)
    if device.type == "cuda" and is_compiled:
        mixture.compile()
    return mixture
