"""Messages from the page: short JSON texts, parsed into one type or rejected."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from lookfurther.errors import LookFurtherError

MAX_MESSAGE_BYTES = 4096  # the server closes a connection that sends more
PLAY_SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
NUMBER_LIMIT = 2**32  # no session counts this far
# Kinds without further fields.
SIMPLE_KINDS = ("pause", "resume", "step", "save", "discard", "stop")
EPISODE_KINDS = ("replay", "delete")  # with the id of a recorded episode
EPISODE_ID = re.compile(r"[0-9a-f]{16}")


class MessageError(LookFurtherError):
    """A message that the recorder page never sends."""


class PageMessage(NamedTuple):
    """One message from the page."""

    kind: str  # one of SIMPLE_KINDS and EPISODE_KINDS, "keys", "rewind", "speed" or "seen"
    number: int = 0  # of the keys message, or of the displayed frame
    held_buttons: frozenset[str] = frozenset()
    is_held: bool = False  # the rewind key
    speed: float = 1.0
    wait_ms: int = 0  # time between arrival and display of the frame
    episode: str = ""  # id of a recorded episode


def parse_message(text: str | None, buttons: frozenset[str]) -> PageMessage:
    """Parse a message from the page, or raise a MessageError with the reason."""
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
        return PageMessage("seen", _parse_number(data), wait_ms=_parse_number(data, "wait"))
    if kind == "rewind" and isinstance(data.get("on"), bool):
        return PageMessage("rewind", is_held=data["on"])
    if kind == "speed" and data.get("speed") in PLAY_SPEEDS:
        return PageMessage("speed", speed=float(data["speed"]))
    if kind in EPISODE_KINDS:
        return PageMessage(str(kind), episode=_parse_episode(data.get("episode")))
    raise MessageError(f"no such message: {text[:60]!r}")


def _parse_number(data: dict[str, Any], name: str = "number") -> int:
    number = data.get(name)
    if type(number) is not int or not 0 <= number < NUMBER_LIMIT:
        raise MessageError(f"{name} must be an integer below 2**32")
    return number


def _parse_episode(value: Any) -> str:
    if not isinstance(value, str) or not EPISODE_ID.fullmatch(value):
        raise MessageError("episode must be the id of an episode")
    return value


def _parse_held_buttons(names: Any, buttons: frozenset[str]) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError("held must be a list of buttons")
    if unknown := set(names) - buttons:
        raise MessageError(f"no such button: {min(unknown)[:60]!r}")
    return frozenset(names)
