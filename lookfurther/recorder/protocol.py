"""What a page may say: short JSON texts, read into one type or refused."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lookfurther.errors import LookFurtherError

MAX_MESSAGE_BYTES = 4096  # bytes of a message; the server drops a connection that sends more
PLAY_SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
NUMBER_LIMIT = 2**32  # counters wrap before it in no session
# Words without anything beside them.
SIMPLE_KINDS = ("pause", "resume", "step", "save", "discard")


class MessageError(LookFurtherError):
    """A message that no page of ours sends."""


class PageMessage(NamedTuple):
    """One thing a page asks for."""

    kind: str  # one of PLAIN, "keys", "rewind", "speed" or "seen"
    number: int = 0  # of the keys, or of the frame seen
    held: frozenset[str] = frozenset()  # buttons down
    on: bool = False  # whether the rewind key is held
    speed: float = 1.0
    wait: int = 0  # milliseconds a frame waited for the display to show it


def parse_message(text: str | None, buttons: frozenset[str]) -> PageMessage:
    """A page's words as a Message, or a MessageError that says what is wrong with them."""
    if text is None:
        raise MessageError("a message must be text")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageError("a message must be JSON") from None
    if not isinstance(data, dict):
        raise MessageError("a message must be an object")
    kind = data.get("kind")
    if kind in SIMPLE_KINDS:
        return PageMessage(str(kind))
    if kind == "keys":
        held = _parse_held_buttons(data.get("held"), buttons)
        return PageMessage("keys", _parse_number(data), held)
    if kind == "seen":
        return PageMessage("seen", _parse_number(data), wait=_parse_number(data, "wait"))
    if kind == "rewind" and isinstance(data.get("on"), bool):
        return PageMessage("rewind", on=data["on"])
    if kind == "speed" and data.get("speed") in PLAY_SPEEDS:
        return PageMessage("speed", speed=float(data["speed"]))
    raise MessageError(f"no such message: {text[:60]!r}")


def _parse_number(data: dict[str, Any], name: str = "number") -> int:
    number = data.get(name)
    if type(number) is not int or not 0 <= number < NUMBER_LIMIT:
        raise MessageError(f"{name} must be a whole number below 2**32")
    return number


def _parse_held_buttons(names: Any, buttons: frozenset[str]) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError("held must be a list of buttons")
    if unknown := set(names) - buttons:
        raise MessageError(f"no such button: {min(unknown)[:60]!r}")
    return frozenset(names)
