"""Every shell line of the documentation is parsed by its program."""

from __future__ import annotations

import argparse
import importlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest

from lookfurther.cli import (
    analyse,
    bench,
    checkpoint,
    clone,
    cluster,
    demos,
    evaluate,
    export,
    main,
    pull,
    push,
    record,
    report,
    suite,
    train,
    tune,
    video,
)
from lookfurther.cli.options.parsing import parse_options
from lookfurther.cli.options.preset_options import asks_for_help
from lookfurther.validation import validate
from tests.doc_pages import PAGES, ROOT, fences


def shell(page: str) -> list[list[str]]:
    """Return the arguments of every shell line."""
    lines = [line for _, code in fences(page, "sh") for line in code.splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


COMMANDS = [(page, words) for page in PAGES for words in shell(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(w) for _, w in COMMANDS])
def test_shell_lines_parse(page: str, words: list[str]) -> None:
    """Parsed by the program's own parser; `test_docs_commands.py` runs them."""
    program, *rest = words
    PROGRAMS[program](rest)


# Parsers of the commands with arguments.
PARSERS = {
    "analyse": lambda words: parse_options(
        analyse.AnalyseOptions, analyse.AnalyseOptions(), words, "docs"
    ),
    "bench": bench.parse_bench_options,
    "push": lambda words: parse_options(push.PushOptions, push.PushOptions(), words, "docs"),
    "pull": lambda words: parse_options(pull.PullOptions, pull.PullOptions(), words, "docs"),
    "tune": tune.parse_tune_options,
    "clone": clone.parse_clone_options,
    "checkpoint": lambda words: parse_options(
        checkpoint.CheckpointOptions, checkpoint.CheckpointOptions(), words, "docs"
    ),
    "cluster": cluster.COMMANDS.parse,
    "demos": demos.COMMANDS.parse,
    "evaluate": lambda words: parse_options(
        evaluate.EvaluateOptions, evaluate.EvaluateOptions(), words, "docs"
    ),
    "export": lambda words: parse_options(
        export.ExportOptions, export.ExportOptions(), words, "docs"
    ),
    "report": lambda words: parse_options(
        report.ReportOptions, report.ReportOptions(()), words, "docs"
    ),
    "suite": lambda words: parse_options(suite.SuiteOptions, suite.SuiteOptions(), words, "docs"),
    "video": lambda words: parse_options(video.VideoOptions, video.VideoOptions(), words, "docs"),
    "record": lambda words: parse_options(
        record.RecordOptions, record.RecordOptions(), words, "docs"
    ),
}


def parse_lookfurther(words: list[str]) -> None:
    """Parse and check as the command does, without training."""
    if words[0] in PARSERS and words[1:]:
        PARSERS[words[0]](words[1:])
        return
    if words[0] != "train":
        known = words[0] in main.COMMANDS.commands and not words[1:]
        assert known or words[0] in ("--help", "--version")
        return
    if asks_for_help(words):
        with pytest.raises(SystemExit, match=r"^0$"):
            train.parse_train_options(words[1:])
    else:
        validate(train.parse_train_options(words[1:]).config)


class OptionsParsed(Exception):
    """Raised instead of running a module."""


def parse_module(words: list[str]) -> None:
    """`python -m module`: its own parser parses the options."""
    assert words[0] == "-m"
    if words[1] == "lookfurther":
        parse_lookfurther(words[2:])
        return
    module, parse_args = importlib.import_module(words[1]), argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser) -> None:
        parse_args(parser)
        raise OptionsParsed

    with (
        patch.object(sys, "argv", words[1:]),
        patch.object(argparse.ArgumentParser, "parse_args", parse_only),
        pytest.raises(OptionsParsed),
    ):
        module.main()


def parse_make(words: list[str]) -> None:
    """Dry run."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def parse_pip(words: list[str]) -> None:
    name, *rest = words
    commands = pytest.importorskip("pip._internal.commands")
    options, _ = commands.create_command(name).parse_args(rest)
    assert options.editables or rest[0] == "torch"


def parse_tensorboard(words: list[str]) -> None:
    from tensorboard import program

    program.TensorBoard().configure(argv=["tensorboard", *words])


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "lookfurther": parse_lookfurther,
    "make": parse_make,
    "pip": parse_pip,
    "python": parse_module,
    "tensorboard": parse_tensorboard,
}
