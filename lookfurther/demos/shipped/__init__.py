"""Demonstrations that come with the package: plays found by `lookfurther demos search`.

NAME.npz is an action sequence (`importers.sequences` says how it is written) of a few kB; NAME.json
says how it was found, with which ROM and emulator, and what its replay gave.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lookfurther import envs
from lookfurther.config import Environment
from lookfurther.demos import importers
from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.importers import Imported
from lookfurther.demos.metadata import Description, Shown, origin
from lookfurther.errors import DemonstrationError

AUTHOR = "lookfurther demos search"
FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every demonstration there is, such as montezuma-revenge."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def path(name: str) -> Path:
    """The file of a demonstration."""
    if name not in names():
        raise DemonstrationError(f"no demonstration {name!r} is shipped: {', '.join(names())} are")
    return FOLDER / f"{name}.npz"


def audit(name: str) -> dict[str, Any]:
    """How a demonstration was found and verified."""
    return json.loads(path(name).with_suffix(".json").read_text())


def describe(name: str) -> Description:
    """What its audit says of a demonstration; nothing is replayed."""
    told = audit(name)
    episode = Shown(
        steps=told["steps"],
        score=told["score"],
        terminal=told["terminal"],
        seed=None,
        reel=None,
        audit=Audit(**told["audit"]),
        digests={},
    )
    spec = envs.describe(told["env"], Environment())
    return Description(spec, AUTHOR, origin(spec, Environment()), (episode,))


def read(name: str, environment: Environment | None = None) -> Imported:
    """A demonstration, replayed now; one that does not reach its score is refused."""
    return importers.read(path(name), environment=environment or Environment())


def episodes(name: str, environment: Environment | None = None) -> list[Episode]:
    """The episodes of a demonstration, replayed now."""
    return read(name, environment).episodes
