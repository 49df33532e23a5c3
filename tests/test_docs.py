"""The documentation matches the code: examples run, names exist, tables are current."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import runpy
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
from lookfurther.config import Config, replace
from lookfurther.envs import get_spec
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.training import hardware, run_dir
from lookfurther.training.monitoring import metrics
from lookfurther.validation import validate
from tests.test_layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
NOTES = tuple(sorted(f"notes/{path.name}" for path in (ROOT / "notes").glob("*.md")))
QUICKSTART, PYTHON, RUNS = "docs/quickstart.md", "docs/python.md", "docs/runs.md"

Table = tuple[list[str], list[list[str]]]  # header, rows


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str, language: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, content) of each code block in a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text(page), re.M | re.S):
        yield text(page)[: match.start(1)].count("\n"), match[1]


def prose(page: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)


def spans(page: str) -> list[str]:
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def tables(page: str) -> list[Table]:
    """Return every table of a page."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", prose(page), re.M):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        header, _, *rows = [[cell.strip() for cell in line] for line in lines]
        found.append((header, rows))
    return found


def rows(page: str, head: str) -> list[list[str]]:
    """Return the rows of all tables whose first column has this head."""
    return [row for header, rows in tables(page) if header[0] == head for row in rows]


def setting_names() -> set[str]:
    """Return every setting as section.name."""
    names = set()
    for field in fields(Config):
        section = getattr(Config(), field.name)
        is_section = is_dataclass(section)
        names |= {f"{field.name}.{f.name}" for f in fields(section)} if is_section else {field.name}
    return names


# Code


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shorten training and evaluation, and run in an empty folder."""
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


@pytest.mark.parametrize("page", ["README.md", PYTHON])
def test_python_code_runs(page: str, short_runs: None, tmp_path: Path) -> None:
    """Run every Python block in order; the runs write the documented files and metrics."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    blocks = list(fences(page, "python"))
    assert blocks
    for line, code in blocks:
        exec(compile("\n" * line + code, ROOT / page, "exec"), namespace)
    runs = sorted((tmp_path / "runs").iterdir())
    assert runs
    keys = {key.strip("`") for key, *_ in rows(RUNS, "key")}
    files = {name.strip("`").partition("/")[0] for name, *_ in rows(RUNS, "file or folder")}
    for run in runs:
        last = metrics.read_metrics(run / "metrics.jsonl")[-1]
        assert last["updates"] > 0
        optional = {"priority_expert", "expert_share", "evaluation_mean"}
        optional |= {"actors", "weights_age_seconds"}  # of a cluster
        assert keys - optional <= set(last) <= keys
        assert {path.name for path in run.iterdir()} <= files


def test_documented_atari_set_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    (code,) = (code for _, code in fences(PYTHON, "python") if "InputLog(" in code)
    exec(code, {})
    assert main.main(["demos", "verify", str(tmp_path / "demos" / "pong" / "mine-v0")]) == 0
    assert "3 episodes, all equal" in capsys.readouterr().out


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


# Names


def slug(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, *NOTES])
def test_links_and_images_exist(page: str) -> None:
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
    """Return the functions, classes, class members and constants of a file."""

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


def test_paper_to_code_names_exist() -> None:
    """Every row names code and a test."""
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
def test_documented_settings_exist(page: str) -> None:
    sections = "|".join(field.name for field in fields(Config) if "." not in field.name)
    for span in spans(page):
        match = re.match(rf"(--)?((?:{sections})\.(?!py\b)[\w-]+)", span)
        if match:
            name = match[2].replace("-", "_").replace(".no_", ".")
            assert name in setting_names(), f"{page} names {span}"


# Tables


def test_settings_page_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_settings.py"))
    assert text("docs/settings.md") == generator["generate_page"](), (
        "docs/settings.md is outdated: run python docs/generate_settings.py"
    )
    assert text("docs/presets.md") == generator["generate_presets_page"](), (
        "docs/presets.md is outdated: run python docs/generate_settings.py"
    )
    listed = {name.strip("`") for name, *_ in rows("docs/settings.md", "setting")}
    assert listed == setting_names()


def test_changeable_settings_are_documented() -> None:
    found = re.search(r"only these may change: (.*?)\.\s", prose(RUNS).replace("\n", " "))
    assert found is not None
    assert set(re.findall(r"`([^`]+)`", found[1])) == run_dir.CHANGEABLE_SETTINGS


def test_exit_codes_are_documented() -> None:
    kinds = errors.LookFurtherError.__subclasses__()
    codes = {0, errors.LookFurtherError.exit_code, *(kind.exit_code for kind in kinds)}
    assert [int(code) for code, _ in rows(RUNS, "exit code")] == sorted(codes)


def test_extras_are_documented() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = set(project["optional-dependencies"])
    assert {name.strip("`") for name, *_ in rows(QUICKSTART, "extra")} == extras
    for page in PAGES:
        for names in re.findall(r"\.\[([\w,]+)\]", text(page)):
            assert set(names.split(",")) <= extras


def test_documented_memory_matches_replay() -> None:
    envs = {
        "Atari": "ALE/Pong-v5",
        "UnlockPickup": "lookfurther.envs.minigrid:lookfurther/UnlockPickup-v0",
        "CartPole": "CartPole-v1",
    }
    table = rows(RUNS, "environment")
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


@pytest.mark.parametrize("page", [RUNS, "docs/departures.md"])
def test_evaluation_frame_limit_is_documented(page: str) -> None:
    assert re.search(rf"\b{evaluation.MAX_EPISODE_FRAMES:,}\s+(emulator\s+)?frames", text(page))


def messages() -> list[str]:
    """Return every string of the package, with … for inserted values."""
    found = []
    for path in (ROOT / "lookfurther").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_troubleshooting_messages_exist() -> None:
    strings = messages()
    table = rows("docs/troubleshooting.md", "message")
    assert table
    for message, _ in table:
        pattern = ".*".join(map(re.escape, message.strip("`").split("…")))
        assert any(re.search(pattern, string) for string in strings), message


def test_architecture_lists_layers() -> None:
    listed = [re.findall(r"`(\w+)`", names) for _, names in rows("docs/architecture.md", "layer")]
    assert listed == [[n for n in names if n not in ("", "__main__")] for names in LAYERS]


def test_faults_page_tests_exist() -> None:
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
