"""Configurations as JSON: the config.json of a run, and fingerprints that compare runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from lookfurther.config import Config, flatten_settings, from_dict
from lookfurther.errors import ConfigError


def config_fingerprint(config: Config, excluded: Iterable[str] = ()) -> str:
    """A text that is equal for configurations equal in all but the excluded settings."""
    return settings_fingerprint(flatten_settings(config), excluded)


def settings_fingerprint(settings: Mapping[str, Any], excluded: Iterable[str] = ()) -> str:
    """The same of settings by their dotted names."""
    omitted = set(excluded)
    kept = {name: value for name, value in settings.items() if name not in omitted}
    return json.dumps(kept, sort_keys=True)


def to_json(config: Config) -> str:
    """config as indented JSON."""
    return json.dumps(asdict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The configuration that `to_json` wrote."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"configuration is not JSON: {error}") from None
    return from_dict(data)
