"""Sets of demonstrations as a user names them.

By an id of Minari's with or without its version, by a path, or as shipped/NAME, which comes with
the package.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import (
    DemoSetDescription,
    check_compatible,
    describe_episode,
    make_origin,
)
from lookfurther.demos.storage import VERSION_SUFFIX
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.types import Spec

DATASET_ID = re.compile(r"([\w-]{2,}/([\w-]+/)*)?[\w-]+-v\d+")  # what Minari takes
SHIPPED_PREFIX = "shipped/"


class DemoSet(NamedTuple):
    """A set in memory."""

    name: str
    description: DemoSetDescription
    episodes: list[Episode]


def new_set_id(name: str) -> str:
    """The id of a new set, with the version Minari wants at its end; a taken one is refused."""
    name = _checked_set_id(name)
    if set_path(name).exists():
        raise DemonstrationError(f"a set named {name} exists: delete it or choose another name")
    return name


def growing_set_id(name: str) -> str:
    """The id of a set that episodes are added to: a new one, or the newest version of its name."""
    versions = [
        (int(match[1]), held)
        for held in storage.list_ids()
        if (match := _match_version(held, name))
    ]
    return max(versions)[1] if versions else _checked_set_id(name)


def _checked_set_id(name: str) -> str:
    """An id that Minari takes, with a version at its end."""
    if not name:
        raise ConfigError("a new set needs a name: give --name, such as --name montezuma")
    if name.startswith(SHIPPED_PREFIX):
        raise ConfigError(f"{name}: names that begin with {SHIPPED_PREFIX} are the package's own")
    whole = storage.with_version(name)
    if not DATASET_ID.fullmatch(whole):
        short = "/" in name and len(name.partition("/")[0]) == 1
        rule = "two characters or more before the first /" if short else "letters, digits, - and _"
        raise ConfigError(f"--name {name} cannot name a set: take {rule}, as in my/set-v0")
    return whole


def find_set(name_or_path: str) -> str:
    """The set a word stands for: an id, a path, or an id without its version, the newest then."""
    if (Path(name_or_path) / "data").is_dir():
        return name_or_path
    ids = list(_list_ids())
    if name_or_path in ids:
        return name_or_path
    versions = [
        (int(match[1]), name) for name in ids if (match := _match_version(name, name_or_path))
    ]
    if versions:
        return max(versions)[1]
    named = [*ids, *(VERSION_SUFFIX.sub("", name) for name in ids)]
    near = difflib.get_close_matches(name_or_path, named, 3)
    mend = f"did you mean {' or '.join(near)}?" if near else "make or import them first"
    raise DemonstrationError(f"no demonstrations named {name_or_path}: {mend}")


def _match_version(name: str, base_name: str) -> re.Match[str] | None:
    match = VERSION_SUFFIX.search(name)
    return match if match and name[: match.start()] == base_name else None


def iter_sets() -> Iterator[tuple[str, DemoSetDescription | DemonstrationError]]:
    """Every set by its id, with what it says of itself or why it cannot."""
    for name in _list_ids():
        try:
            yield name, describe_set(name)
        except DemonstrationError as error:
            yield name, error


def _list_ids() -> Iterator[str]:
    """What the package ships, then all that looks like a dataset in Minari's folder."""
    from lookfurther.demos import shipped

    yield from (SHIPPED_PREFIX + name for name in shipped.list_names())
    yield from storage.list_ids()


def set_path(name: str) -> Path:
    """Where a set lies: a folder, or the file of a shipped one."""
    if name.startswith(SHIPPED_PREFIX):
        from lookfurther.demos import shipped

        return shipped.demo_path(name.removeprefix(SHIPPED_PREFIX))
    path = Path(name)
    return path if (path / "data").is_dir() else storage.datasets_dir() / name


def describe_set(name_or_path: str) -> DemoSetDescription:
    """What a set says of itself, without reading its arrays."""
    name = find_set(name_or_path)
    if not name.startswith(SHIPPED_PREFIX):
        return storage.read_description(name)
    from lookfurther.demos import shipped

    return shipped.describe_demo(name.removeprefix(SHIPPED_PREFIX))


def open_set(name_or_path: str) -> DemoSet:
    """A set with all its episodes, whatever it is of."""
    name = find_set(name_or_path)
    if name.startswith(SHIPPED_PREFIX):
        return _open_shipped(name)
    description = storage.read_description(name)
    environment = storage.recorded_env_config(description)
    return DemoSet(
        name, description, storage.load_episodes(name, description.spec, env_config=environment)
    )


def load_set(name_or_path: str, spec: Spec, env_config: EnvConfig) -> list[Episode]:
    """The episodes of a set for training; one of another environment is refused."""
    name = find_set(name_or_path)
    if not name.startswith(SHIPPED_PREFIX):
        return storage.load_episodes(name, spec, env_config=env_config)
    held = _open_shipped(name, env_config)
    check_compatible(name, held.description, spec, env_config)
    return held.episodes


def _open_shipped(name: str, env_config: EnvConfig | None = None) -> DemoSet:
    """A demonstration of the package, played now."""
    from lookfurther.demos import shipped

    episodes, spec, how = shipped.read_demo(name.removeprefix(SHIPPED_PREFIX), env_config)
    facts = tuple(describe_episode(episode, {}) for episode in episodes)
    return DemoSet(
        name,
        DemoSetDescription(spec, shipped.SHIPPED_AUTHOR, make_origin(spec, how), facts),
        episodes,
    )


def trusted_env_config(description: DemoSetDescription, modules: Sequence[str] = ()) -> EnvConfig:
    """The settings a set was made with, if a file may name them or the user names their modules."""
    import_modules(modules)
    environment = storage.recorded_env_config(description)
    if reason := find_untrusted(description.spec.env, environment.wrappers, modules):
        raise DemonstrationError(f"the set was made with {reason}")
    return environment
