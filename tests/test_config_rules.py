"""Every rule between settings has its message."""

from __future__ import annotations

from typing import Any

import pytest

from lookfurther import validation
from lookfurther.config import replace
from lookfurther.errors import ConfigError
from lookfurther.settings.bounds import BOUNDS
from lookfurther.validation import validate
from tests.test_config import VALID_CONFIG

# The message of each rule, and overrides that break it.
INVALID_OVERRIDES: dict[str, dict[str, Any]] = {
    "env must be given, for example --env ALE/Pong-v5": {"env": ""},
    "environment.frame_stack must be 0 or more, not -1": {"environment__frame_stack": -1},
    "environment.action_repeat must be 1 or more, not 0": {"environment__action_repeat": 0},
    "environment.noop_max must be 0 or more, not -1": {"environment__noop_max": -1},
    "environment.max_episode_length must be 1 or more, not 0": {
        "environment__max_episode_length": 0
    },
    "environment.max_failures must be 1 or more, not 0": {"environment__max_failures": 0},
    "environment.processes must be 0 or more, not -1": {"environment__processes": -1},
    "environment.worker_timeout must be 0 or more, not -1.0": {"environment__worker_timeout": -1.0},
    "environment.threads must be 0 or more, not -1": {"environment__threads": -1},
    "actor.lanes must be 1 or more, not 0": {"actor__lanes": 0},
    "actor.weight_sync_period must be 1 or more, not 0": {"actor__weight_sync_period": 0},
    "actor.stagger_steps must be 0 or more, not -1": {"actor__stagger_steps": -1},
    "actor.jump_start_share must be in [0, 1), not 1.0": {"actor__jump_start_share": 1.0},
    "actor.max_demo_lengths must be 0 or more, not -1.0": {"actor__max_demo_lengths": -1.0},
    "actor.max_reward_gap must be 0 or more, not -1.0": {"actor__max_reward_gap": -1.0},
    "actor.jump_start_length must be 1 or more, not 0": {"actor__jump_start_length": 0},
    "replay.alpha must be 0 or more, not -0.1": {"replay__alpha": -0.1},
    "learner.agent_items must be 1 or more, not 0": {"learner__agent_items": 0},
    "learner.expert_items must be 0 or more, not -1": {"learner__expert_items": -1},
    "learner.target_period must be 1 or more, not 0": {"learner__target_period": 0},
    "learner.weight_average must be 0 or more, not -1": {"learner__weight_average": -1},
    "learner.margin_scale must be 0 or more, not -1.0": {"learner__margin_scale": -1.0},
    "learner.tc_weight must be 0 or more, not -1.0": {"learner__tc_weight": -1.0},
    "learner.im_weight must be 0 or more, not -1.0": {"learner__im_weight": -1.0},
    "run.steps must be 1 or more, not 0": {"run__steps": 0},
    "run.minutes must be 0 or more, not -1.0": {"run__minutes": -1.0},
    "run.seed must be 0 ... 2^63 - 1, not -1": {"run__seed": -1},
    "run.threads must be 0 or more, not -1": {"run__threads": -1},
    "run.evaluate_period must be 0 or more, not -1": {"run__evaluate_period": -1},
    "run.evaluate_episodes must be 1 or more, not 0": {"run__evaluate_episodes": 0},
    "run.log_period must be 1 or more, not 0": {"run__log_period": 0},
    "run.checkpoint_period must be 0 or more, not -1": {"run__checkpoint_period": -1},
    "run.checkpoint_minutes must be 0 or more, not -1.0": {"run__checkpoint_minutes": -1.0},
    "run.keep_checkpoints must be 1 or more, not 0": {"run__keep_checkpoints": 0},
    "replay.priority_offset must be above 0, not 0.0": {"replay__priority_offset": 0.0},
    "learner.learning_rate must be above 0, not 0.0": {"learner__learning_rate": 0.0},
    "learner.adam_eps must be above 0, not 0.0": {"learner__adam_eps": 0.0},
    "learner.rmsprop_eps must be above 0, not 0.0": {"learner__rmsprop_eps": 0.0},
    "learner.l2_weight must be 0 or more, not -1.0": {"learner__l2_weight": -1.0},
    "learner.max_gradient_norm must be above 0, not 0.0": {"learner__max_gradient_norm": 0.0},
    "learner.value_transform_eps must be above 0, not 0.0": {"learner__value_transform_eps": 0.0},
    "learner.samples_per_insert must be above 0, not 0.0": {"learner__samples_per_insert": 0.0},
    "environment.sticky_prob must be in [0, 1), not 1.0": {"environment__sticky_prob": 1.0},
    "environment.clock_period must be in 0 ... 64, not 65": {"environment__clock_period": 65},
    "environment.processes (129) exceeds actor.lanes (128)": {"environment__processes": 129},
    "replay.horizons must be lengths of 1 or more, not (0, 3)": {"replay__horizons": (0, 3)},
    "replay.horizons repeats a length: (3, 3)": {"replay__horizons": (3, 3)},
    "replay.expert_horizons must be lengths of 1 or more, not (0, 3)": {
        "replay__expert_horizons": (0, 3)
    },
    "replay.expert_horizons repeats a length: (3, 3)": {"replay__expert_horizons": (3, 3)},
    "replay.beta must be in [0, 1], not 1.1": {"replay__beta": 1.1},
    "replay.capacity (3327) must be at least 3328: actor.lanes x (the longest horizon + 16)": {
        "replay__capacity": 3327,
        "replay__learning_starts": 2000,
    },
    "replay.learning_starts (1535) must be at least 1536: actor.lanes x"
    " (the longest horizon + 2)": {"replay__learning_starts": 1535},
    "replay.learning_starts (50000) exceeds replay.capacity (49999)": {"replay__capacity": 49_999},
    "network.convolutions must be widths of 1 or more, not (32, 0)": {
        "network__convolutions": (32, 0)
    },
    "network.hidden must be widths of 1 or more, not (0,)": {"network__hidden": (0,)},
    "learner.popart_step must be above 0 and at most 1, not 0.0": {"learner__popart_step": 0.0},
    "learner.popart_step must be above 0 and at most 1, not 2.0": {"learner__popart_step": 2.0},
    "network.atoms must be 2 or more, not 1": {"network__atoms": 1},
    "network.noisy_std must be 0 or more, not -0.5": {"network__noisy_std": -0.5},
    "network.v_min (10.0) must be below network.v_max (10.0)": {"network__v_min": 10.0},
    "network.head popart normalises values itself: use --learner.value-transform identity": {
        "network__head": "popart"
    },
    "network.head popart has no noisy layers: use --network.noisy-std 0": {
        "network__head": "popart",
        "network__noisy_std": 0.5,
        "learner__value_transform": "identity",
    },
    "network.initialization glorot is not for noisy layers:"
    " use --network.initialization fan-in or --network.noisy-std 0": {
        "network__initialization": "glorot",
        "network__noisy_std": 0.5,
    },
    "network.head categorical has distributions as targets:"
    " use --learner.value-floor none and --learner.advantage-learning 0": {
        "network__head": "categorical",
        "learner__value_floor": "return",
    },
    "learner.value_floor backup needs --network.head values, not popart": {
        "network__head": "popart",
        "learner__value_transform": "identity",
        "learner__value_floor": "backup",
    },
    "learner.value_floor return needs an expert replay: use --demos with"
    " learner.demonstrations fixed, annealed or priority, or set it to none": {
        "learner__demonstrations": "spike",
        "learner__expert_items": 0,
        "learner__value_floor": "return",
    },
    "learner.value_floor holds in deterministic games only:"
    " set environment.sticky_prob 0 or learner.value_floor none": {
        "environment__sticky_prob": 0.25,
        "learner__value_floor": "return",
    },
    "learner.constrained_td needs --network.head values, not categorical": {
        "network__head": "categorical",
        "learner__constrained_td": True,
    },
    "learner.advantage_learning must be in [0, 1), not 1.0": {"learner__advantage_learning": 1.0},
    "learner.gamma must be in [0, 1], not 1.001": {"learner__gamma": 1.001},
    "learner.expert_items is 64, but no demonstrations are given:"
    " add --demos NAME, or use the preset no-demos": {"demos": ()},
    "demonstrations are given, but learner.expert_items is 0:"
    " drop --demos or choose another preset": {"learner__expert_items": 0},
    "run.device must be auto, cpu, cuda or cuda:N, not 'gpu'": {"run__device": "gpu"},
    "network.head popart needs two streams: use --network.dueling": {
        "network__dueling": False,
        "network__head": "popart",
    },
    "network.noisy_std needs two streams: use --network.dueling or --network.noisy-std 0": {
        "network__dueling": False,
        "network__noisy_std": 0.5,
    },
    "actor.epsilon_steps must be 1 or more, not 0": {"actor__epsilon_steps": 0},
    "actor.epsilon_end must be in [0, 1], not 1.1": {"actor__epsilon_end": 1.1},
    "replay.expert_priority_offset must be 0 or more, not -1.0": {
        "replay__expert_priority_offset": -1.0
    },
    "network.torso_gradient_scale must be above 0, not 0.0": {"network__torso_gradient_scale": 0.0},
    "learner.pretraining_updates must be 0 or more, not -1": {"learner__pretraining_updates": -1},
    "learner.demonstrations is spike, but no demonstrations are given: add --demos NAME": {
        "learner__demonstrations": "spike",
        "learner__expert_items": 0,
        "demos": (),
    },
    "learner.demonstrations is priority, which has no fixed number of expert transitions:"
    " set learner.agent_items 256 and learner.expert_items 0": {
        "learner__demonstrations": "priority"
    },
    "actor.jump_start_share needs demonstrations: add --demos NAME": {
        "demos": (),
        "learner__expert_items": 0,
        "actor__jump_start_share": 0.5,
    },
    "actor.max_demo_lengths needs demonstrations: add --demos NAME": {
        "demos": (),
        "learner__expert_items": 0,
        "actor__max_demo_lengths": 2.0,
    },
    "actor.max_reward_gap needs demonstrations: add --demos NAME": {
        "demos": (),
        "learner__expert_items": 0,
        "actor__max_reward_gap": 1.5,
    },
    "actor.jump_start_share plays a demonstration again, which sticky actions prevent:"
    " set environment.sticky_prob 0": {
        "actor__jump_start_share": 0.5,
        "environment__sticky_prob": 0.25,
    },
    "learner.pretraining_updates needs an expert replay: use --demos with"
    " learner.demonstrations fixed, annealed or priority, or set it to 0": {
        "learner__pretraining_updates": 1,
        "learner__expert_items": 0,
        "demos": (),
    },
    "replay.horizon_losses is summed, which has the same lengths in both replays:"
    " leave replay.expert_horizons empty": {
        "replay__horizon_losses": "summed",
        "replay__expert_horizons": (1, 3),
    },
    "replay.horizon_losses is summed, but learner.agent_items (191) or learner.expert_items (64)"
    " is not a multiple of the 2 lengths of replay.horizons": {
        "replay__horizon_losses": "summed",
        "learner__agent_items": 191,
    },
}


