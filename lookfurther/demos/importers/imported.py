"""The result of an import."""

from __future__ import annotations

from typing import NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode
from lookfurther.types import Spec


class ImportedDemos(NamedTuple):
    """The episodes of a file, ready to be saved."""

    episodes: list[Episode]  # each with its audit
    spec: Spec
    env_config: EnvConfig  # settings the episodes were made with
