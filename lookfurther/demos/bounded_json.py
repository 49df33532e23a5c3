"""JSON that others made, parsed only where that takes little memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lookfurther.demos.sandbox import file_size

MAX_JSON_BYTES = 2**23  # bytes of a file; as text it may take four times as many
MAX_JSON_VALUES = 500_000  # each may take 100 bytes


def read_json(path: Path) -> Any:
    """What a file holds; a ValueError where it is too large or no JSON."""
    if file_size(path) > MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """What a text holds; a ValueError where that is too many values or no JSON."""
    check_json(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_json(text: str | bytes) -> None:
    """A ValueError where a text is longer or holds more values than is read again."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"its JSON is longer than {MAX_JSON_BYTES} bytes")
    data = text.encode() if isinstance(text, str) else text
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise ValueError(f"its JSON holds more than {MAX_JSON_VALUES} values")
