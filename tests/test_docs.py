"""The documentation matches the code: examples run, and names exist."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lookfurther.cli import main
from lookfurther.config import Config, replace
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.training.monitoring import metrics
from lookfurther.validation import validate
from tests.doc_pages import (
    COMPARISON,
    NOTES,
    PAGES,
    PYTHON,
    ROOT,
    RUNS,
    fences,
    prose,
    rows,
    setting_names,
    spans,
    tables,
    text,
)

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
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)


def cartpole_arrays() -> dict[str, Any]:
    """The arrays of docs/comparison.md: an episode of CartPole that pushes to one side."""
    env = gymnasium.make("CartPole-v1")
    steps = [(env.reset(seed=0)[0], None, False)]
    while not steps[-1][2]:
        steps.append(env.step(1)[:3])  # type: ignore[arg-type]
    return {
        "observations": np.array([step[0] for step in steps]),
        "actions": [1] * (len(steps) - 1),
        "rewards": [step[1] for step in steps[1:]],
    }


@pytest.mark.parametrize("page", ["README.md", PYTHON, COMPARISON])
def test_python_code_runs(page: str, short_runs: None, tmp_path: Path) -> None:
    """Run every Python block in order; the runs write the documented files and metrics."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    namespace |= cartpole_arrays() if page == COMPARISON else {}
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
        optional |= {"jump_start_gain", "jump_start_demo_gain", "jump_start_last_step"}
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
            pkgutil.resolve_name(span)  # raises if the page names something else


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
