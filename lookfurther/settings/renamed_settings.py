"""Settings of earlier versions, with their new names."""

RENAMED_SETTINGS = {
    "environment.stack": "environment.frame_stack",
    "environment.reward": "environment.reward_transform",
    "environment.repeat": "environment.action_repeat",
    "environment.noops": "environment.noop_max",
    "environment.sticky": "environment.sticky_prob",
    "environment.cap": "environment.max_episode_length",
    "environment.cap_unit": "environment.episode_length_unit",
    "actor.ladder": "actor.epsilon_schedule",
    "actor.weights_period": "actor.weight_sync_period",
    "replay.offset": "replay.priority_offset",
    "replay.start": "replay.learning_starts",
    "learner.transform": "learner.value_transform",
    "learner.transform_eps": "learner.value_transform_eps",
    "learner.consistency": "learner.tc_weight",
    "learner.imitation": "learner.im_weight",
    "learner.imitated": "learner.imitated_episodes",
    "learner.priority": "learner.priority_type",
    "run.keep": "run.keep_checkpoints",
}
