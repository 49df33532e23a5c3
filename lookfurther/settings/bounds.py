"""The bounds of single settings, each with its description for error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lookfurther.errors import ConfigError


class Bound(NamedTuple):
    """What a value must be."""

    holds: Callable[[Any], bool]
    description: str


def _at_least(minimum: int) -> Bound:
    return Bound(lambda value: value >= minimum, f"{minimum} or more")


NON_NEGATIVE, AT_LEAST_ONE = _at_least(0), _at_least(1)
ABOVE_ZERO = Bound(lambda value: value > 0, "above 0")
PROBABILITY = Bound(lambda value: 0 <= value <= 1, "in [0, 1]")
BELOW_ONE = Bound(lambda value: 0 <= value < 1, "in [0, 1)")
WIDTHS = Bound(lambda values: min(values, default=1) >= 1, "widths of 1 or more")

BOUNDS: dict[str, Bound] = {
    "environment.frame_stack": NON_NEGATIVE,
    "environment.action_repeat": AT_LEAST_ONE,
    "environment.noop_max": NON_NEGATIVE,
    "environment.sticky_prob": BELOW_ONE,
    "environment.clock_period": Bound(lambda value: 0 <= value <= 64, "in 0 ... 64"),
    "environment.max_episode_length": AT_LEAST_ONE,
    "environment.max_failures": AT_LEAST_ONE,
    "environment.processes": NON_NEGATIVE,
    "environment.worker_timeout": NON_NEGATIVE,
    "environment.threads": NON_NEGATIVE,
    "actor.lanes": AT_LEAST_ONE,
    "actor.weight_sync_period": AT_LEAST_ONE,
    "actor.stagger_steps": NON_NEGATIVE,
    "actor.max_demo_lengths": NON_NEGATIVE,
    "actor.max_reward_gap": NON_NEGATIVE,
    "actor.jump_start_share": BELOW_ONE,
    "actor.jump_start_length": AT_LEAST_ONE,
    "actor.epsilon_end": PROBABILITY,
    "actor.epsilon_steps": AT_LEAST_ONE,
    "replay.horizons": Bound(lambda v: min(v, default=0) >= 1, "lengths of 1 or more"),
    "replay.expert_horizons": Bound(lambda v: min(v, default=1) >= 1, "lengths of 1 or more"),
    "replay.alpha": NON_NEGATIVE,
    "replay.beta": PROBABILITY,
    "replay.priority_offset": ABOVE_ZERO,
    "replay.expert_priority_offset": NON_NEGATIVE,
    "network.convolutions": WIDTHS,
    "network.hidden": WIDTHS,
    "network.torso_gradient_scale": ABOVE_ZERO,
    "network.atoms": _at_least(2),
    "network.noisy_std": NON_NEGATIVE,
    "learner.agent_items": AT_LEAST_ONE,
    "learner.expert_items": NON_NEGATIVE,
    "learner.learning_rate": ABOVE_ZERO,
    "learner.adam_eps": ABOVE_ZERO,
    "learner.rmsprop_eps": ABOVE_ZERO,
    "learner.max_gradient_norm": ABOVE_ZERO,
    "learner.target_period": AT_LEAST_ONE,
    "learner.weight_average": NON_NEGATIVE,
    "learner.gamma": PROBABILITY,
    "learner.value_transform_eps": ABOVE_ZERO,
    "learner.tc_weight": NON_NEGATIVE,
    "learner.im_weight": NON_NEGATIVE,
    "learner.margin_scale": NON_NEGATIVE,
    "learner.l2_weight": NON_NEGATIVE,
    "learner.pretraining_updates": NON_NEGATIVE,
    "learner.advantage_learning": BELOW_ONE,
    "learner.popart_step": Bound(lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "learner.samples_per_insert": ABOVE_ZERO,
    "run.steps": AT_LEAST_ONE,
    "run.minutes": NON_NEGATIVE,
    "run.seed": Bound(lambda value: 0 <= value < 2**63, "0 ... 2^63 - 1"),
    "run.device": Bound(
        lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None,
        "auto, cpu, cuda or cuda:N",
    ),
    "run.threads": NON_NEGATIVE,
    "run.evaluate_period": NON_NEGATIVE,
    "run.evaluate_episodes": AT_LEAST_ONE,
    "run.log_period": AT_LEAST_ONE,
    "run.checkpoint_period": NON_NEGATIVE,
    "run.checkpoint_minutes": NON_NEGATIVE,
    "run.keep_checkpoints": AT_LEAST_ONE,
}


def check_bounds(settings: Mapping[str, Any]) -> None:
    """Raise a ConfigError for the first setting, by dotted name, that is out of bounds."""
    for name in BOUNDS:
        check_bound(name, settings[name])


def check_bound(name: str, value: Any, label: str = "") -> None:
    """Raise a ConfigError if a value is out of a setting's bounds; `label` names it instead."""
    holds, description = BOUNDS[name]
    if not holds(value):
        raise ConfigError(f"{label or name} must be {description}, not {value!r}")
