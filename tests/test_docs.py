"""What the documentation says is so: its code runs, its names exist, its tables are the code's."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks import results_page
from lookfurther import errors
from lookfurther.cli import (
    bench,
    checkpoint,
    demos,
    evaluate,
    export,
    main,
    record,
    report,
    suite,
    train,
    video,
)
from lookfurther.cli.parsing import parse_options
from lookfurther.config import Config, replace, validate
from lookfurther.envs import get_spec
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.presets import PRESETS, SCALES, preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training import hardware, metrics, run_dir
from tests.test_layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
NOTES = tuple(sorted(f"notes/{path.name}" for path in (ROOT / "notes").glob("*.md")))
GUIDE = "docs/guide.md"

Table = tuple[list[str], list[list[str]]]  # header, rows


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str, language: str) -> Iterator[tuple[int, str]]:
    """(line number, content) of each block of code in a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text(page), re.M | re.S):
        yield text(page)[: match.start(1)].count("\n"), match[1]


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)


def spans(page: str) -> list[str]:
    """The inline code of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def tables(page: str) -> list[Table]:
    """Every table of a page, its cells stripped."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", prose(page), re.M):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        header, _, *rows = [[cell.strip() for cell in line] for line in lines]
        found.append((header, rows))
    return found


def rows(page: str, head: str) -> list[list[str]]:
    """The rows of all tables whose first column has this head."""
    return [row for header, rows in tables(page) if header[0] == head for row in rows]


