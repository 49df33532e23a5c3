"""Text from files, made safe to print."""

from __future__ import annotations

MAX_NAME_LENGTH = 80  # characters of a name in a table, a title or an image
MAX_MESSAGE_LENGTH = 2_000


def make_printable(text: object, max_length: int = MAX_NAME_LENGTH) -> str:
    """One line of at most `max_length` characters without terminal commands.

    Line breaks become spaces. Other control characters, such as the escape that begins a terminal
    command, and invisible ones, such as those that reverse text, are written as \\x1b.
    """
    full = str(text)
    shortened = full if len(full) <= max_length else full[: max_length - 1] + "…"
    return "".join(map(_escape_character, shortened))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\r\t":
        return " "
    return character.encode("unicode_escape").decode("ascii")
