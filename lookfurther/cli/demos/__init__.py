"""lookfurther demos COMMAND ...: demonstrations, from where they come to what training takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lookfurther.cli.demos import generate, inspect, playback, transfer
from lookfurther.cli.parsing import parse_options
from lookfurther.errors import ConfigError

PROG = "lookfurther demos"


class Subcommand(NamedTuple):
    """What may follow a name, the dataclass that takes it in, and what then is done."""

    synopsis: str
    options_type: type
    run: Callable[[Any], int]  # gives the exit code

    @property
    def summary(self) -> str:
        """In a few words: how the options' docstring begins."""
        return (self.options_type.__doc__ or "").partition(".")[0]


SUBCOMMANDS = {
    "list": Subcommand("", inspect.ListOptions, inspect.print_sets),
    "show": Subcommand("NAME [--sheet FILE.png]", inspect.ShowOptions, inspect.show_set),
    "verify": Subcommand("NAME ...", playback.VerifyOptions, playback.verify_sets),
    "play": Subcommand("NAME OUT.gif|OUT.mp4", playback.PlayOptions, playback.animate_set),
    "align": Subcommand("NAME --name NEW", playback.AlignOptions, playback.align_set),
    "import": Subcommand("FILE ... --name NAME", transfer.ImportOptions, transfer.import_files),
    "export": Subcommand("NAME FILE.npz", transfer.ExportOptions, transfer.export_set),
    "merge": Subcommand("NAME ... --name NEW", transfer.MergeOptions, transfer.merge_sets),
    "search": Subcommand("GAME --name NAME", generate.SearchOptions, generate.search_demos),
    "bot": Subcommand("ENV --name NAME", generate.BotOptions, generate.record_bot),
    "agent": Subcommand("RUN --name NAME", generate.AgentOptions, generate.record_agent),
}


def run(arguments: list[str]) -> int:
    """Do what a subcommand says, or print which there are."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(format_usage())
        return 0 if arguments else 2
    return SUBCOMMANDS[check_subcommand(arguments[0])].run(parse_subcommand(arguments))


def parse_subcommand(arguments: list[str]) -> Any:
    """The options of a subcommand, from its name and the words after it."""
    name, *rest = arguments
    options = SUBCOMMANDS[check_subcommand(name)].options_type
    return parse_options(options, options(), rest, f"{PROG} {name}")


def check_subcommand(name: str) -> str:
    """The name of a subcommand, if it is one."""
    if name not in SUBCOMMANDS:
        raise ConfigError(f"demos has no command {name!r}: choose one of {', '.join(SUBCOMMANDS)}")
    return name


def format_usage() -> str:
    """The page that --help prints."""
    lines = [f"  {f'{name} {one.synopsis}':33}{one.summary}" for name, one in SUBCOMMANDS.items()]
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
