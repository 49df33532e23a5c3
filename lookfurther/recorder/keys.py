"""Keyboard keys, buttons and the actions they select."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from lookfurther.errors import ConfigError

# Key names and their KeyboardEvent.code.
KEY_CODES = {
    **{letter: f"Key{letter.upper()}" for letter in "abcdefghijklmnopqrstuvwxyz"},
    **{digit: f"Digit{digit}" for digit in "0123456789"},
    **{word: f"Arrow{word.title()}" for word in ("up", "down", "left", "right")},
    "space": "Space",
    "shift": "ShiftLeft",
    "comma": "Comma",
}
# Pause and rewind. The page also uses . - = and Enter, which have no name here.
RESERVED_KEYS = ("p", "r")

# Actions of Gymnasium environments that do not name them, by the id without its version.
KNOWN_ACTIONS = {
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
    "Acrobot": ("left", "none", "right"),
    "LunarLander": ("none", "left", "main", "right"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("down", "up", "right", "left", "pickup", "dropoff"),
}

# Keys for common action names; other actions get digits, then letters.
DEFAULT_KEYS = {
    "left": "left",
    "right": "right",
    "up": "up",
    "forward": "up",
    "down": "down",
    "backward": "down",
    "main": "up",
    "none": "down",
    "toggle": "space",
    "fire": "space",
    "jump": "space",
}


class Button(NamedTuple):
    """A control that the player can hold down."""

    name: str
    key_codes: tuple[str, ...]  # KeyboardEvent.code of its keys


JOYSTICK_BUTTONS = (
    Button("up", ("ArrowUp", "KeyW")),
    Button("left", ("ArrowLeft", "KeyA")),
    Button("down", ("ArrowDown", "KeyS")),
    Button("right", ("ArrowRight", "KeyD")),
    Button("fire", ("Space",)),
)


def joystick_action(held: Set[str]) -> str:
    """Return ALE's action name for the held buttons; opposite directions cancel out."""
    vertical = ("up" in held) - ("down" in held)
    sideways = ("right" in held) - ("left" in held)
    name = ("", "UP", "DOWN")[vertical] + ("", "RIGHT", "LEFT")[sideways]
    return name + ("FIRE" if "fire" in held else "") or "NOOP"


def assign_keys(actions: Sequence[str], key_options: Sequence[str]) -> tuple[Button, ...]:
    """Assign a key to each action: from ACTION=KEY, else its default key, else the next free key.

    ACTION is the number or name of an action.
    """
    chosen = dict(_parse_key_option(option, actions) for option in key_options)
    if len(set(chosen.values())) < len(chosen):
        raise ConfigError(f"--keys {' '.join(key_options)}: two actions have the same key")
    for number, name in enumerate(actions):
        key = DEFAULT_KEYS.get(name.lower(), "")
        if number not in chosen and key and key not in chosen.values():
            chosen[number] = key
    taken = {*chosen.values(), *RESERVED_KEYS}
    free = iter([key for key in "1234567890qwertyuioasdfghjklzxcvbnm" if key not in taken])
    for number in range(len(actions)):
        if number not in chosen:
            chosen[number] = next(free, "")
    if "" in chosen.values():
        raise ConfigError(
            f"{len(actions)} actions are more than there are keys: wrap the environment"
        )
    return tuple(Button(name, (KEY_CODES[chosen[i]],)) for i, name in enumerate(actions))


def _parse_key_option(option: str, actions: Sequence[str]) -> tuple[int, str]:
    """Parse an option such as 2=up or forward=up into (action, key)."""
    name, _, key = option.partition("=")
    key = key.lower()
    if key not in KEY_CODES or key in RESERVED_KEYS:
        names = "a letter other than p and r, a digit, up, down, left, right, space, shift or comma"
        raise ConfigError(f"--keys {option}: write ACTION=KEY, where KEY is {names}")
    if name in actions:
        return list(actions).index(name), key
    if name.isascii() and name.isdigit() and int(name) < len(actions):
        return int(name), key
    raise ConfigError(f"--keys {option}: no such action; choose from {', '.join(actions)}")
