"""Configuration dataclasses from plain data, every value checked against its type."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from lookfurther.errors import ConfigError

MAX_TEXT_LENGTH = 4096  # characters, as in the longest file path
_TYPE_DESCRIPTIONS = {
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
}
T = TypeVar("T")


def decode_dataclass(
    cls: type[T], data: Any, unknown: Callable[[str], ConfigError], path: str = ""
) -> T:
    """An instance of `cls`; missing fields keep their defaults, others raise `unknown(name)`."""
    if not isinstance(data, dict):
        raise ConfigError(f"{path.rstrip('.') or 'configuration'} must be an object, not {data!r}")
    hints = get_type_hints(cls)
    if extra := set(data) - set(hints):
        raise unknown(f"{path}{min(extra)}")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[name] = decode_dataclass(hint, value, unknown, f"{path}{name}.")
        else:
            values[name] = decode_value(hint, value, path + name)
    return cls(**values)


def decode_value(hint: Any, value: Any, path: str) -> Any:
    """`value` as an instance of the type `hint`, or a ConfigError."""
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(decode_value(get_args(hint)[0], v, path) for v in value)
        raise ConfigError(f"{path} must be a list, not {value!r}")
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{path} must be one of {', '.join(get_args(hint))}, not {value!r}")
    is_number = _is_number(value)
    if hint is int and is_number and _is_integral(value):
        return int(value)
    if hint is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hint is float and is_number and _is_finite(value):
        return float(value)
    if hint is str and isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        raise ConfigError(f"{path} must have at most {MAX_TEXT_LENGTH:,} characters")
    if hint in (str, bool) and type(value) is hint:
        return value
    raise ConfigError(f"{path} must be {_TYPE_DESCRIPTIONS[hint]}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Whether a number fits a float."""
    size = abs(value if isinstance(value, int) else float(value))
    return size <= sys.float_info.max


def _is_integral(value: Any) -> bool:
    """Whether a number is whole: 5, or a float such as 1e6."""
    return isinstance(value, Integral) or float(value).is_integer()
