"""The rules that settings must satisfy, each with its error message."""

from __future__ import annotations

import re
from dataclasses import asdict
from operator import attrgetter

from lookfurther.config import Config, from_dict
from lookfurther.errors import ConfigError

# Numbers with a minimum, and numbers that must be above 0.
MINIMUM = {
    "environment.frame_stack": 0,
    "environment.action_repeat": 1,
    "environment.noop_max": 0,
    "environment.max_episode_length": 1,
    "environment.max_failures": 1,
    "environment.processes": 0,
    "environment.worker_timeout": 0,
    "environment.threads": 0,
    "actor.lanes": 1,
    "actor.weight_sync_period": 1,
    "actor.stagger_steps": 0,
    "replay.alpha": 0,
    "network.atoms": 2,
    "network.noisy_std": 0,
    "learner.agent_items": 1,
    "learner.expert_items": 0,
    "learner.target_period": 1,
    "learner.tc_weight": 0,
    "learner.im_weight": 0,
    "run.steps": 1,
    "run.minutes": 0,
    "run.seed": 0,
    "run.threads": 0,
    "run.evaluate_period": 0,
    "run.evaluate_episodes": 1,
    "run.log_period": 1,
    "run.checkpoint_period": 0,
    "run.checkpoint_minutes": 0,
    "run.keep_checkpoints": 1,
}
POSITIVE = (
    "replay.priority_offset",
    "learner.learning_rate",
    "learner.adam_eps",
    "learner.max_gradient_norm",
    "learner.value_transform_eps",
    "learner.samples_per_insert",
    "learner.popart_step",
)


def validate(config: Config) -> Config:
    """The configuration with every value checked, or a ConfigError for the first invalid one."""
    config = from_dict(asdict(config))
    for holds, message in bound_rules(config) + relation_rules(config):
        if not holds:
            raise ConfigError(message)
    return config


def bound_rules(config: Config) -> list[tuple[bool, str]]:
    """(holds, message) of every rule about a single setting's bounds."""
    value = {name: attrgetter(name)(config) for name in (*MINIMUM, *POSITIVE)}
    return [
        (config.env != "", "env must be given, for example --env ALE/Pong-v5"),
        *((value[k] >= n, f"{k} must be {n} or more, not {value[k]}") for k, n in MINIMUM.items()),
        *((value[k] > 0, f"{k} must be above 0, not {value[k]}") for k in POSITIVE),
    ]


def min_learning_starts(config: Config) -> int:
    """The number of steps after which every lane has an item of every horizon."""
    return config.actor.lanes * (max(config.replay.horizons, default=0) + 2)


def min_extra_slots(config: Config) -> int:
    """The steps that a lane stores in addition to the longest horizon, at least 16.

    With as many as the planes of a stack, no sampled stack has overwritten planes. With one more
    there are two steps to sample from, and at most one of them is an end.
    """
    return max(16, config.environment.frame_stack + 1)


def min_capacity(config: Config) -> int:
    """The number of steps with which every lane always has an item to sample."""
    return config.actor.lanes * (max(config.replay.horizons, default=0) + min_extra_slots(config))


def relation_rules(config: Config) -> list[tuple[bool, str]]:
    """(holds, message) of every other rule."""
    rules = _environment_rules, _replay_rules, _network_rules, _learner_rules
    return [rule for section in rules for rule in section(config)]


def _environment_rules(config: Config) -> list[tuple[bool, str]]:
    e, lanes = config.environment, config.actor.lanes
    return [
        (0 <= e.sticky_prob < 1, f"environment.sticky_prob must be in [0, 1), not {e.sticky_prob}"),
        (
            e.processes <= lanes,
            f"environment.processes ({e.processes}) exceeds actor.lanes ({lanes})",
        ),
    ]


def _replay_rules(config: Config) -> list[tuple[bool, str]]:
    r, capacity, starts = config.replay, min_capacity(config), min_learning_starts(config)
    return [
        (
            min(r.horizons, default=0) >= 1,
            f"replay.horizons must be lengths of 1 or more, not {r.horizons}",
        ),
        (
            min(r.expert_horizons, default=1) >= 1,
            f"replay.expert_horizons must be lengths of 1 or more, not {r.expert_horizons}",
        ),
        (
            len(set(r.expert_horizons)) == len(r.expert_horizons),
            f"replay.expert_horizons repeats a length: {r.expert_horizons}",
        ),
        (
            len(set(r.horizons)) == len(r.horizons),
            f"replay.horizons repeats a length: {r.horizons}",
        ),
        (0 <= r.beta <= 1, f"replay.beta must be in [0, 1], not {r.beta}"),
        (
            r.capacity >= capacity,
            f"replay.capacity ({r.capacity}) must be at least {capacity}:"
            f" actor.lanes x (the longest horizon + {min_extra_slots(config)})",
        ),
        (
            r.learning_starts >= starts,
            f"replay.learning_starts ({r.learning_starts}) must be at least {starts}:"
            " actor.lanes x (the longest horizon + 2)",
        ),
        (
            r.learning_starts <= r.capacity,
            f"replay.learning_starts ({r.learning_starts}) exceeds replay.capacity ({r.capacity})",
        ),
    ]


def _network_rules(config: Config) -> list[tuple[bool, str]]:
    n, learner = config.network, config.learner
    is_popart, is_categorical = n.head == "popart", n.head == "categorical"
    uses_values = learner.value_floor != "none" or learner.advantage_learning != 0
    return [
        (
            min(n.convolutions, default=1) >= 1,
            f"network.convolutions must be widths of 1 or more, not {n.convolutions}",
        ),
        (
            min(n.hidden, default=1) >= 1,
            f"network.hidden must be widths of 1 or more, not {n.hidden}",
        ),
        (
            n.v_min < n.v_max,
            f"network.v_min ({n.v_min}) must be below network.v_max ({n.v_max})",
        ),
        (
            not is_popart or learner.value_transform == "identity",
            "network.head popart normalises values itself: use --learner.value-transform identity",
        ),
        (
            not is_popart or n.noisy_std == 0,
            "network.head popart has no noisy layers: use --network.noisy-std 0",
        ),
        (
            not is_categorical or not uses_values,
            "network.head categorical has distributions as targets:"
            " use --learner.value-floor none and --learner.advantage-learning 0",
        ),
        (
            not learner.constrained_td or n.head == "values",
            f"learner.constrained_td needs --network.head values, not {n.head}",
        ),
        (
            learner.popart_step <= 1,
            f"learner.popart_step must be at most 1, not {learner.popart_step}",
        ),
    ]


def _learner_rules(config: Config) -> list[tuple[bool, str]]:
    learner, device = config.learner, config.run.device
    return [
        (
            0 <= learner.advantage_learning < 1,
            f"learner.advantage_learning must be in [0, 1), not {learner.advantage_learning}",
        ),
        (0 <= learner.gamma <= 1, f"learner.gamma must be in [0, 1], not {learner.gamma}"),
        (
            learner.expert_items == 0 or len(config.demos) > 0,
            f"learner.expert_items is {learner.expert_items}, but no demonstrations are given:"
            " add --demos NAME, or use the preset no-demos",
        ),
        (
            learner.expert_items > 0 or len(config.demos) == 0,
            "demonstrations are given, but learner.expert_items is 0:"
            " drop --demos or choose another preset",
        ),
        (
            re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) is not None,
            f"run.device must be auto, cpu, cuda or cuda:N, not {device!r}",
        ),
    ]
