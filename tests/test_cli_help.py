"""Help, presets and options of the command line."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from lookfurther import __version__
from lookfurther.cli import demos
from lookfurther.cli.main import COMMANDS, main
from lookfurther.cli.options.preset_options import COMMON_SETTINGS
from lookfurther.cli.train import TrainOptions, parse_train_options
from lookfurther.config import Config
from lookfurther.presets import PRESETS, SCALES, preset
from tests.command_runs import ROOT


def setting_names(cls: type, prefix: str = "") -> list[str]:
    """Return the dotted name of every setting."""
    found = []
    for field in dataclasses.fields(cls):
        made: Any = field.default_factory
        inner = isinstance(made, type) and dataclasses.is_dataclass(made)
        found += setting_names(made, f"{field.name}.") if inner else [prefix + field.name]
    return found


HELP_SCRIPT = """
import sys
from lookfurther.cli.main import main

for args in (["--help"], ["-h"], ["presets"], ["presets", "--help"], ["--version"],
             ["bench", "--help"], ["train", "--help"], ["train", "--help-all"],
             ["train", "no-demos", "--scale", "small", "--help"]):
    try:
        code = main(args)
    except SystemExit as stop:
        code = stop.code
    assert not code, args
    assert "torch" not in sys.modules, args
"""


def test_help_does_not_import_torch() -> None:
    command = [sys.executable, "-c", HELP_SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: lookfurther COMMAND" in done.stdout
    assert f"\n{__version__}\n" in done.stdout


def test_every_setting_is_an_option_with_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "no-demos", "--help-all"])
    assert not stop.value.code
    out = capsys.readouterr().out
    names = setting_names(Config)
    assert {"env", "demos", "learner.gamma", "run.steps"} <= set(names)
    for name in names:
        assert re.search(rf"--{re.escape(name.replace('_', '-'))}[ ,]", out), name
    assert {"PRESET", "--scale", "--resume"} <= set(out.split())
    assert "(default: 256)" in out  # the preset's agent_items, not the base's 192


GROUPS = ("demos", "cluster")  # of commands
HELP_TEXTS = [
    ["train", "--help"],
    ["train", "no-demos", "--help"],
    ["train", "--help-all"],
    ["bench", "--help"],
    ["presets", "--help"],
    *([name, "--help"] for name in COMMANDS.commands if name not in GROUPS),
    ["cluster", "check", "--help"],
    *(["demos", name, "--help"] for name in demos.COMMANDS.commands),
]


@pytest.mark.parametrize("args", HELP_TEXTS, ids=" ".join)
def test_help_shows_no_empty_default(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(args)
    out, err = capsys.readouterr()
    assert err == ""
    assert f"usage: lookfurther {' '.join(args[: 2 if args[0] in GROUPS else 1])} " in out
    for unclear in ("{None}", "default: )", "default: '')", "default: None)"):
        assert unclear not in out


@pytest.mark.parametrize("name", ["train", "bench"])
def test_help_shows_common_options_only(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "--help"])
    words = set(capsys.readouterr().out.split())
    common = {f"--{setting.replace('_', '-')}" for setting in COMMON_SETTINGS}
    assert {"PRESET", "--scale", "--help-all"} | common <= words
    settings = {f"--{setting.replace('_', '-')}" for setting in setting_names(Config)}
    assert words & settings == common


def test_help_marks_required_environment(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["train", "no-demos", option])
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert re.search(r"--env STR [^(]* \(required\)", text)


@pytest.mark.parametrize(
    ("text", "value"), [("1e5", 100_000), ("2.5e3", 2500), ("1_000", 1000), ("7", 7)]
)
def test_whole_numbers_in_scientific_notation(text: str, value: int) -> None:
    options = parse_train_options(["no-demos", "--run.steps", text, "--replay.horizons", "1", text])
    assert options.config.run.steps == value
    assert options.config.replay.horizons == (1, value)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", SCALES)
def test_parsed_defaults_are_those_of_the_preset(name: str, scale: str) -> None:
    options = parse_train_options([name, "--scale", scale])
    assert options == TrainOptions(name, scale, preset(name, scale))


def test_presets_command_lists_places_and_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    for name, entry in (PRESETS | SCALES).items():
        assert re.search(rf"^  {name} +{re.escape(entry.description)}$", out, re.MULTILINE)
        for setting, value in entry.overrides.items():
            assert f"{setting.replace('__', '.')} = {value}\n" in out


def test_broken_pipe_prints_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lookfurther", "presets"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
