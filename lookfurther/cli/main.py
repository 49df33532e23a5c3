"""The command `lookfurther`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from lookfurther.errors import ConfigError, LookFurtherError

# name: (what may follow it, what it does); each is `run` of its module in lookfurther.cli.
COMMANDS = {
    "train": ("PRESET --env ENV [--demos SET ...]", "train an agent"),
    "evaluate": ("RUN [--starts noop | human]", "play whole episodes and keep the scores"),
    "report": ("RUN ... [--out DIR]", "a page of tables and figures from runs"),
    "video": ("RUN [--out FILE] [--watch]", "an agent beside the expert, as a film or live"),
    "checkpoint": ("RUN", "let a run in progress save a checkpoint now"),
    "suite": ("FILE.toml | NAME [--out DIR]", "environments x presets x seeds, one after another"),
    "export": ("RUN --out DIR", "weights, configuration and a model card"),
    "record": ("ENV [--name SET]", "play in the browser and keep the episodes"),
    "bench": ("[PRESET] [--json FILE]", "measure what this machine does in a second"),
    "demos": ("list | show | import | verify | ...", "demonstrations: get them, look at them"),
    "presets": ("", "the presets and scales, with their place in the paper"),
}


def format_usage() -> str:
    """The page that --help prints."""
    lines = [f"  {f'{name} {rest}':43}{what}" for name, (rest, what) in COMMANDS.items()]
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
    """Entry point: the exit code, with one line on stderr where something is wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(format_usage())
        return 0 if words else 2
    if words[0] == "--version":
        from lookfurther import __version__

        print(__version__)
        return 0
    _exit_on_signals()
    try:
        if words[0] not in COMMANDS:
            raise ConfigError(f"unknown command {words[0]!r}: choose one of {', '.join(COMMANDS)}")
        return import_module(f"lookfurther.cli.{words[0]}").run(words[1:])
    except LookFurtherError as error:
        print(f"lookfurther: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("lookfurther: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _exit_on_signals() -> None:
    """Let signals unwind as an exit does, so that processes and files of ours end with us."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                signal.signal(number, lambda number, _: sys.exit(128 + number))


if __name__ == "__main__":
    sys.exit(main())
