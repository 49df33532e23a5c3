"""Importers of demonstrations made by other tools: each episode is replayed and gets an audit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lookfurther.config import EnvConfig
from lookfurther.demos.importers import action_sequence, atari_demo, minari
from lookfurther.demos.importers.imported import ImportedDemos
from lookfurther.errors import DemonstrationError


def import_demos(
    path: Path,
    env: str = "",
    env_config: EnvConfig | None = None,
    force: bool = False,
    modules: Sequence[str] = (),
) -> ImportedDemos:
    """Read and replay the episodes of a file, or of the folder of a Minari dataset.

    `env` is required if the file does not name its environment. An episode that does not replay as
    recorded is rejected; with `force` it is imported, and its audit holds the mismatch. `modules`
    adds to the modules from which a dataset of this package may import wrappers.
    """
    env_config = env_config or EnvConfig()
    if path.is_dir():
        return minari.read_minari_dataset(path, env, env_config, force, modules)
    if not path.is_file():
        raise DemonstrationError(f"there is no file {path}")
    readers = {
        ".demo": atari_demo.read_atari_demo,
        ".npz": action_sequence.read_action_sequence,
        ".hdf5": partial(minari.read_minari_dataset, modules=modules),
    }
    if path.suffix not in readers:
        raise DemonstrationError(
            f"{path} must be a {', '.join(readers)} file or the folder of a Minari dataset"
        )
    return readers[path.suffix](path, env, env_config, force)
