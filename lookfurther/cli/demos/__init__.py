"""lookfurther demos COMMAND ...: demonstrations, from where they come to what training takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lookfurther.cli.demos import generate, inspect, playback, transfer
from lookfurther.cli.parsing import parse
from lookfurther.errors import ConfigError

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
    "list": Subcommand("", inspect.ListOptions, inspect.list_sets),
    "show": Subcommand("NAME [--sheet FILE.png]", inspect.ShowOptions, inspect.show),
    "verify": Subcommand("NAME ...", playback.VerifyOptions, playback.verify_sets),
    "play": Subcommand("NAME OUT.gif|OUT.mp4", playback.PlayOptions, playback.play),
    "align": Subcommand("NAME --name NEW", playback.AlignOptions, playback.align_set),
    "import": Subcommand("FILE ... --name NAME", transfer.ImportOptions, transfer.import_files),
    "export": Subcommand("NAME FILE.npz", transfer.ExportOptions, transfer.export),
    "merge": Subcommand("NAME ... --name NEW", transfer.MergeOptions, transfer.merge_sets),
    "search": Subcommand("GAME --name NAME", generate.SearchOptions, generate.search),
    "bot": Subcommand("ENV --name NAME", generate.BotOptions, generate.bot),
    "agent": Subcommand("RUN --name NAME", generate.AgentOptions, generate.agent),
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
