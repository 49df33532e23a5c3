"""Dotted names of settings, such as learner.gamma: known, renamed and mistyped ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

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
    "actor.end_on_life_loss": "actor.life_loss",
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


def flatten_tree(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every leaf of nested dictionaries."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flatten_tree(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def describe_unknown(name: str, known_names: Iterable[str]) -> str:
    """The message for a name that is not a setting, with the name that may be meant."""
    if name in RENAMED_SETTINGS:
        return f"{name} is now {RENAMED_SETTINGS[name]}"
    known = {short: full for full in known_names for short in (full.split(".")[-1], full)}
    similar = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {known[similar[0]]}?" if similar else ""
    return f"unknown setting {name}{hint}"
