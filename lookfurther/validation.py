"""The rules that settings must satisfy, each with its error message."""

from __future__ import annotations

from lookfurther.config import Config, check_values
from lookfurther.errors import ConfigError


def validate(config: Config) -> Config:
    """The configuration with every value checked, or a ConfigError for the first invalid one."""
    config = check_values(config)
    for holds, message in relation_rules(config):
        if not holds:
            raise ConfigError(message)
    return config


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
    """(holds, message) of every rule beyond the bounds of single settings."""
    rules = (
        _environment_rules,
        _replay_rules,
        _network_rules,
        _head_rules,
        _demonstration_rules,
        _expert_replay_rules,
        _summed_horizon_rules,
    )
    return [rule for section in rules for rule in section(config)]


def _environment_rules(config: Config) -> list[tuple[bool, str]]:
    processes, lanes = config.environment.processes, config.actor.lanes
    return [
        (config.env != "", "env must be given, for example --env ALE/Pong-v5"),
        (
            processes <= lanes,
            f"environment.processes ({processes}) exceeds actor.lanes ({lanes})",
        ),
    ]


def _replay_rules(config: Config) -> list[tuple[bool, str]]:
    r, capacity, starts = config.replay, min_capacity(config), min_learning_starts(config)
    return [
        (
            len(set(r.expert_horizons)) == len(r.expert_horizons),
            f"replay.expert_horizons repeats a length: {r.expert_horizons}",
        ),
        (
            len(set(r.horizons)) == len(r.horizons),
            f"replay.horizons repeats a length: {r.horizons}",
        ),
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
    n, is_popart = config.network, config.network.head == "popart"
    return [
        (
            n.dueling or not is_popart,
            "network.head popart needs two streams: use --network.dueling",
        ),
        (
            n.dueling or n.noisy_std == 0,
            "network.noisy_std needs two streams: use --network.dueling or --network.noisy-std 0",
        ),
        (
            n.v_min < n.v_max,
            f"network.v_min ({n.v_min}) must be below network.v_max ({n.v_max})",
        ),
        (
            not is_popart or n.noisy_std == 0,
            "network.head popart has no noisy layers: use --network.noisy-std 0",
        ),
        (
            n.initialization == "fan-in" or n.noisy_std == 0,
            f"network.initialization {n.initialization} is not for noisy layers:"
            " use --network.initialization fan-in or --network.noisy-std 0",
        ),
    ]


def _head_rules(config: Config) -> list[tuple[bool, str]]:
    head, learner = config.network.head, config.learner
    uses_values = learner.value_floor != "none" or learner.advantage_learning != 0
    return [
        (
            head != "popart" or learner.value_transform == "identity",
            "network.head popart normalises values itself: use --learner.value-transform identity",
        ),
        (
            head != "categorical" or not uses_values,
            "network.head categorical has distributions as targets:"
            " use --learner.value-floor none and --learner.advantage-learning 0",
        ),
        (
            learner.value_floor != "backup" or head == "values",
            f"learner.value_floor backup needs --network.head values, not {head}",
        ),
        (
            not learner.constrained_td or head == "values",
            f"learner.constrained_td needs --network.head values, not {head}",
        ),
    ]


def _demonstration_rules(config: Config) -> list[tuple[bool, str]]:
    learner, mode = config.learner, config.learner.demonstrations
    return [
        (
            learner.expert_items == 0 or len(config.demos) > 0,
            f"learner.expert_items is {learner.expert_items}, but no demonstrations are given:"
            " add --demos NAME, or use the preset no-demos",
        ),
        (
            not config.uses_demos or len(config.demos) > 0,
            f"learner.demonstrations is {mode}, but no demonstrations are given: add --demos NAME",
        ),
        (
            config.uses_demos or len(config.demos) == 0,
            "demonstrations are given, but learner.expert_items is 0:"
            " drop --demos or choose another preset",
        ),
        (
            mode in ("fixed", "annealed") or learner.expert_items == 0,
            f"learner.demonstrations is {mode}, which has no fixed number of expert transitions:"
            f" set learner.agent_items {config.batch_size} and learner.expert_items 0",
        ),
        *(
            (
                getattr(config.actor, name) == 0 or len(config.demos) > 0,
                f"actor.{name} needs demonstrations: add --demos NAME",
            )
            for name in ("jump_start_share", "max_demo_lengths", "max_reward_gap")
        ),
        (
            config.actor.jump_start_share == 0 or config.environment.sticky_prob == 0,
            "actor.jump_start_share plays a demonstration again, which sticky actions prevent:"
            " set environment.sticky_prob 0",
        ),
    ]


def _expert_replay_rules(config: Config) -> list[tuple[bool, str]]:
    learner = config.learner
    has_expert_replay = config.uses_demos and learner.demonstrations != "spike"
    return [
        (
            learner.value_floor == "none" or has_expert_replay,
            f"learner.value_floor {learner.value_floor} needs an expert replay: use --demos with"
            " learner.demonstrations fixed, annealed or priority, or set it to none",
        ),
        (
            learner.value_floor == "none" or config.environment.sticky_prob == 0,
            "learner.value_floor holds in deterministic games only:"
            " set environment.sticky_prob 0 or learner.value_floor none",
        ),
        (
            learner.pretraining_updates == 0 or has_expert_replay,
            "learner.pretraining_updates needs an expert replay: use --demos with"
            " learner.demonstrations fixed, annealed or priority, or set it to 0",
        ),
    ]


def _summed_horizon_rules(config: Config) -> list[tuple[bool, str]]:
    learner, horizons = config.learner, len(config.replay.horizons)
    is_summed = config.replay.horizon_losses == "summed"
    return [
        (
            not is_summed or config.replay.expert_horizons == (),
            "replay.horizon_losses is summed, which has the same lengths in both replays:"
            " leave replay.expert_horizons empty",
        ),
        (
            not is_summed
            or (learner.agent_items % horizons, learner.expert_items % horizons) == (0, 0),
            f"replay.horizon_losses is summed, but learner.agent_items ({learner.agent_items}) or"
            f" learner.expert_items ({learner.expert_items}) is not a multiple of the {horizons}"
            " lengths of replay.horizons",
        ),
    ]
