"""An actor in another process: one group of lanes that plays on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from lookfurther.actor import Actor
from lookfurther.config import Config
from lookfurther.exploration import initial_epsilons
from lookfurther.master_weights import MasterWeights
from lookfurther.training.actors import ActorGroup
from lookfurther.training.build import build_envs, build_limits
from lookfurther.training.cluster.lane_ranges import select_epsilons, select_stream, split_lanes
from lookfurther.training.cluster.messages import (
    PlayedChunk,
    PlayRequest,
    compress_planes,
    pack_flags,
    stack_chunks,
    unpack_weights,
)
from lookfurther.training.hardware import Hardware


@dataclass(frozen=True)
class ActorSetup:
    """What all actors of a run have in common."""

    config: Config
    env: str | Callable[[], gymnasium.Env]
    network: nn.Module  # on a CPU
    ranges: int  # of lanes, one for each actor


class RemoteActor:
    """Plays the lanes of one range, on one core."""

    def __init__(self, setup: ActorSetup, index: int, incarnation: int) -> None:
        self.setup, self.index, self.incarnation = setup, index, incarnation
        self.sequence = 0
        self.weights_version = -1
        self.reported_replacements = 0

    def play(self, request: PlayRequest, weights: Mapping[str, np.ndarray]) -> PlayedChunk:
        """Play with these weights; the first call builds the environments.

        `invalidate_newest` counts back from the newest slot of a chunk, so a step that drops an
        episode ends the chunk.
        """
        if not self.sequence:
            self.group = build_group(self.setup, self.index, self.incarnation)
        self._load_weights(request.weights_version, weights)
        if request.common_epsilon is not None:
            self.group.actor.epsilon.fill_(request.common_epsilon)
        chunks, steps = [], []
        while len(steps) < request.steps:
            self.group.start_step()
            chunk = self.group.collect_chunk()
            copies = (np.array(field) for field in chunk)
            chunks.append(type(chunk)(*copies))
            steps.append(self.group.last_step)
            if chunk.invalidate_newest.any():
                break
        fields = stack_chunks(chunks)
        planes = fields.pop("plane")
        replacements = tuple(self.group.envs.replacements[self.reported_replacements :])
        self.reported_replacements += len(replacements)
        self.sequence += 1
        return PlayedChunk(
            incarnation=self.incarnation,
            sequence=self.sequence - 1,
            weights_time=request.weights_time,
            planes=compress_planes(planes) if request.is_compressed else planes,
            raw_reward=np.stack([step.reward for step in steps]),
            step_flags=pack_flags(steps),
            is_finite=bool(self.group.actor.all_finite),
            replacements=replacements,
            **fields,
        )

    def _load_weights(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        if version != self.weights_version:
            self.group.actor.weights.load_state_dict(unpack_weights(weights))
            self.weights_version = version


def build_group(setup: ActorSetup, index: int, incarnation: int) -> ActorGroup:
    """The group of lanes of a range, seeded by the run, the range and the incarnation."""
    config = _adapt_config(setup.config)
    hardware = Hardware.resolve(config)
    hardware.configure_torch()
    hardware.limit_threads()
    sequence = np.random.SeedSequence((config.run.seed, index, incarnation))
    torch_seed, generator_seed = (int(seed) for seed in sequence.generate_state(2))
    torch.manual_seed(torch_seed)  # noisy networks draw from it
    lanes = split_lanes(config.actor.lanes, setup.ranges)[index]
    envs = build_envs(setup.env, config, len(lanes), select_stream(index, incarnation))
    actor = Actor(MasterWeights(setup.network, hardware.precision), envs.spec, config, lanes)
    settings = config.actor
    epsilons = initial_epsilons(settings.epsilon_schedule, settings.lanes, settings.epsilon_end)
    actor.epsilon.copy_(select_epsilons(epsilons, index, setup.ranges))
    if incarnation:
        actor.generator.manual_seed(generator_seed)
    return ActorGroup(envs, actor, build_limits(config, lanes))


def _adapt_config(config: Config) -> Config:
    """The settings of a run for an actor with one core and no GPU."""
    changes: dict[str, Any] = {
        "run": replace(config.run, device="cpu", threads=1),
        "environment": replace(config.environment, threads=config.environment.threads or 1),
    }
    return replace(config, **changes)