@pytest.mark.parametrize("message", INVALID_OVERRIDES)
def test_each_rule_has_its_message(message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(replace(VALID_CONFIG, **INVALID_OVERRIDES[message]))
    assert str(caught.value) == message
    assert "\n" not in message


def test_every_rule_is_covered() -> None:
    """The cases break every bound, and each other rule once, before any other rule."""

    def first_broken(overrides: dict[str, Any]) -> int:
        config = replace(VALID_CONFIG, **overrides)
        return [holds for holds, _ in validation.relation_rules(config)].index(False)

    bounded = {m: m.partition(" must be ")[0] for m in INVALID_OVERRIDES}
    assert {name for name in bounded.values() if name in BOUNDS} == BOUNDS.keys()
    related = [v for m, v in INVALID_OVERRIDES.items() if bounded[m] not in BOUNDS]
    rules = validation.relation_rules(VALID_CONFIG)
    assert sorted(map(first_broken, related)) == list(range(len(rules)))


@pytest.mark.parametrize("name", ["actor__lanes", "replay__capacity", "replay__learning_starts"])
def test_minimum_sizes_are_accepted(name: str) -> None:
    """One lane and one-step transitions: 17 slots, learning starts after 3 steps."""
    minimum = {"actor__lanes": 1, "replay__capacity": 17, "replay__learning_starts": 3}
    tiny = replace(VALID_CONFIG, replay__horizons=(1,), **minimum)
    validate(tiny)
    with pytest.raises(ConfigError, match=name.replace("__", ".")):
        validate(replace(tiny, **{name: minimum[name] - 1}))
