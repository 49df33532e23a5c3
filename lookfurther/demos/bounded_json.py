"""Strict JSON for files from other people: bounded in memory, checked against types."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lookfurther.demos.sandbox import file_size

MAX_JSON_BYTES = 2**23  # of a file; as text it may take four times as much memory
MAX_JSON_VALUES = 500_000  # each may take 100 bytes of memory


def read_json(path: Path) -> Any:
    """The content of a file; a ValueError if the file is too large or not JSON."""
    if file_size(path) > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """The content of a text; a ValueError if it has too many values or is not JSON."""
    check_json(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_json(text: str | bytes) -> None:
    """A ValueError if a text is longer or has more values than `parse_json` accepts."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"its JSON is longer than {MAX_JSON_BYTES} bytes")
    data = text.encode() if isinstance(text, str) else text
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise ValueError(f"its JSON holds more than {MAX_JSON_VALUES} values")


def to_plain(value: Any) -> Any:
    """Records (named tuples and dataclasses) as dictionaries, tuples as lists."""
    if hasattr(value, "_asdict"):
        return {name: to_plain(x) for name, x in value._asdict().items()}
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)  # type: ignore[arg-type]
    return [to_plain(x) for x in value] if isinstance(value, tuple) else value


def from_plain(expected_type: Any, value: Any, path: str = "") -> Any:
    """The inverse of `to_plain`: a ValueError for a missing or unknown field or another type.

    Only fields that older versions did not write may be missing.
    """
    arguments = get_args(expected_type)
    if isinstance(expected_type, types.UnionType):  # of a type and None
        return None if value is None else from_plain(arguments[0], value, path)
    if get_origin(expected_type) is tuple and isinstance(value, list):
        return tuple(from_plain(arguments[0], x, path) for x in value)
    if get_origin(expected_type) is dict and isinstance(value, dict):
        return {name: from_plain(arguments[1], x, path) for name, x in value.items()}
    if hasattr(expected_type, "__annotations__") and isinstance(value, dict):
        hints = get_type_hints(expected_type)
        if not set(hints) - _optional_fields(expected_type) <= set(value) <= set(hints):
            raise ValueError(f"{path or 'it'} must have {', '.join(hints)}")
        return expected_type(
            **{name: from_plain(hints[name], x, name) for name, x in value.items()}
        )
    if expected_type is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not expected_type or (expected_type is float and not math.isfinite(value)):
        raise ValueError(f"{path or 'it'} cannot be {str(value)[:40]!r}")
    return value


def _optional_fields(record_type: Any) -> set[str]:
    """The fields with defaults, which files of older versions lack."""
    if dataclasses.is_dataclass(record_type):
        fields = dataclasses.fields(record_type)
        return {f.name for f in fields if f.default_factory is not dataclasses.MISSING}
    return set(record_type._field_defaults)
