"""Hostile names in files (tags, YAML, terminal escapes, long text) are printed as plain text."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from html import escape
from pathlib import Path

import numpy as np
import pytest

from lookfurther.cli.main import main
from lookfurther.cli.suite import StatusBoard, format_row
from lookfurther.demos import storage
from lookfurther.demos.episode import Audit, Episode
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.evaluation.suite import SuiteJob
from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable
from lookfurther.training.config_json import from_json, to_json
from lookfurther.training.monitoring.console import ProgressDisplay
from tests.forged import CARTPOLE, METRICS_ROW, cartpole_config, write_run

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
TAGS = "<script>alert(1)</script>"
YAML = "x\n---\n- !!python/object/apply:os.system [ls]"
MATHS = r"$\frac{$ $$\undefined{x}$$"
MARKDOWN = "a | b ` c ` [x](javascript:alert) ![](http://tracker) <img src=x> *b*"
MARKUP = "[bold red]x[/nothing]"
REVERSED = "\u202eabc\u2028"
HOSTILE = [ESCAPE, TAGS, YAML, MATHS, MARKDOWN, MARKUP, REVERSED, "n" * 4000]
IDS = ["escape", "tags", "yaml", "maths", "markdown", "markup", "reversed", "long"]

hostile = pytest.mark.parametrize("name", HOSTILE, ids=IDS)


def is_safe(text: str) -> bool:
    """Whether a text has no terminal escapes."""
    return all(line.isprintable() for line in text.split("\n"))


# make_printable


@hostile
def test_printable_text_is_one_line_without_escapes(name: str) -> None:
    printed = make_printable(name)
    assert printed.isprintable()
    assert len(make_printable("n" * 10**7)) == 80
    assert make_printable(printed, 10**6) == printed


def test_ordinary_text_is_printed_unchanged() -> None:
    for text in ("ALE/Pong-v5", "Montezuma's Revenge, ε 0.01 · 日本語", ""):
        assert make_printable(text) == text
    assert make_printable("two\nlines") == "two lines"
    assert make_printable(ESCAPE) == r"\x1b]0;owned\x07\x1b[2J"


@hostile
def test_error_is_one_short_line(name: str) -> None:
    message = str(LookFurtherError(f"{name}: {'m' * 10**7}"))
    assert message.isprintable()
    assert len(message) < 4 * MAX_MESSAGE_LENGTH


# The terminal


@hostile
def test_command_line_error_is_one_safe_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: 1}))
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert is_safe(error)
    assert error.count("\n") == 1


@hostile
def test_demos_show_and_verify_print_safely(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planes = np.zeros((2, 4), np.float32)
    audit = Audit(False, 1.0, None, 0, 0, name)
    episode = Episode(planes, np.array([0]), np.ones(1, np.float32), True, 1, audit=audit)
    folder = storage.save_episodes("theirs-v0", [episode], CARTPOLE, name, root=tmp_path)
    metadata_path = folder / "data" / "metadata.json"
    metadata = json.loads(metadata_path.read_text())
    description = json.loads(metadata["lookfurther"])
    description["origin"] |= {"library": name, "wrappers": [name], "meanings": [name, "2"]}
    metadata["lookfurther"] = json.dumps(description)
    metadata_path.write_text(json.dumps(metadata))
    assert main(["demos", "show", str(folder)]) == 0
    output = capsys.readouterr().out
    assert is_safe(output)
    assert len(output) < 5000
    assert main(["demos", "verify", str(folder)]) != 0
    assert is_safe(capsys.readouterr().err)


@hostile
def test_progress_panel_and_messages_are_safe(name: str) -> None:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    progress = ProgressDisplay(100, title=name, console=console)
    progress.print_message(name)
    console.print(progress.render_panel())
    assert is_safe(out.getvalue())
    if name == MARKUP:
        assert out.getvalue().count(MARKUP) == 2


@hostile
def test_suite_table_is_safe(name: str) -> None:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=300, color_system=None)
    job = SuiteJob(cartpole_config(env=name, preset=name), "small", failure=name)
    console.print(StatusBoard([job], console, None).render_table(job))
    assert is_safe(out.getvalue())
    assert format_row(job)[0] == make_printable(name)


# Report and model card


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # eight long names in a row
def test_report_escapes_and_shortens_names(tmp_path: Path) -> None:
    for i, name in enumerate(HOSTILE):
        run = write_run(tmp_path / "runs" / str(i), cartpole_config(env=name, preset=name))
        (run / "versions.json").write_text(json.dumps({"commit": name}))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert escape(TAGS) in page  # as text
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "n" * 500 not in page
    assert "mathdefault" not in page  # matplotlib would have parsed it as mathematics
    assert f"{METRICS_ROW['return_low_epsilon']:.2f}" in page


@hostile
def test_model_card_is_valid_yaml_and_inert_markdown(name: str, tmp_path: Path) -> None:
    spec = CARTPOLE._replace(env=name.replace(":", ";"))._asdict()
    config = cartpole_config(preset=name)
    run = write_run(tmp_path / "run", config, spec=spec)
    (run / "versions.json").write_text(json.dumps({name: name}))
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    _, header, body = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    *_, tag = header.strip().split("\n")
    assert json.loads(tag.removeprefix("- ")) == make_printable(spec["env"])
    assert header.count("\n") == 6
    assert is_safe(body)
    assert "n" * 500 not in body
    unescaped = re.sub(r"\\.|`[^`]*`", "", body)
    for mark in ("<script", "<img", "![", "](java"):
        assert mark not in unescaped
    for row in re.findall(r"^\|.*\|$", unescaped, re.M):
        assert row.count("|") in (3, 4)


# Settings


def test_config_rejects_very_long_text() -> None:
    for field in ("env", "preset"):
        data = dataclasses.asdict(cartpole_config()) | {field: "n" * 10**7}
        with pytest.raises(ConfigError, match=f"{field} must have at most 4,096 characters"):
            from_json(json.dumps(data))
    assert from_json(to_json(cartpole_config(env="n" * 4096))).env == "n" * 4096


def test_video_shows_names_in_one_line() -> None:
    from lookfurther.envs.naming import short_env_title
    from lookfurther.video.draw import TEXT_COLOUR, ScaledCanvas

    for name in HOSTILE:
        ScaledCanvas(320).draw_text((10, 10), short_env_title(name), 20, TEXT_COLOUR)
        assert short_env_title(name).isprintable()
        assert len(short_env_title(name)) <= 400
