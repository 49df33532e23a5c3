"""Checked access to a checkpoint's metadata.

The hashes of a checkpoint show that nothing was damaged. They do not show who wrote it.
"""

from __future__ import annotations

from typing import Any

from lookfurther.config import Config, from_dict
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.training.checkpoints.checkpoint import Checkpoint
from lookfurther.training.checkpoints.checkpoint_manifest import METADATA_FILE
from lookfurther.types import Spec
from lookfurther.validation import validate

MAX_COUNT = 2**53  # a float represents every integer below it


def get_count(saved: Checkpoint, name: str) -> int:
    """A number of steps or updates."""
    value = saved.metadata.get(name)
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise _invalid_value(saved, name, value)
    return value


def get_number(saved: Checkpoint, name: str) -> float:
    """A finite number, such as a score or a number of seconds."""
    value: Any = saved.metadata.get(name)
    if type(value) not in (int, float) or not abs(value) <= MAX_COUNT:
        raise _invalid_value(saved, name, value)
    return float(value)


def get_config(saved: Checkpoint) -> Config:
    """The configuration of the run that saved the checkpoint."""
    try:
        return validate(from_dict(saved.metadata.get("config")))
    except ConfigError as error:
        raise CheckpointError(
            f"{saved.path}: {METADATA_FILE} has an unusable config: {error}"
        ) from None


def get_network_spec(saved: Checkpoint) -> Spec:
    """The observations and actions of its network."""
    value = saved.metadata.get("spec")
    try:
        return Spec.from_dict(value)
    except ValueError:
        raise _invalid_value(saved, "spec", value) from None


def _invalid_value(saved: Checkpoint, name: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"{saved.path}: {METADATA_FILE} has an unusable {name}: {str(value)[:80]}"
    )
