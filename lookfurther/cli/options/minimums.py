"""The least values of a command's options."""

from __future__ import annotations

from typing import Any

from lookfurther.errors import ConfigError


def check_minimums(options: Any, **minimums: int) -> None:
    """Raise a ConfigError for the first option, by field name, that is below its minimum."""
    for name, minimum in minimums.items():
        value = getattr(options, name)
        if value < minimum:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} must be at least {minimum}, not {value}")
