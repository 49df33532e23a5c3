"""`save_demos` and `load_demos`: demonstration sets for users of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import gymnasium

from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError


def save_demos(
    name: str,
    episodes: Iterable[Episode] | Episode,
    env: str | Callable[[], gymnasium.Env],
    *,
    environment: EnvConfig | None = None,
    author: str = "",
    folder: str | Path | None = None,
) -> Path:
    """Save episodes as a new demonstration set and return its path.

    `name` is a Minari id such as "cartpole/mine-v0"; it is what `demos` of a configuration takes.
    `env` is the environment id, or the function that is given to `train`. `environment` has the
    settings of training if they differ from the defaults: `config.environment`. Without `folder`,
    the set is in Minari's folder; with it, `demos` takes the returned path.
    """
    if isinstance(episodes, Episode):
        episodes = [episodes]
    if not isinstance(episodes, Iterable):
        raise DemonstrationError(
            f"episodes must be a list of Episodes, not {type(episodes).__name__}"
        )
    episodes = list(episodes)
    for episode in episodes:
        if not isinstance(episode, Episode):
            raise DemonstrationError(
                f"episodes must be Episodes, not {type(episode).__name__}:"
                " Episode.from_arrays makes them"
            )
    env_config = environment or EnvConfig()
    root = Path(folder) if folder is not None else None
    spec = get_spec(env, env_config)
    return storage.save_episodes(name, episodes, spec, author, root, env_config)


def load_demos(name: str | Path) -> list[Episode]:
    """The episodes of a set, by its id, with or without the version, or by its path."""
    return catalog.open_set(str(name)).episodes
