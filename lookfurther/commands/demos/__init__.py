"""lookfurther demos COMMAND ...: demonstrations, from where they come to what training takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lookfurther.commands.demos import files, making, reading, replays
from lookfurther.errors import ConfigError
from lookfurther.options import parse

PROG = "lookfurther demos"


class Subcommand(NamedTuple):
    """What may follow a name, the dataclass that takes it in, and what then is done."""

    rest: str
    options: type
    action: Callable[[Any], int]  # gives the exit code

    @property
    def what(self) -> str:
        """In a few words: how the options' docstring begins."""
        return (self.options.__doc__ or "").partition(".")[0]


SUBCOMMANDS = {
    "list": Subcommand("", reading.ListOptions, reading.list_sets),
    "show": Subcommand("NAME [--sheet FILE.png]", reading.ShowOptions, reading.show),
    "verify": Subcommand("NAME ...", replays.VerifyOptions, replays.verify_sets),
    "play": Subcommand("NAME OUT.gif|OUT.mp4", replays.PlayOptions, replays.play),
    "align": Subcommand("NAME --name NEW", replays.AlignOptions, replays.align_set),
    "import": Subcommand("FILE ... --name NAME", files.ImportOptions, files.import_files),
    "export": Subcommand("NAME FILE.npz", files.ExportOptions, files.export),
    "merge": Subcommand("NAME ... --name NEW", files.MergeOptions, files.merge_sets),
    "search": Subcommand("GAME --name NAME", making.SearchOptions, making.search),
    "bot": Subcommand("ENV --name NAME", making.BotOptions, making.bot),
    "agent": Subcommand("RUN --name NAME", making.AgentOptions, making.agent),
}


def run(words: list[str]) -> int:
    """Do what a subcommand says, or print which there are."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    return SUBCOMMANDS[known(words[0])].action(understood(words))


def understood(words: list[str]) -> Any:
    """The options of a subcommand, from its name and the words after it."""
    name, *rest = words
    options = SUBCOMMANDS[known(name)].options
    return parse(options, options(), rest, f"{PROG} {name}")


def known(name: str) -> str:
    """The name of a subcommand, if it is one."""
    if name not in SUBCOMMANDS:
        raise ConfigError(f"demos has no command {name!r}: choose one of {', '.join(SUBCOMMANDS)}")
    return name


def usage() -> str:
    """The page that --help prints."""
    lines = [f"  {f'{name} {one.rest}':33}{one.what}" for name, one in SUBCOMMANDS.items()]
    return "\n".join(
        [
            f"usage: {PROG} COMMAND ...",
            "",
            "Demonstrations: get them, look at them, replay them.",
            "",
            "commands:",
            *lines,
            "",
            f"{PROG} COMMAND --help lists the options of a command.",
        ]
    )
