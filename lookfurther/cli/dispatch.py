"""Groups of commands; the module of a command is imported only when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

from lookfurther.errors import ConfigError


class Command(NamedTuple):
    """A command and the function that runs it.

    The function returns the exit code. It takes one parameter: a dataclass of options, which is
    parsed from the arguments, or the list of arguments itself.
    """

    arguments: str  # as shown in the usage text
    summary: str
    function: str  # module:function; without a colon, `run` of the module


class CommandGroup(NamedTuple):
    """Commands by name; their modules are in `package`."""

    prog: str
    description: str
    package: str
    commands: Mapping[str, Command]

    def run(self, args: list[str]) -> int:
        """Run the command that the first argument names; without one, print the usage."""
        if not args or args[0] in ("-h", "--help"):
            print(self.format_usage())
            return 0 if args else 2
        return self.load(args[0])(self.parse(args))

    def load(self, name: str) -> Callable[[Any], int]:
        """Import the function of a command."""
        if name not in self.commands:
            names = ", ".join(self.commands)
            raise ConfigError(f"unknown command {name!r}: choose one of {names}")
        module, _, function = self.commands[name].function.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), function or "run")

    def parse(self, args: list[str]) -> Any:
        """Parse the options of a command, or return its arguments if it takes those."""
        from lookfurther.cli.options.parsing import parse_options

        name, *rest = args
        hints = get_type_hints(self.load(name))
        (options_type,) = (hint for parameter, hint in hints.items() if parameter != "return")
        if not (isinstance(options_type, type) and is_dataclass(options_type)):
            return rest
        return parse_options(options_type, options_type(), rest, f"{self.prog} {name}")

    def format_usage(self) -> str:
        """Return the text of --help."""
        rows = [(f"{name} {c.arguments}", c.summary) for name, c in self.commands.items()]
        width = max(len(synopsis) for synopsis, _ in rows) + 2
        return "\n".join(
            [
                f"usage: {self.prog} COMMAND ...",
                "",
                self.description,
                "",
                "commands:",
                *(f"  {synopsis:{width}}{summary}" for synopsis, summary in rows),
                "",
                f"{self.prog} COMMAND --help lists the options of a command.",
            ]
        )
