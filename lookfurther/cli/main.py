"""The command `lookfurther`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from lookfurther.cli.dispatch import Command, CommandGroup
from lookfurther.errors import LookFurtherError

COMMANDS = CommandGroup(
    "lookfurther",
    "Learning to act from a handful of demonstrations plus reward (Ape-X DQfD).",
    "lookfurther.cli",
    {
        "train": Command("PRESET --env ENV [--demos SET ...]", "train an agent", "train"),
        "clone": Command("PRESET --env ENV --demos SET ...", "imitate without reward", "clone"),
        "evaluate": Command(
            "RUN [--starts noop | human]", "play whole episodes and store the scores", "evaluate"
        ),
        "report": Command("RUN ... [--out DIR]", "write a page of tables and figures", "report"),
        "analyse": Command(
            "RUN [--demos SET]", "show where an agent leaves a demonstration", "analyse"
        ),
        "video": Command("RUN [--out FILE] [--watch]", "show an agent next to the expert", "video"),
        "checkpoint": Command("RUN", "save a checkpoint of a run in progress", "checkpoint"),
        "suite": Command(
            "FILE.toml | NAME [--out DIR]",
            "train and evaluate environments x presets x seeds",
            "suite",
        ),
        "tune": Command("PRESET --env ENV --out DIR", "search for settings with Optuna", "tune"),
        "export": Command(
            "RUN --out DIR [--half]", "write weights, configuration and model card", "export"
        ),
        "push": Command("RUN | SET OWNER/NAME", "share an agent or a set on the Hub", "push"),
        "pull": Command("OWNER/NAME [--kind demos]", "get an agent or a set from the Hub", "pull"),
        "cluster": Command("check ADDRESS", "measure the nodes of a Ray cluster", "cluster"),
        "record": Command("ENV [--name SET]", "record demonstrations in the browser", "record"),
        "bench": Command("[PRESET] [--json FILE]", "measure the speed of this machine", "bench"),
        "demos": Command(
            "list | show | import | verify | ...", "get, inspect and verify demonstrations", "demos"
        ),
        "presets": Command("", "list presets, scales and tuned settings", "presets"),
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: return the exit code; an error prints one line to stderr."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if args[:1] == ["--version"]:
        from lookfurther import __version__

        print(__version__)
        return 0
    _exit_on_signals()
    try:
        return COMMANDS.run(args)
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
