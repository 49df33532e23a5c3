"""Text from files, made safe to show."""

from __future__ import annotations

LONGEST_NAME = 80  # characters of a name in a table, a title or a picture
LONGEST_MESSAGE = 2_000


def printable(text: object, longest: int = LONGEST_NAME) -> str:
    """One line of at most `longest` characters that a terminal shows and does not obey.

    Line breaks become spaces. Other control characters, such as the escape that begins a terminal
    command, and invisible ones, such as those that reverse text, are written as \\x1b.
    """
    whole = str(text)
    cut = whole if len(whole) <= longest else whole[: longest - 1] + "…"
    return "".join(map(_visible, cut))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\n\r\t":
        return " "
    return character.encode("unicode_escape").decode("ascii")
