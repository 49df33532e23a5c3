"""Presets of other papers have their published constants."""

from __future__ import annotations

from typing import Any

import pytest

from lookfurther.presets import preset
from tests.test_config import flatten_config


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
