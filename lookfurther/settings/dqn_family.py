"""Settings of DQN and the algorithms that extend it, as parts of presets."""

from __future__ import annotations

from typing import Any

# DQN and its descendants with one actor: 32 items every 4 steps.
ONE_ACTOR: dict[str, Any] = {
    "actor__lanes": 1,
    "actor__weight_sync_period": 4,
    "replay__capacity": 1_000_000,
    "learner__agent_items": 32,
    "learner__expert_items": 0,
    "learner__optimizer": "rmsprop",
    "learner__gamma": 0.99,
    "learner__value_transform": "identity",
    "learner__tc_weight": 0.0,
}
DOUBLE_DQN: dict[str, Any] = ONE_ACTOR | {
    "environment__reward_transform": "clip",
    "environment__full_actions": False,
    "environment__max_episode_length": 27_000,
    "actor__epsilon_schedule": "linear",
    "replay__horizons": (1,),
    "network__dueling": False,
    "learner__target_period": 7_500,
    "learner__learning_rate": 2.5e-4,
    "learner__max_gradient_norm": 1e6,  # in effect off: the Huber loss limits the TD error
}
UNIFORM_REPLAY: dict[str, Any] = {"replay__alpha": 0.0, "replay__beta": 0.0}
# A quarter of the rate, with the same largest step.
PRIORITIZED_REPLAY: dict[str, Any] = {
    "replay__beta_schedule": "linear",
    "learner__learning_rate": 2.5e-4 / 4,
    "learner__rmsprop_eps": 0.01 / 32**2 / 4**2,
    "learner__priority_type": "abs",
}
DUELING_NETWORK: dict[str, Any] = {
    "network__dueling": True,
    "network__torso_gradient_scale": 0.5**0.5,
    "learner__max_gradient_norm": 10.0,
}
# Adam, distributions and noise instead of RMSProp, values and epsilon.
RAINBOW_PARTS: dict[str, Any] = {
    "actor__epsilon_schedule": "constant",
    "actor__epsilon_end": 0.0,
    "replay__horizons": (3,),
    "replay__alpha": 0.5,
    "replay__learning_starts": 20_000,
    "network__dueling": True,
    "network__head": "categorical",
    "network__noisy_std": 0.5,
    "learner__optimizer": "adam",
    "learner__adam_eps": 0.005 / 32,
    "learner__max_gradient_norm": 10.0,
    "learner__target_period": 2_000,
}
# The small scale's rate is for Adam: centred RMSProp takes larger steps.
SMALL_RATE: dict[str, Any] = {"learner__learning_rate": 2.5e-4}
SMALL_DQN: dict[str, Any] = SMALL_RATE | {"actor__epsilon_steps": 20_000}
DQFD_PARTS: dict[str, Any] = {
    "environment__reward_transform": "signed-log",
    "actor__epsilon_schedule": "constant",
    "replay__horizon_losses": "summed",
    "replay__alpha": 0.4,
    "replay__beta": 0.6,
    "replay__priority_offset": 0.001,
    "replay__expert_priority_offset": 1.0,
    "learner__agent_items": 64,  # 32 steps of two horizons
    "learner__samples_per_insert": 16.0,
    "learner__demonstrations": "priority",
    "learner__target_period": 10_000,
    "learner__margin": 0.8,
    "learner__td_loss": "squared",
    "learner__l2_weight": 1e-5,
    "learner__imitated_episodes": "all",
    "learner__pretraining_updates": 750_000,
}
