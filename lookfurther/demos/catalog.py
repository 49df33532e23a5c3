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

from lookfurther.config import Environment
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import Description, fits, origin, shown
from lookfurther.demos.storage import VERSION
from lookfurther.envs.trust import import_modules, untrusted
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.types import Spec

NAME = re.compile(r"([\w-]{2,}/([\w-]+/)*)?[\w-]+-v\d+")  # what Minari takes
SHIPPED = "shipped/"


class Held(NamedTuple):
    """A set in memory."""

    name: str
    description: Description
    episodes: list[Episode]


def new(name: str) -> str:
    """The id of a new set, with the version Minari wants at its end; a taken one is refused."""
    name = _versioned(name)
    if place(name).exists():
        raise DemonstrationError(f"a set named {name} exists: delete it or choose another name")
    return name


def growing(name: str) -> str:
    """The id of a set that episodes are added to: a new one, or the newest version of its name."""
    versions = [(int(match[1]), held) for held in storage.ids() if (match := _version(held, name))]
    return max(versions)[1] if versions else _versioned(name)


def _versioned(name: str) -> str:
    """An id that Minari takes, with a version at its end."""
    if not name:
        raise ConfigError("a new set needs a name: give --name, such as --name montezuma")
    if name.startswith(SHIPPED):
        raise ConfigError(f"{name}: names that begin with {SHIPPED} are the package's own")
    whole = storage.versioned(name)
    if not NAME.fullmatch(whole):
        short = "/" in name and len(name.partition("/")[0]) == 1
        rule = "two characters or more before the first /" if short else "letters, digits, - and _"
        raise ConfigError(f"--name {name} cannot name a set: take {rule}, as in my/set-v0")
    return whole


def find(word: str) -> str:
    """The set a word stands for: an id, a path, or an id without its version, the newest then."""
    if (Path(word) / "data").is_dir():
        return word
    ids = list(_ids())
    if word in ids:
        return word
    versions = [(int(match[1]), name) for name in ids if (match := _version(name, word))]
    if versions:
        return max(versions)[1]
    named = [*ids, *(VERSION.sub("", name) for name in ids)]
    near = difflib.get_close_matches(word, named, 3)
    mend = f"did you mean {' or '.join(near)}?" if near else "make or import them first"
    raise DemonstrationError(f"no demonstrations named {word}: {mend}")


def _version(name: str, word: str) -> re.Match[str] | None:
    match = VERSION.search(name)
    return match if match and name[: match.start()] == word else None


def every() -> Iterator[tuple[str, Description | DemonstrationError]]:
    """Every set by its id, with what it says of itself or why it cannot."""
    for name in _ids():
        try:
            yield name, describe(name)
        except DemonstrationError as error:
            yield name, error


def _ids() -> Iterator[str]:
    """What the package ships, then all that looks like a dataset in Minari's folder."""
    from lookfurther.demos import shipped

    yield from (SHIPPED + name for name in shipped.names())
    yield from storage.ids()


def place(name: str) -> Path:
    """Where a set lies: a folder, or the file of a shipped one."""
    if name.startswith(SHIPPED):
        from lookfurther.demos import shipped

        return shipped.path(name.removeprefix(SHIPPED))
    path = Path(name)
    return path if (path / "data").is_dir() else storage.place() / name


def describe(word: str) -> Description:
    """What a set says of itself, without reading its arrays."""
    name = find(word)
    if not name.startswith(SHIPPED):
        return storage.describe(name)
    from lookfurther.demos import shipped

    return shipped.describe(name.removeprefix(SHIPPED))


def opened(word: str) -> Held:
    """A set with all its episodes, whatever it is of."""
    name = find(word)
    if name.startswith(SHIPPED):
        return _shipped(name)
    description = storage.describe(name)
    environment = storage.environment_of(description)
    return Held(name, description, storage.load(name, description.spec, environment=environment))


def load(word: str, spec: Spec, environment: Environment) -> list[Episode]:
    """The episodes of a set for training; one of another environment is refused."""
    name = find(word)
    if not name.startswith(SHIPPED):
        return storage.load(name, spec, environment=environment)
    held = _shipped(name, environment)
    fits(name, held.description, spec, environment)
    return held.episodes


def _shipped(name: str, environment: Environment | None = None) -> Held:
    """A demonstration of the package, played now."""
    from lookfurther.demos import shipped

    episodes, spec, how = shipped.read(name.removeprefix(SHIPPED), environment)
    facts = tuple(shown(episode, {}) for episode in episodes)
    return Held(name, Description(spec, shipped.AUTHOR, origin(spec, how), facts), episodes)


def trusted(description: Description, modules: Sequence[str] = ()) -> Environment:
    """The settings a set was made with, if a file may name them or the user names their modules."""
    import_modules(modules)
    environment = storage.environment_of(description)
    if reason := untrusted(description.spec.env, environment.wrappers, modules):
        raise DemonstrationError(f"the set was made with {reason}")
    return environment
