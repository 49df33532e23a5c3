"""What a checkpoint says besides its tensors, each value checked before it is used.

The hashes of a checkpoint show that nothing was damaged. They do not show who wrote it.
"""

from __future__ import annotations

from typing import Any

from lookfurther.config import Config, from_dict, validate
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.training.checkpoint import FACTS, Checkpoint
from lookfurther.types import Spec

LARGEST_COUNT = 2**53  # a float holds every whole number below it


def count(saved: Checkpoint, name: str) -> int:
    """A number of steps or updates."""
    value = saved.facts.get(name)
    if type(value) is not int or not 0 <= value < LARGEST_COUNT:
        raise _unusable(saved, name, value)
    return value


def measure(saved: Checkpoint, name: str) -> float:
    """A finite number, such as a score or a number of seconds."""
    value: Any = saved.facts.get(name)
    if type(value) not in (int, float) or not abs(value) <= LARGEST_COUNT:
        raise _unusable(saved, name, value)
    return float(value)


def config(saved: Checkpoint) -> Config:
    """The settings of the run that saved it."""
    try:
        return validate(from_dict(saved.facts.get("config")))
    except ConfigError as error:
        raise CheckpointError(f"{saved.path}: {FACTS} has an unusable config: {error}") from None


def spec(saved: Checkpoint) -> Spec:
    """What its network sees."""
    value = saved.facts.get("spec")
    try:
        return Spec.from_dict(value)
    except ValueError:
        raise _unusable(saved, "spec", value) from None


def _unusable(saved: Checkpoint, name: str, value: Any) -> CheckpointError:
    return CheckpointError(f"{saved.path}: {FACTS} has an unusable {name}: {str(value)[:80]}")
