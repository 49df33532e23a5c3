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
from lookfurther.demos.episode import Episode, film
from lookfurther.envs import Envs, make_envs
from lookfurther.learner import Learner
from lookfurther.master_weights import Weights
from lookfurther.replay.mixture import Mixture
from lookfurther.replay.prioritized import Replay
from lookfurther.returns import discounted_returns
from lookfurther.training import hardware
from lookfurther.training.actors import Group, LocalSource
from lookfurther.transforms import REWARDS
from lookfurther.types import Spec

# Random streams, so that no two uses of a seed share their numbers.
STREAMS: dict[str, Any] = {"train": (0, 3), "evaluate": 1, "replay": 2, "stagger": 4}


def build_envs(
    env: str | Callable[[], gymnasium.Env], config: Config, lanes: int, stream: int
) -> Envs:
    """Environments of a random stream of their own, in this process but for training's."""
    seed = int(np.random.SeedSequence((config.run.seed, stream)).generate_state(1)[0])
    training = stream in STREAMS["train"]
    settings = config.environment if training else replace(config.environment, processes=0)
    cores = hardware.cores()
    if training:  # groups that step at the same time share the cores
        cores = max(1, cores * lanes // config.actor.lanes)
    return make_envs(env, settings, lanes, seed, settings.threads or cores)


def training_envs(make: Callable[[int, int], Envs], config: Config) -> list[Envs]:
    """The environments to train on, in the groups that take turns."""
    streams = STREAMS["train"][: hardware.groups(config)]
    return [make(config.actor.lanes // len(streams), stream) for stream in streams]


def build_source(config: Config, envs: Sequence[Envs], learner: Learner) -> LocalSource:
    """The actors, in groups of lanes, with one copy of the weights among them."""
    online, precision = copy.deepcopy(learner.online), learner.weights.precision
    copied = Weights(online, precision, learner.objective.passes.ask)
    groups, first = [], 0
    for part in envs:
        lanes = range(first, first + part.lanes)
        actor = Actor(copied, part.spec, config, lanes)
        groups.append(Group(part, actor, first_truncations(config, lanes)))
        first = lanes.stop
    return LocalSource(groups, copied)


def first_truncations(config: Config, lanes: range) -> np.ndarray:
    """The step at which each lane's first episode is truncated [m]; 0: it is not.

    Lanes that start together stay in phase where episodes have one length, and every round of
    experience is then of one part of the episode.
    """
    within = config.actor.stagger_steps
    random = np.random.default_rng((config.run.seed, STREAMS["stagger"]))
    steps = random.integers(min(1, within), within + 1, config.actor.lanes)
    return steps[lanes.start : lanes.stop]


def build_mixture(
    config: Config, spec: Spec, episodes: Sequence[Episode], memory: torch.device
) -> Mixture:
    """Both replays, in the memory of a device."""
    sequence = np.random.SeedSequence((config.run.seed, STREAMS["replay"]))
    seeds = [int(s) for s in sequence.generate_state(2)]
    lanes, capacity, gamma = config.actor.lanes, config.replay.capacity, config.learner.gamma
    agent = Replay(spec, lanes, capacity, config.replay, gamma, memory, seeds[0])
    expert = expert_replay(config, spec, episodes, memory, seeds[1]) if episodes else None
    mixture = Mixture(agent, expert, config.learner.agent_items, config.learner.expert_items)
    if memory.type == "cuda" and hardware.compiles(config):
        mixture.compile()
    return mixture


def expert_replay(
    config: Config, spec: Spec, episodes: Sequence[Episode], device: torch.device, seed: int
) -> Replay:
    """The expert replay, filled once, with rewards as the learner is to see them."""
    horizons = config.replay.horizons
    chunk = film(episodes, max(horizons), len(horizons), config.learner.imitated)
    reward = REWARDS[config.environment.reward](torch.from_numpy(chunk.reward))
    capacity = len(chunk.action) + spec.stack
    replay = Replay(spec, 1, capacity, config.replay, config.learner.gamma, device, seed)
    replay.add(chunk._replace(reward=reward.numpy()))
    FLOORS[config.learner.value_floor](replay)
    return replay


def no_floor(replay: Replay) -> None:
    """Leave every state without a lower bound."""


def floor_by_return(replay: Replay) -> None:
    """Bound the value of every expert state by the return that its episode obtained from it."""
    found = discounted_returns(replay.rewards.cpu(), replay.marks.cpu(), replay.gamma)
    replay.floors.copy_(found)


# What bounds the values of expert states from below.
FLOORS: dict[str, Callable[[Replay], None]] = {"none": no_floor, "return": floor_by_return}
