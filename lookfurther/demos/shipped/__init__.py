"""Demonstrations that come with the package, found by `lookfurther demos search`.

NAME.npz is an action sequence of a few kB (`importers.action_sequence` documents the format).
NAME.json records how it was found, the ROM, the emulator and the result of its replay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lookfurther import envs
from lookfurther.config import EnvConfig
from lookfurther.demos import importers
from lookfurther.demos.episode import Audit
from lookfurther.demos.importers import ImportedDemos
from lookfurther.demos.metadata import DemoSetDescription, EpisodeMetadata, make_origin
from lookfurther.errors import DemonstrationError

SHIPPED_AUTHOR = "lookfurther demos search"
SHIPPED_DIR = Path(__file__).parent


def list_names() -> list[str]:
    """The name of every shipped demonstration, such as montezuma-revenge."""
    return sorted(path.stem for path in SHIPPED_DIR.glob("*.npz"))


def demo_path(name: str) -> Path:
    """The file of a demonstration."""
    if name not in list_names():
        raise DemonstrationError(
            f"no demonstration {name!r} is shipped: {', '.join(list_names())} are"
        )
    return SHIPPED_DIR / f"{name}.npz"


def read_audit(name: str) -> dict[str, Any]:
    """How a demonstration was found and verified."""
    return json.loads(demo_path(name).with_suffix(".json").read_text())


def describe_demo(name: str) -> DemoSetDescription:
    """The description of a demonstration according to its audit; nothing is replayed."""
    record = read_audit(name)
    episode = EpisodeMetadata(
        steps=record["steps"],
        score=record["score"],
        terminal=record["terminal"],
        seed=None,
        reel=None,
        audit=Audit(**record["audit"]),
        digests={},
    )
    spec = envs.get_spec(record["env"], EnvConfig())
    return DemoSetDescription(spec, SHIPPED_AUTHOR, make_origin(spec, EnvConfig()), (episode,))


def read_demo(name: str, env_config: EnvConfig | None = None) -> ImportedDemos:
    """Replay a demonstration; raises if it does not reach its score."""
    return importers.import_demos(demo_path(name), env_config=env_config or EnvConfig())
