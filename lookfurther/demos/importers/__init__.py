"""Demonstrations from elsewhere: every one is replayed, and says what the replay found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec


class ImportedDemos(NamedTuple):
    """What a file held, ready for the store."""

    episodes: list[Episode]  # each with its audit
    spec: Spec
    env_config: EnvConfig  # how they were made


def import_demos(
    path: Path,
    env: str = "",
    env_config: EnvConfig | None = None,
    force: bool = False,
    modules: Sequence[str] = (),
) -> ImportedDemos:
    """The episodes of a file, or of a folder that is a Minari dataset.

    `env` names the environment where the file does not. What a replay does not reproduce is
    refused, unless forced; then its audit says so. `modules` are those that a set of ours may
    name besides the trusted ones.
    """
    from lookfurther.demos.importers import action_sequence, atari_demo, minari

    env_config = env_config or EnvConfig()
    if path.is_dir():
        return minari.read_minari_dataset(path, env, env_config, force, modules)
    if not path.is_file():
        raise DemonstrationError(f"there is no file {path}")
    dataset = partial(minari.read_minari_dataset, modules=modules)
    readers = {
        ".demo": atari_demo.read_atari_demo,
        ".npz": action_sequence.read_action_sequence,
        ".hdf5": dataset,
    }
    if path.suffix not in readers:
        raise DemonstrationError(
            f"{path} is none of {', '.join(readers)} nor the folder of a Minari dataset"
        )
    return readers[path.suffix](path, env, env_config, force)