def settings(config: Any = None, prefix: str = "") -> dict[str, Any]:
    """Every setting as section.name, with its default."""
    found: dict[str, Any] = {}
    config = Config() if config is None else config
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            found |= settings(value, f"{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def shown(value: Any) -> str:
    """A value as the guide writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else value or "none"


# Code


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Training and evaluation as a reader calls them, in an empty folder, but short."""
    from lookfurther.training import train as training

    def train(config: Config, real: Any = training.train, **options: Any) -> Any:
        validate(config)
        short = {"run__steps": 400, "run__log_period": 100}
        small = {"actor__lanes": 4, "replay__learning_starts": 100, "replay__capacity": 4_000}
        plain = {"run__device": "cpu", "run__precision": "float32"}
        return real(replace(config, **short, **small, **plain), **options)

    def evaluate(agent: Any, episodes: int, real: Any = evaluation.evaluate, **options: Any) -> Any:
        return real(agent, min(episodes, 2), **options)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", ["README.md", GUIDE])
def test_the_code_runs(page: str, briefly: None, tmp_path: Path) -> None:
    """Every block of Python, one after another, and what its runs leave is what the guide says."""
    space: dict[str, Any] = {"__name__": "docs"}
    blocks = list(fences(page, "python"))
    assert blocks
    for line, code in blocks:
        exec(compile("\n" * line + code, ROOT / page, "exec"), space)
    runs = sorted((tmp_path / "runs").iterdir())
    assert runs
    told = {key.strip("`") for key, *_ in rows(GUIDE, "key")}
    held = {name.strip("`").partition("/")[0] for name, *_ in rows(GUIDE, "in the run folder")}
    for run in runs:
        last = metrics.read_metrics(run / "metrics.jsonl")[-1]
        assert last["updates"] > 0
        assert told - {"priority_expert", "evaluation_mean"} <= set(last) <= told
        assert {path.name for path in run.iterdir()} <= held


def test_the_guides_recipe_for_atari_makes_a_set_that_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    (code,) = (code for _, code in fences(GUIDE, "python") if "Tape(" in code)
    exec(code, {})
    assert main.main(["demos", "verify", str(tmp_path / "demos" / "pong" / "mine-v0")]) == 0
    assert "3 episodes, all equal" in capsys.readouterr().out


def shell(page: str) -> list[list[str]]:
    """The words of every line of shell."""
    lines = [line for _, code in fences(page, "sh") for line in code.splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


COMMANDS = [(page, words) for page in PAGES for words in shell(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[" ".join(w) for _, w in COMMANDS])
def test_shell_lines_are_understood(page: str, words: list[str]) -> None:
    """By the parser of the program itself; `test_docs_commands.py` runs them."""
    program, *rest = words
    UNDERSTOOD[program](rest)


# How the words of a command are parsed where something follows its name.
ASKED = {
    "bench": bench.parse_bench_options,
    "checkpoint": lambda words: parse_options(
        checkpoint.CheckpointOptions, checkpoint.CheckpointOptions(), words, "docs"
    ),
    "demos": demos.parse_subcommand,
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


def understood_by_us(words: list[str]) -> None:
    """Parsed and checked as the command would, without training."""
    if words[0] in ASKED and words[1:]:
        ASKED[words[0]](words[1:])
        return
    if words[0] != "train":
        assert words[0] in ("--help", "--version") or (words[0] in main.COMMANDS and not words[1:])
        return
    name, scale, rest = train.split_preset(words[1:])
    asked = train.TrainOptions(preset(name, scale))
    options = parse_options(train.TrainOptions, asked, [w for w in rest if w != "--help"], "docs")
    if "--help" not in rest:
        validate(options.config)


class Understood(Exception):
    """Options were parsed, and nothing else is to be done."""


def understood_by_module(words: list[str]) -> None:
    """`python -m module`: its own parser takes the options."""
    assert words[0] == "-m"
    module, take = importlib.import_module(words[1]), argparse.ArgumentParser.parse_args

    def parse_alone(parser: argparse.ArgumentParser) -> None:
        take(parser)
        raise Understood

    with (
        patch.object(sys, "argv", words[1:]),
        patch.object(argparse.ArgumentParser, "parse_args", parse_alone),
        pytest.raises(Understood),
    ):
        module.main()


def understood_by_make(words: list[str]) -> None:
    """A dry run."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def understood_by_pip(words: list[str]) -> None:
    name, *rest = words
    commands = pytest.importorskip("pip._internal.commands")
    options, _ = commands.create_command(name).parse_args(rest)
    assert options.editables


def understood_by_tensorboard(words: list[str]) -> None:
    from tensorboard import program

    program.TensorBoard().configure(argv=["tensorboard", *words])


UNDERSTOOD: dict[str, Callable[[list[str]], None]] = {
    "lookfurther": understood_by_us,
    "make": understood_by_make,
    "pip": understood_by_pip,
    "python": understood_by_module,
    "tensorboard": understood_by_tensorboard,
}


# Names


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, *NOTES])
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_modules_exist(page: str) -> None:
    for span in spans(page):
        if re.fullmatch(r"(lookfurther|tests|examples|benchmarks|docs)/[\w./]*", span):
            assert (ROOT / span).exists(), f"{page} names {span}"
        if re.fullmatch(r"lookfurther(\.\w+)+", span):
            module, _, name = span.rpartition(".")
            assert hasattr(importlib.import_module(module), name), f"{page} names {span}"


def defined(path: Path) -> set[str]:
    """The functions, classes and constants of a file, and the members of its classes."""

    def names(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in names(node.body))
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (t.id for t in targets if isinstance(t, ast.Name))

    return set(names(ast.parse(path.read_text()).body))


def test_every_name_of_paper_to_code_exists() -> None:
    """And every row of it has code and a test."""
    page = "docs/paper_to_code.md"
    for _, lines in tables(page):
        for row in lines:
            found = re.findall(r"`([\w/]+\.py):([\w.]+)`", " ".join(row))
            kinds = {file.startswith("test_") for file, _ in found}
            assert kinds == {True, False}, f"{row[0]} lacks code or a test"
    for file, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", text(page)):
        home = ROOT / ("tests" if file.startswith("test_") else "lookfurther") / file
        assert name in defined(home), f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: str) -> None:
    sections = "|".join(field.name for field in fields(Config) if "." not in field.name)
    for span in spans(page):
        match = re.match(rf"(--)?((?:{sections})\.(?!py\b)[\w-]+)", span)
        if match:
            name = match[2].replace("-", "_").replace(".no_", ".")
            assert name in settings(), f"{page} names {span}"


# Tables


def test_the_guide_lists_every_setting_with_its_default() -> None:
    listed = {name.strip("`"): default for name, default, _ in rows(GUIDE, "setting")}
    assert listed == {name: shown(value) for name, value in settings().items()}


@pytest.mark.parametrize(("head", "table"), [("preset", PRESETS), ("scale", SCALES)])
def test_the_guide_lists_every_preset_and_scale(head: str, table: dict[str, Any]) -> None:
    expected = {}
    for name, (_, overrides) in table.items():
        changes = [f"`{k.replace('__', '.')}` {shown(v)}" for k, v in overrides.items()]
        expected[f"`{name}`"] = ", ".join(changes) or "nothing"
    assert {row[0]: row[2] for row in rows(GUIDE, head)} == expected
    if head == "preset":
        assert [row[1] for row in rows(GUIDE, head)] == [place for place, _ in table.values()]


def test_the_guide_lists_what_a_resumed_run_may_change() -> None:
    told = re.search(r"only these may change: (.*?)\.\s", prose(GUIDE).replace("\n", " "))
    assert told is not None
    assert set(re.findall(r"`([^`]+)`", told[1])) == run_dir.CHANGEABLE_SETTINGS


def test_the_guide_lists_every_exit_code() -> None:
    kinds = errors.LookFurtherError.__subclasses__()
    codes = {0, errors.LookFurtherError.exit_code, *(kind.exit_code for kind in kinds)}
    assert [int(code) for code, _ in rows(GUIDE, "exit code")] == sorted(codes)


def test_the_guide_lists_every_extra() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = set(project["optional-dependencies"])
    assert {name.strip("`") for name, *_ in rows(GUIDE, "extra")} == extras
    for page in PAGES:
        for asked in re.findall(r"\.\[([\w,]+)\]", text(page)):
            assert set(asked.split(",")) <= extras


def test_memory_is_what_the_replay_takes() -> None:
    envs = {
        "Atari": "ALE/Pong-v5",
        "UnlockPickup": "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0",
        "CartPole": "CartPole-v1",
    }
    table = rows(GUIDE, "environment")
    assert {row[0] for row in table} == set(envs)
    for name, _, step, *totals in table:
        spec = get_spec(envs[name], Config().environment)
        horizons = len(Config().replay.horizons)
        sizes = [preset("no-demos", scale).replay.capacity for scale in ("small", "paper")]
        assert step == f"{PrioritizedReplay.estimate_bytes(spec, 1, horizons):,}"
        assert totals == [
            hardware.format_bytes(PrioritizedReplay.estimate_bytes(spec, n, horizons))
            for n in sizes
        ]


@pytest.mark.parametrize("page", [GUIDE, "docs/departures.md"])
def test_pages_give_the_cap_of_evaluation(page: str) -> None:
    assert re.search(rf"\b{evaluation.MAX_EPISODE_FRAMES:,}\s+(emulator\s+)?frames", text(page))


def messages() -> list[str]:
    """Every text of the package, with … where a value goes."""
    found = []
    for path in (ROOT / "lookfurther").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_message_in_troubleshooting_is_ours() -> None:
    ours = messages()
    table = rows(GUIDE, "message")
    assert table
    for message, _ in table:
        pattern = ".*".join(map(re.escape, message.strip("`").split("…")))
        assert any(re.search(pattern, one) for one in ours), message


def test_architecture_names_the_layers() -> None:
    told = {layer: set(re.findall(r"`(\w+)`", names)) for layer, names in layers()}
    assert told == {layer: set(names) - {"", "__main__"} for layer, names in LAYERS.items()}


def layers() -> list[list[str]]:
    return rows("docs/architecture.md", "layer")


def test_faults_page_names_tests_that_exist() -> None:
    defined = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", text("docs/faults.md")))
    assert len(named) > 40
    assert named <= defined


def test_results_page_has_tables_of_result_files() -> None:
    """`python -m benchmarks.results_page` renders them."""
    page = text("docs/results.md")
    assert results_page.render(page) == page
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(results_page.TABLES)


@pytest.mark.parametrize(
    ("page", "lines"), [("docs/results.md", 120), ("docs/performance.md", 150)]
)
def test_results_and_performance_pages_are_short(page: str, lines: int) -> None:
    assert len(text(page).splitlines()) <= lines
