"""Find demonstration sets by name.

A name is a Minari id with or without its version, a path, or shipped/NAME for a demonstration of
this package.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.demos import shipped, storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import (
    DemoSetDescription,
    check_compatible,
    describe_episode,
    make_origin,
)
from lookfurther.demos.playback import draw_demo_clock
from lookfurther.demos.storage import VERSION_SUFFIX
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, DemonstrationError, LookFurtherError
from lookfurther.settings.tuned import find_demo_commands
from lookfurther.types import Spec

DATASET_ID = re.compile(r"([\w-]{2,}/([\w-]+/)*)?[\w-]+-v\d+")  # the ids that Minari accepts
SHIPPED_PREFIX = "shipped/"


class DemoSet(NamedTuple):
    """A set in memory."""

    name: str
    description: DemoSetDescription
    episodes: list[Episode]


def new_set_id(name: str) -> str:
    """The id of a new set, with the version that Minari requires; raises if the id is taken."""
    set_id = _checked_set_id(name)
    if set_path(set_id).exists():
        raise DemonstrationError(f"a set named {set_id} exists: delete it or choose another name")
    return set_id


def growing_set_id(name: str) -> str:
    """The id of a set to append to: the newest version of a name, or a new id."""
    return _newest_version(name, storage.list_ids()) or _checked_set_id(name)


def _checked_set_id(name: str) -> str:
    """An id that Minari accepts, with a version at its end."""
    if not name:
        raise ConfigError("a new set needs a name: give --name, such as --name montezuma")
    if name.startswith(SHIPPED_PREFIX):
        raise ConfigError(f"{name}: names that begin with {SHIPPED_PREFIX} are the package's own")
    set_id = storage.with_version(name)
    if not DATASET_ID.fullmatch(set_id):
        is_short = "/" in name and len(name.partition("/")[0]) == 1
        rule = (
            "two characters or more before the first /" if is_short else "letters, digits, - and _"
        )
        raise ConfigError(f"--name {name} cannot name a set: take {rule}, as in my/set-v0")
    return set_id


def find_set(name_or_path: str) -> str:
    """The id or path of a set. For an id without a version, the newest version is taken."""
    if (Path(name_or_path) / "data").is_dir():
        return name_or_path
    ids = list(_list_ids())
    if name_or_path in ids:
        return name_or_path
    if newest := _newest_version(name_or_path, ids):
        return newest
    raise DemonstrationError(
        f"no demonstrations named {name_or_path}: {_suggest_fix(name_or_path, ids)}"
    )


def _suggest_fix(name: str, ids: Iterable[str]) -> str:
    """What to do about a missing set: the command that makes it, or a similar name."""
    if commands := find_demo_commands(name):
        return f"make them with {' && '.join(commands)}"
    base_names = {VERSION_SUFFIX.sub("", set_id) for set_id in ids}
    similar = difflib.get_close_matches(VERSION_SUFFIX.sub("", name), base_names, 1)
    return f"did you mean {similar[0]}?" if similar else "make or import them first"


def _newest_version(base_name: str, ids: Iterable[str]) -> str | None:
    """The id with the highest version of those that are `base_name` and a version."""
    versions = [
        (int(match[1]), set_id)
        for set_id in ids
        if (match := VERSION_SUFFIX.search(set_id)) and set_id[: match.start()] == base_name
    ]
    return max(versions)[1] if versions else None


def iter_sets() -> Iterator[tuple[str, DemoSetDescription | LookFurtherError]]:
    """Every set by its id, with its description or the reason why it cannot be read."""
    for name in _list_ids():
        try:
            yield name, describe_set(name)
        except LookFurtherError as error:  # also an environment whose extra is not installed
            yield name, error


def _list_ids() -> Iterator[str]:
    """The shipped demonstrations, then every dataset in Minari's folder."""
    yield from (SHIPPED_PREFIX + name for name in shipped.list_names())
    yield from storage.list_ids()


def set_path(name: str) -> Path:
    """The folder of a set, or the file of a shipped demonstration."""
    if name.startswith(SHIPPED_PREFIX):
        return shipped.demo_path(name.removeprefix(SHIPPED_PREFIX))
    path = Path(name)
    return path if (path / "data").is_dir() else storage.datasets_dir() / name


def describe_set(name_or_path: str) -> DemoSetDescription:
    """The description of a set; its arrays are not read."""
    name = find_set(name_or_path)
    if name.startswith(SHIPPED_PREFIX):
        return shipped.describe_demo(name.removeprefix(SHIPPED_PREFIX))
    return storage.read_description(name)


def open_set(name_or_path: str) -> DemoSet:
    """A set of any environment with all its episodes."""
    name = find_set(name_or_path)
    if name.startswith(SHIPPED_PREFIX):
        return _open_shipped(name)
    description = storage.read_description(name)
    env_config = storage.recorded_env_config(description)
    episodes = storage.load_episodes(name, description.spec, env_config=env_config)
    return DemoSet(name, description, episodes)


def load_set(name_or_path: str, spec: Spec, env_config: EnvConfig) -> list[Episode]:
    """The episodes of a set for training; raises if the set is from another environment."""
    name = find_set(name_or_path)
    if name.startswith(SHIPPED_PREFIX):
        demo_set = _open_shipped(name, env_config)
        check_compatible(name, demo_set.description, spec, env_config)
        episodes = demo_set.episodes
    else:
        episodes = storage.load_episodes(name, spec, env_config=env_config)
    if env_config.clock_period and is_atari(spec.env):
        for i, episode in enumerate(episodes):
            draw_demo_clock(episode, env_config, f"{name}, episode {i}")
    return episodes


def _open_shipped(name: str, env_config: EnvConfig | None = None) -> DemoSet:
    """A shipped demonstration, which is replayed now."""
    demos = shipped.read_demo(name.removeprefix(SHIPPED_PREFIX), env_config)
    metadata = tuple(describe_episode(episode, {}) for episode in demos.episodes)
    origin = make_origin(demos.spec, demos.env_config)
    description = DemoSetDescription(demos.spec, shipped.SHIPPED_AUTHOR, origin, metadata)
    return DemoSet(name, description, demos.episodes)
