"""The defaults against the paper's hyper-parameters, and each preset against the defaults."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, SCALES, preset
from lookfurther.training.config_json import from_json, to_json
from lookfurther.validation import validate
from tests.test_config import flatten_config


def test_defaults_are_paper_hyper_parameters() -> None:
    """Table 6, and the numbers of Sec. 3.2 and 3.4."""
    c = preset("apex-dqfd")
    assert c == Config()
    assert c.batch_size == 256
    assert c.learner.agent_items == 192
    assert c.learner.expert_items == 64
    assert c.learner.learning_rate == 5e-5
    assert c.learner.adam_eps == 0.0000390625  # 0.01 / 256
    assert c.learner.max_gradient_norm == 40.0
    assert c.learner.target_period == 2500
    assert c.learner.gamma == 0.999
    assert c.learner.margin == pytest.approx(0.9994998749374609, rel=1e-15)  # sqrt(0.999)
    assert c.learner.value_transform == "h"
    assert c.learner.value_transform_eps == 1e-2
    assert c.learner.tc_weight == 1.0
    assert c.learner.im_weight == 1.0
    assert c.environment.full_actions is True
    assert c.environment.action_repeat == 4
    assert c.environment.reward_transform == "raw"
    assert c.environment.sticky_prob == 0.0
    assert (c.environment.max_episode_length, c.environment.episode_length_unit) == (
        50_000,
        "steps",
    )
    assert c.actor.lanes == 128
    assert c.actor.epsilon_schedule == "paper"
    assert c.replay.horizons == (1, 10)


# All settings that each preset and scale changes.
EXPECTED_OVERRIDES: dict[str, dict[str, Any]] = {
    "apex-dqfd": {},
    "apex-dqfd-deeper": {"network__name": "dueling-deeper"},
    "no-transform": {"learner__value_transform": "identity"},
    "no-tc": {"learner__tc_weight": 0.0},
    "no-imitation": {"learner__im_weight": 0.0},
    "popart": {"network__head": "popart", "learner__value_transform": "identity"},
    "constrained-td": {"learner__constrained_td": True, "learner__tc_weight": 0.0},
    "no-demos": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "actor__epsilon_schedule": "apex",
    },
    "apex-dqn": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "actor__epsilon_schedule": "apex",
        "learner__value_transform": "identity",
        "learner__tc_weight": 0.0,
        "learner__gamma": 0.99,
        "learner__priority_type": "abs",
        "environment__reward_transform": "clip",
        "replay__horizons": (3,),
    },
    "clipped": {
        "environment__reward_transform": "clip",
        "learner__value_transform": "identity",
    },
    "replay-spiking": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "learner__demonstrations": "spike",
        "learner__im_weight": 0.0,
    },
}
# Systems of other papers: their numbers are tested against the papers below.
OTHER_SYSTEMS = ("apex-dqn-horgan", "dqfd", "dqn", "double-dqn", "per", "dueling", "rainbow")
SMALL_DQN: dict[str, Any] = {"actor__epsilon_steps": 20_000, "learner__learning_rate": 2.5e-4}
EXPECTED_SMALL: dict[str, dict[str, Any]] = {
    "apex-dqn-horgan": {"learner__learning_rate": 2.5e-4},
    "dqfd": {"learner__learning_rate": 2.5e-4, "learner__pretraining_updates": 2_000},
    **dict.fromkeys(("dqn", "double-dqn", "per", "dueling"), SMALL_DQN),
}
SMALL_OVERRIDES: dict[str, Any] = {
    "actor__lanes": 32,
    "replay__capacity": 200_000,
    "replay__learning_starts": 2_000,
    "learner__learning_rate": 5e-4,
    "learner__target_period": 200,
    "run__steps": 1_000_000,
    "run__checkpoint_period": 200_000,
}


def overrides_of(config: Config) -> dict[str, Any]:
    """The settings that differ from the defaults, except the preset's name."""
    base = flatten_config(Config())
    return {k: v for k, v in flatten_config(config).items() if v != base[k] and k != "preset"}


