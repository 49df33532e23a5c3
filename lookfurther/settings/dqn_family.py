"""Settings of DQN and the algorithms that extend it, as parts of presets, with their sources."""

from __future__ import annotations

from typing import Any

Cited = dict[str, tuple[Any, str]]  # of each setting its value, and where it is published

# Names of publications; the page of the presets explains them.
NATURE = "Mnih et al. 2015, Extended Data Table 1"
DQN_ALGORITHM = "Mnih et al. 2015, Algorithm 1"
WANG = "Wang et al. 2016, Sec. 4.2"
RAINBOW_TABLE = "Hessel et al. 2018, Table 1"
DQFD_LOSS = "Hester et al. 2018, equation of J(Q)"
DQFD_BACKGROUND = "Hester et al. 2018, Background"
DQFD_SUPPLEMENT = "Hester et al. 2018, Supplementary Material"
APEX = "Horgan et al. 2018 as in ape-x"


def borrow(parts: Cited) -> Cited:
    """Settings that a paper does not give, from another publication."""
    return {name: (value, f"not given: {source}") for name, (value, source) in parts.items()}


# DQN and its descendants with one actor: 32 items every 4 steps.
ONE_ACTOR: Cited = {
    "actor__lanes": (1, DQN_ALGORITHM),
    "actor__weight_sync_period": (4, f"{NATURE}, update frequency"),
    "replay__capacity": (1_000_000, f"{NATURE}; DQN Zoo `replay_capacity`"),
    "learner__agent_items": (32, f"{NATURE}; DQN Zoo `batch_size`"),
    "learner__expert_items": (0, DQN_ALGORITHM),
    "learner__optimizer": ("rmsprop", f"{NATURE}; DQN Zoo `optimizer`"),
    "learner__gamma": (0.99, f"{NATURE}; DQN Zoo `additional_discount`"),
    "learner__value_transform": ("identity", DQN_ALGORITHM),
    "learner__tc_weight": (0.0, DQN_ALGORITHM),
}
DOUBLE_DQN: Cited = ONE_ACTOR | {
    "environment__reward_transform": ("clip", "DQN Zoo `max_abs_reward`"),
    "environment__full_actions": (False, "DQN Zoo `full_action_space` (gym_atari.py)"),
    "environment__max_episode_length": (27_000, "DQN Zoo `max_frames_per_episode`"),
    "actor__epsilon_schedule": ("linear", f"{NATURE}; DQN Zoo `exploration_epsilon_schedule`"),
    "replay__horizons": ((1,), DQN_ALGORITHM),
    "network__dueling": (False, "DQN Zoo `network_fn`"),
    "learner__target_period": (7_500, "DQN Zoo `target_network_update_period` (double_q)"),
    "learner__learning_rate": (2.5e-4, f"{NATURE}; DQN Zoo `learning_rate`"),
    # In effect off: the Huber loss limits the TD error.
    "learner__max_gradient_norm": (1e6, "ours: DQN Zoo has no limit"),
}
CLASSIC_DQN: Cited = {
    "actor__epsilon_end": (0.1, f"{NATURE}; DQN Zoo `exploration_epsilon_end_value` (dqn)"),
    "learner__target_period": (2_500, "DQN Zoo `target_network_update_period` (dqn)"),
    "learner__double_q": (False, DQN_ALGORITHM),
}
UNIFORM_REPLAY: Cited = {
    "replay__alpha": (0.0, DQN_ALGORITHM),
    "replay__beta": (0.0, DQN_ALGORITHM),
}
PRIORITIZED_REPLAY: Cited = {
    "replay__beta_schedule": (
        "linear",
        "DQN Zoo `importance_sampling_exponent_schedule` (prioritized)",
    ),
    "learner__priority_type": ("abs", "DQN Zoo `priorities` (prioritized/agent.py)"),
}
# A quarter of the rate, with the same largest step.
QUARTER_RATE: Cited = {
    "learner__learning_rate": (2.5e-4 / 4, "DQN Zoo `learning_rate` (prioritized)"),
    "learner__rmsprop_eps": (0.01 / 32**2 / 4**2, "DQN Zoo `optimizer_epsilon` (prioritized)"),
}
DUELING_NETWORK: Cited = {
    "network__dueling": (True, "Wang et al. 2016, Sec. 3"),
    "network__torso_gradient_scale": (0.5**0.5, WANG),
    "learner__max_gradient_norm": (10.0, WANG),
}
# Adam, distributions and noise instead of RMSProp, values and epsilon.
RAINBOW_PARTS: Cited = {
    "actor__epsilon_schedule": ("constant", RAINBOW_TABLE),
    "actor__epsilon_end": (0.0, RAINBOW_TABLE),
    "replay__horizons": ((3,), RAINBOW_TABLE),
    "replay__alpha": (0.5, RAINBOW_TABLE),
    "replay__beta_schedule": ("linear", RAINBOW_TABLE),
    "replay__learning_starts": (20_000, RAINBOW_TABLE),
    "network__dueling": (True, "Hessel et al. 2018, The Integrated Agent"),
    "network__head": ("categorical", RAINBOW_TABLE),
    "network__noisy_std": (0.5, RAINBOW_TABLE),
    "learner__optimizer": ("adam", RAINBOW_TABLE),
    "learner__learning_rate": (2.5e-4 / 4, RAINBOW_TABLE),
    "learner__adam_eps": (0.005 / 32, RAINBOW_TABLE),
    "learner__priority_type": ("abs", "Hessel et al. 2018, The Integrated Agent"),
    "learner__max_gradient_norm": (10.0, "DQN Zoo `max_global_grad_norm` (rainbow)"),
    "learner__target_period": (2_000, RAINBOW_TABLE),
}
DQFD_PARTS: Cited = {
    "environment__reward_transform": ("signed-log", "Hester et al. 2018, Experimental Setup"),
    "actor__lanes": (1, "Hester et al. 2018, Algorithm 1"),
    "actor__epsilon_schedule": ("constant", DQFD_SUPPLEMENT),
    "replay__horizon_losses": ("summed", DQFD_LOSS),
    "replay__alpha": (0.4, DQFD_SUPPLEMENT),
    "replay__beta": (0.6, DQFD_SUPPLEMENT),
    "replay__beta_schedule": ("linear", DQFD_BACKGROUND),
    "replay__priority_offset": (0.001, DQFD_SUPPLEMENT),
    "replay__expert_priority_offset": (1.0, DQFD_SUPPLEMENT),
    "learner__agent_items": (64, "not given: 32 steps of DQN's batch, two horizons each"),
    "learner__expert_items": (0, "Hester et al. 2018, Algorithm 1: one replay"),
    "learner__samples_per_insert": (
        16.0,
        "DQN's 32 steps every 4; Hester et al. 2018, Algorithm 1, a sketch, has an update per step",
    ),
    "learner__demonstrations": ("priority", "Hester et al. 2018, Algorithm 1"),
    "learner__gamma": (0.99, "Hester et al. 2018, Experimental Setup"),
    "learner__value_transform": ("identity", DQFD_BACKGROUND),
    "learner__tc_weight": (0.0, DQFD_LOSS),
    "learner__priority_type": ("abs", DQFD_BACKGROUND),
    "learner__target_period": (10_000, DQFD_SUPPLEMENT),
    "learner__margin": (0.8, DQFD_SUPPLEMENT),
    "learner__td_loss": ("squared", DQFD_BACKGROUND),
    "learner__l2_weight": (1e-5, DQFD_SUPPLEMENT),
    "learner__imitated_episodes": ("all", DQFD_LOSS),
    "learner__pretraining_updates": (750_000, DQFD_SUPPLEMENT),
}
# Ape-X DQN in the system of this paper, and what differs in its own.
APEX_DQN: Cited = {
    "learner__agent_items": (256, "Table 6, batch size"),
    "learner__expert_items": (0, "Fig. 1 (a)"),
    "actor__epsilon_schedule": ("apex", f"{APEX} `eps_array`"),
    "learner__value_transform": ("identity", f"{APEX} `use_transformed_bellman`"),
    "learner__tc_weight": (0.0, f"{APEX} `use_temporal_consistency`"),
    "learner__gamma": (0.99, f"{APEX} `gamma`"),
    "learner__priority_type": ("abs", f"{APEX} `new_priorities`"),
    "environment__reward_transform": ("clip", f"{APEX} `reward_clipping`"),
    "replay__horizons": ((3,), f"{APEX} `multi_step_n`"),
}
HORGAN_PARTS: Cited = {
    "actor__lanes": (360, "Sec. 4.1"),
    "actor__weight_sync_period": (100, "Horgan et al. 2018, from memory"),
    "learner__agent_items": (512, f"{APEX} `batch_size`"),
    "learner__learning_rate": (2.5e-4 / 4, f"{APEX} `optimizer`"),
    "learner__optimizer": ("rmsprop", f"{APEX} `optimizer`, in a comment"),
    "learner__rmsprop_eps": (1.5e-7, f"{APEX} `optimizer`, in a comment"),
    "learner__td_loss": ("squared", "Horgan et al. 2018, from memory; ape-x has the Huber loss"),
    "learner__samples_per_insert": (0.78, "ours: an estimate from their speeds"),
}
# The small scale's rate is for Adam: centred RMSProp takes larger steps.
SMALL_RATE: dict[str, Any] = {"learner__learning_rate": 2.5e-4}
SMALL_DQN: dict[str, Any] = SMALL_RATE | {"actor__epsilon_steps": 20_000}
