"""The command `lookfurther`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from lookfurther.errors import ConfigError, LookFurtherError

# name: (arguments, description); each is `run` in the module lookfurther.cli.NAME.
COMMANDS = {
    "train": ("PRESET --env ENV [--demos SET ...]", "train an agent"),
    "evaluate": ("RUN [--starts noop | human]", "play whole episodes and store the scores"),
    "report": ("RUN ... [--out DIR]", "write a page of tables and figures"),
    "video": ("RUN [--out FILE] [--watch]", "show an agent next to the expert"),
    "checkpoint": ("RUN", "save a checkpoint of a run in progress"),
    "suite": ("FILE.toml | NAME [--out DIR]", "train environments x presets x seeds"),
    "export": ("RUN --out DIR", "write weights, configuration and model card"),
    "record": ("ENV [--name SET]", "record demonstrations in the browser"),
    "bench": ("[PRESET] [--json FILE]", "measure the speed of this machine"),
    "demos": ("list | show | import | verify | ...", "get, inspect and verify demonstrations"),
    "presets": ("", "list presets and scales"),
}


def format_usage() -> str:
    """Return the text of --help."""
    lines = [f"  {f'{name} {arguments}':43}{text}" for name, (arguments, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: lookfurther COMMAND ...",
            "",
            "Learning to act from a handful of demonstrations plus reward (Ape-X DQfD).",
            "",
            "commands:",
            *lines,
            "",
            "lookfurther COMMAND --help lists every setting of a command.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: return the exit code; an error prints one line to stderr."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help"):
        print(format_usage())
        return 0 if args else 2
    if args[0] == "--version":
        from lookfurther import __version__

        print(__version__)
        return 0
    _exit_on_signals()
    try:
        if args[0] not in COMMANDS:
            raise ConfigError(f"unknown command {args[0]!r}: choose one of {', '.join(COMMANDS)}")
        return import_module(f"lookfurther.cli.{args[0]}").run(args[1:])
    except LookFurtherError as error:
        print(f"lookfurther: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as head, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("lookfurther: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _exit_on_signals() -> None:
    """Turn signals into SystemExit, so that subprocesses and files are closed."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda number, _: sys.exit(128 + number))


if __name__ == "__main__":
    sys.exit(main())