def test_every_preset_has_expected_overrides() -> None:
    assert set(PRESETS) == {*EXPECTED_OVERRIDES, *OTHER_SYSTEMS}
    assert set(SCALES) == {"paper", "small"}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_changes_its_overrides_only(name: str) -> None:
    """An override equal to the default would be missing from the difference."""
    own = PRESETS[name].overrides
    assert overrides_of(preset(name)) == EXPECTED_OVERRIDES.get(name, own) == own
    small = own | SMALL_OVERRIDES | EXPECTED_SMALL.get(name, {})
    assert overrides_of(preset(name, "small")) == small
    assert preset(name).preset == name


def select_settings(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The values that a preset gives to settings, all of them, changed or default."""
    flat = flatten_config(preset(name))
    return {key: flat[key] for key in settings}


# Mnih et al. 2015, extended data table 1, as in dqn_zoo/*/run_atari.py, in steps of four frames.
DQN_CONSTANTS: dict[str, Any] = {
    "actor__lanes": 1,
    "actor__epsilon_schedule": "linear",
    "actor__epsilon_steps": 1_000_000,
    "replay__capacity": 1_000_000,
    "replay__learning_starts": 50_000,
    "replay__horizons": (1,),
    "learner__agent_items": 32,
    "learner__expert_items": 0,
    "learner__samples_per_insert": 8.0,
    "learner__gamma": 0.99,
    "learner__optimizer": "rmsprop",
    "learner__td_loss": "huber",
    "learner__value_transform": "identity",
    "learner__tc_weight": 0.0,
    "environment__reward_transform": "clip",
}
LADDER: dict[str, dict[str, Any]] = {
    "dqn": {
        "actor__epsilon_end": 0.1,
        "replay__alpha": 0.0,
        "network__dueling": False,
        "learner__double_q": False,
        "learner__target_period": 40_000 // 4 // 4,
        "learner__learning_rate": 0.00025,
        "learner__rmsprop_eps": 0.01 / 32**2,
    },
    "double-dqn": {
        "actor__epsilon_end": 0.01,
        "replay__alpha": 0.0,
        "network__dueling": False,
        "learner__double_q": True,
        "learner__target_period": 120_000 // 4 // 4,
        "learner__learning_rate": 0.00025,
        "learner__rmsprop_eps": 0.01 / 32**2,
    },
    "per": {
        "actor__epsilon_end": 0.01,
        "replay__alpha": 0.6,
        "replay__beta": 0.4,
        "replay__beta_schedule": "linear",
        "network__dueling": False,
        "learner__target_period": 120_000 // 4 // 4,
        "learner__learning_rate": 0.00025 / 4,
        "learner__rmsprop_eps": (0.01 / 32**2) * (1.0 / 4) ** 2,
    },
    "dueling": {
        "replay__alpha": 0.6,
        "network__dueling": True,
        "network__torso_gradient_scale": pytest.approx(2**-0.5),
        "learner__max_gradient_norm": 10.0,
    },
}


@pytest.mark.parametrize("name", LADDER)
def test_descendants_of_dqn_have_published_constants(name: str) -> None:
    expected = DQN_CONSTANTS | LADDER[name]
    assert select_settings(name, expected) == expected


def test_rainbow_has_published_constants() -> None:
    """Hessel et al. 2018, Table 1; dqn_zoo/rainbow/run_atari.py, in steps of four frames."""
    expected = DQN_CONSTANTS | {
        "actor__epsilon_schedule": "constant",
        "actor__epsilon_end": 0.0,
        "replay__learning_starts": 80_000 // 4,
        "replay__horizons": (3,),
        "replay__alpha": 0.5,
        "replay__beta": 0.4,
        "replay__beta_schedule": "linear",
        "network__dueling": True,
        "network__head": "categorical",
        "network__atoms": 51,
        "network__v_min": -10.0,
        "network__v_max": 10.0,
        "network__noisy_std": 0.5,
        "learner__double_q": True,
        "learner__optimizer": "adam",
        "learner__learning_rate": 0.0000625,
        "learner__adam_eps": 0.00015625,
        "learner__max_gradient_norm": 10.0,
        "learner__target_period": 32_000 // 4 // 4,
    }
    assert select_settings("rainbow", expected) == expected


def test_dqfd_has_published_constants() -> None:
    """Hester et al. 2018, supplementary material."""
    expected = {
        "learner__pretraining_updates": 750_000,
        "learner__demonstrations": "priority",
        "replay__horizons": (1, 10),
        "replay__horizon_losses": "summed",
        "learner__im_weight": 1.0,
        "learner__margin": 0.8,
        "learner__imitated_episodes": "all",
        "learner__l2_weight": 1e-5,
        "learner__td_loss": "squared",
        "actor__epsilon_schedule": "constant",
        "actor__epsilon_end": 0.01,
        "replay__alpha": 0.4,
        "replay__beta": 0.6,
        "replay__beta_schedule": "linear",
        "replay__priority_offset": 0.001,
        "replay__expert_priority_offset": 1.0,
        "learner__target_period": 10_000,
        "learner__gamma": 0.99,
        "environment__reward_transform": "signed-log",
        "environment__full_actions": True,
        "environment__noop_max": 30,
        "learner__double_q": True,
    }
    assert select_settings("dqfd", expected) == expected


def test_apex_dqn_horgan_has_published_constants() -> None:
    """Horgan et al. 2018, appendix C and D."""
    expected = {
        "actor__lanes": 360,
        "actor__epsilon_schedule": "apex",
        "learner__agent_items": 512,
        "replay__horizons": (3,),
        "learner__optimizer": "rmsprop",
        "learner__learning_rate": 0.00025 / 4,
        "learner__rmsprop_eps": 1.5e-7,
        "learner__td_loss": "squared",
        "learner__max_gradient_norm": 40.0,
        "learner__target_period": 2500,
        "replay__alpha": 0.6,
        "replay__beta": 0.4,
        "replay__capacity": 2_000_000,
        "replay__learning_starts": 50_000,
    }
    assert select_settings("apex-dqn-horgan", expected) == expected


@pytest.mark.parametrize("name", [*EXPECTED_OVERRIDES, *SCALES])
def test_preset_has_few_overrides(name: str) -> None:
    """At most 8 settings differ from the defaults or from another preset that it extends."""
    table = PRESETS if name in PRESETS else SCALES
    own = table[name].overrides.items()
    others = [p.overrides.items() for key, p in table.items() if key != name]
    assert min(len(own - other) for other in [{}.items(), *others] if other <= own) <= 8


@pytest.mark.parametrize("name", PRESETS)
def test_preset_describes_its_place_in_paper(name: str) -> None:
    place = r"(Tables? \d(-\d)?|Fig\. \d|Sec\. \d\.\d|[\w ]+ et al\. 20\d\d), \S"
    assert re.match(place, PRESETS[name].description)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_at_every_scale(name: str, scale: str) -> None:
    config = preset(name, scale, env="ALE/Pong-v5")
    if config.uses_demos:
        config = replace(config, demos=("pong",))
    assert from_json(to_json(validate(config))) == config


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPECTED_OVERRIDES)
def test_batch_size_is_always_256(name: str, scale: str) -> None:
    assert preset(name, scale).batch_size == 256


def test_further_overrides_apply_last() -> None:
    config = preset("no-tc", "small", learner__tc_weight=0.5, actor__lanes=3, env="CartPole-v1")
    assert (config.learner.tc_weight, config.actor.lanes) == (0.5, 3)
    assert config.env == "CartPole-v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("apex",), "unknown preset 'apex': choose one of apex-dqfd, apex-dqfd-deeper, "),
        (("no-tc", "huge"), "unknown scale 'huge': choose one of paper, small"),
    ],
)
def test_unknown_preset_or_scale_lists_known_ones(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        preset(*arguments)
