"""Tuned settings of environments, as data: what they change, and the score that they reached."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lookfurther.errors import ConfigError

TUNED_FILE = "tuned.toml"


@dataclass(frozen=True)
class TunedSettings:
    """The settings of one environment, and a measurement of them."""

    preset: str
    """the algorithm"""
    scale: str
    """its size, before the settings"""
    settings: dict[str, Any]
    """dotted name -> value, only those that differ from preset and scale"""
    scores: tuple[float, ...]
    """mean score of each seed"""
    seeds: tuple[int, ...]
    """seeds of the runs"""
    score_type: str
    """what a score is the mean of"""
    minutes: float
    """time that a run took on the machine"""
    machine: str
    """where the score was measured"""
    source: str
    """file of the repository with the measurement"""
    demos: tuple[str, ...] = ()
    """demonstration sets"""
    demo_commands: tuple[str, ...] = ()
    """commands that make these sets; none for sets of the package"""

    @property
    def score(self) -> float:
        """The mean over the seeds."""
        return sum(self.scores) / len(self.scores)

    def overrides(self) -> dict[str, Any]:
        """Arguments of `config.replace`."""
        settings = {name.replace(".", "__", 1): value for name, value in self.settings.items()}
        return settings | {"demos": self.demos}


@cache
def read_tuned_settings() -> dict[str, TunedSettings]:
    """All tuned settings by environment id."""
    text = (files("lookfurther.settings") / TUNED_FILE).read_text(encoding="utf-8")
    return {env: _read_entry(entry) for env, entry in tomllib.loads(text).items()}


def _read_entry(entry: dict[str, Any]) -> TunedSettings:
    """A table of the file, with tuples instead of lists."""
    values: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()
    }
    return TunedSettings(**values)


def find_tuned_settings(env: Any) -> TunedSettings:
    """The tuned settings of an environment, or a ConfigError that names those that have some."""
    tuned = read_tuned_settings()
    if env in ("", None):
        raise ConfigError(
            f"tuned settings need an environment: set env to one of {', '.join(tuned)}"
        )
    if not isinstance(env, str) or env not in tuned:
        raise ConfigError(f"no tuned settings for {env}: there are some for {', '.join(tuned)}")
    return tuned[env]


def find_demo_commands(name: str) -> tuple[str, ...]:
    """The commands that make a set of tuned settings; none for other names."""
    return next((t.demo_commands for t in read_tuned_settings().values() if name in t.demos), ())
