"""Reports: figures, the HTML page, and the files next to it."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.cli.main import main
from lookfurther.config import replace
from lookfurther.evaluation.paper_scores import game_titles
from lookfurther.evaluation.results import Evaluation, EvaluationConditions, ReturnCurve
from lookfurther.presets import preset
from lookfurther.report.comparison import plot_human_relative, plot_performance_profile
from lookfurther.report.figure_style import assign_line_styles, save_figure
from lookfurther.report.score_columns import RunScores, ScoreColumn
from tests.report_runs import BASE_CONFIG, make_rows, make_run, paper_runs, write_run_folder

ROOT = Path(__file__).parents[1]
REPORT_TIME = "1700000000"


# Figures


def bar_labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_human_relative_bars_match_hand_computation() -> None:
    """Pong: random −20.7, human 14.6; the paper's deeper agent 20.9."""
    columns = [ScoreColumn("ours", "ours", {"ALE/Pong-v5": RunScores(np.array([14.0, 15.2]))})]
    figure = plot_human_relative(columns, assign_line_styles(["ours"]), "noop")
    assert figure is not None
    assert bar_labels(figure) == ["0 %", "18 %"]
    unknown = [ScoreColumn("ours", "ours", {"CartPole-v1": RunScores(np.array([14.0]))})]
    assert plot_human_relative(unknown, assign_line_styles(["ours"]), "noop") is None


def test_profile_needs_comparable_scores() -> None:
    one = {"CartPole-v1": RunScores(np.array([1.0, 3.0]))}
    two = one | {"Acrobot-v1": RunScores(np.array([1.0, 2.0]))}
    styles = assign_line_styles(["a"])
    assert plot_performance_profile([ScoreColumn("a", "a", two)], styles) is None
    figure = plot_performance_profile([ScoreColumn("a", "a", one)], styles)
    assert figure is not None
    heights = np.ravel(figure.axes[0].lines[0].get_ydata())
    assert sorted(set(heights.tolist()), reverse=True) == [1.0, 0.5, 0.0]


def test_svg_keeps_text_and_rounds_paths(tmp_path: Path) -> None:
    """Paths are rounded and colours follow the theme; the visible numbers do not change."""
    styles = assign_line_styles(["a 0.12345"])
    values = np.array([0.123, 0.456])
    figure = plot_performance_profile(
        [ScoreColumn("a 0.12345", "a 0.12345", {"CartPole-v1": RunScores(values)})], styles
    )
    assert figure is not None
    svg = save_figure(figure, tmp_path / "a")
    words = ParsedPage(svg).words
    assert "a 0.12345" in words
    figure.draw_without_rendering()
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(ticks) > 3
    assert set(ticks) & set(words) >= set(ticks[1:-1])
    paths = re.findall(r' d="([^"]*)"', svg)
    assert paths
    assert not re.search(r"\.\d\d", " ".join(paths))
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        assert (tmp_path / f"a.{suffix}").read_bytes().startswith(start)


# The page


class ParsedPage(HTMLParser):
    """Tags, ids, link targets, loaded files and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "xlink:href", "src", "srcset", "data", "action") and value:
                (self.targets.add(value[1:]) if value[0] == "#" else self.loads.append(value))
            self.targets |= set(re.findall(r"url\(#([^)]+)\)", value or ""))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def report_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(runs, report) of two variants with two seeds on CartPole, and one run of Pong."""
    home = tmp_path_factory.mktemp("home")
    agent, expert = ReturnCurve.from_rewards(np.ones(60)), ReturnCurve.from_rewards(np.ones(40))
    for name, growth in (("no-demos", 1.0), ("<b>mine</b> & co", 2.0)):
        for seed in range(2):
            config = replace(preset("no-demos", env="CartPole-v1"), preset=name, run__seed=seed)
            scores = np.array([growth, growth + seed])
            best = {"agent": agent, "expert": expert}
            evaluation = Evaluation(
                EvaluationConditions(config.env), scores, np.array([60, 60]), best
            )
            write_run_folder(
                make_run(config, make_rows(growth), evaluation), home / "runs" / f"{growth}-{seed}"
            )
    pong = replace(preset("apex-dqn", env="ALE/Pong-v5"), environment__sticky_prob=0.25)
    write_run_folder(make_run(pong, make_rows(-1)), home / "runs" / "pong")
    unstarted = replace(pong, run__seed=9)
    write_run_folder(make_run(unstarted, []), home / "runs" / "unstarted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", REPORT_TIME)
        assert main(["report", str(home / "runs"), "--out", str(home / "report")]) == 0
    return home / "runs", home / "report"


def test_page_loads_no_other_file(report_folders: tuple[Path, Path]) -> None:
    text = (report_folders[1] / "index.html").read_text()
    page = ParsedPage(text)
    assert not page.loads
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed"}
    assert "@import" not in text
    assert page.targets <= page.ids
    assert {"runs", "curves", "scores", "comparison", "imitation", "training"} <= page.targets
    assert page.tags >= {"svg", "table", "nav", "details"}
    assert "var(--muted)" in text
    assert "#222222" not in text  # text follows the theme


def test_page_shows_names_as_text(report_folders: tuple[Path, Path]) -> None:
    text = (report_folders[1] / "index.html").read_text()
    words = " ".join(ParsedPage(text).words)
    assert "<b>mine</b> & co" in words  # as text, not as markup
    assert "<b>mine" not in text
    assert "trained with sticky actions, probability 0.25" in words
    assert "unstarted is left out: it holds no metrics yet" in words
    assert "apex-dqn, sticky 0.25" in words
    assert "no-demos, sticky" not in words


def test_csv_files_hold_the_numbers(report_folders: tuple[Path, Path]) -> None:
    out = report_folders[1]
    names = {path.name for path in out.iterdir()}
    pictures = {"curves_step.png", "curves_frames.png", "curves_minutes.png", "comparison.png"}
    pictures |= {"imitation.png", "improvement.png", "profile.png"}
    pictures |= {"comparison_training.png", "improvement_training.png"}
    pictures |= {"training_CartPole_v1.png", "training_ALE_Pong_v5.png"}
    assert {name for name in names if name.endswith(".png")} == pictures
    for name in pictures:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert {name.replace("png", "pdf"), name.replace("png", "svg")} <= names
    tables = {name[:-4] for name in names if name.endswith(".tex")}
    assert tables == {n[:-4] for n in names if n.endswith(".csv")} - {"curves", "scores"}
    with (out / "curves.csv").open() as file:
        points = [p for p in csv.DictReader(file) if p["axis"] == "step"]
    for point in points:
        growth = {"no-demos": 1.0, "<b>mine</b> & co": 2.0, "apex-dqn, sticky 0.25": -1.0}
        assert float(point["mean"]) == pytest.approx(
            growth[point["variant"]] * float(point["x"]) / 100
        )
        assert point["runs"] == ("1" if "Pong" in point["environment"] else "2")
    with (out / "scores.csv").open() as file:
        scores = [(s["column"], float(s["score"]), s["source"]) for s in csv.DictReader(file)]
    assert sorted(scores) == [
        ("<b>mine</b> & co", 2.0, "evaluation"),
        ("<b>mine</b> & co", 2.5, "evaluation"),
        ("<b>mine</b> & co", 10.0, "training"),
        ("<b>mine</b> & co", 10.0, "training"),
        ("apex-dqn, sticky 0.25", -5.0, "training"),
        ("no-demos", 1.0, "evaluation"),
        ("no-demos", 1.5, "evaluation"),
        ("no-demos", 5.0, "training"),
        ("no-demos", 5.0, "training"),
    ]


WITHOUT_TORCH = """
import sys
from lookfurther.cli.main import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.slow
def test_report_is_reproducible_without_torch(
    report_folders: tuple[Path, Path], tmp_path: Path
) -> None:
    runs, out = report_folders
    command = [sys.executable, "-c", WITHOUT_TORCH, "report", str(runs), "--out", str(tmp_path)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": REPORT_TIME}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"report: {tmp_path / 'index.html'}\n"
    for path in out.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_run_without_finished_episode_has_a_report(tmp_path: Path) -> None:
    run = make_run(
        preset("no-demos", env="CartPole-v1"), [{"step": 100, "return_low_epsilon": None}]
    )
    write_run_folder(run, tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    words = " ".join(ParsedPage((tmp_path / "out" / "index.html").read_text()).words)
    assert "no finished episode yet" in words
    assert "Ablation" not in words


def break_config(path: Path) -> None:
    (path / "config.json").write_text("{")


def break_versions(path: Path) -> None:
    (path / "versions.json").write_text("{")


def remove_metrics(path: Path) -> None:
    (path / "metrics.jsonl").unlink()


@pytest.mark.parametrize(
    ("damage", "arguments", "reason"),
    [
        (None, ["report"], "report needs a run folder, or a folder of them"),
        (None, ["report", "nowhere"], "nowhere holds no run: give run folders"),
        (None, ["report", "run", "--uot", "x"], "did you mean --out"),
        (None, ["report", "run", "--out", "run/lock"], "run/lock cannot hold the report"),
        (break_config, ["report", "run"], "config.json cannot be read: configuration is not JSON"),
        (break_versions, ["report", "run"], "versions.json cannot be read"),
        (remove_metrics, ["report", "run"], "run holds no metrics yet"),
    ],
)
def test_report_errors_are_one_line(
    damage: Callable[[Path], None] | None,
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_run_folder(make_run(BASE_CONFIG, make_rows(1)), tmp_path / "run")
    (path / "lock").touch()
    if damage is not None:
        damage(path)
    assert main(arguments) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(reason, error), error
    assert not (tmp_path / "report").exists() or not list((tmp_path / "report").iterdir())


@pytest.mark.slow
def test_report_of_fifty_runs(tmp_path: Path) -> None:
    """Ten games with five seeds each: every game has its panels and rows."""
    for i, run in enumerate(paper_runs("apex_dqfd")[:10]):
        for seed in range(5):
            config = replace(run.config, run__seed=seed)
            write_run_folder(
                make_run(config, make_rows(seed), *run.evaluations.values()),
                tmp_path / f"{i}-{seed}",
            )
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    words = ParsedPage((tmp_path / "out" / "index.html").read_text()).words
    for name in list(game_titles().values())[:10]:
        assert words.count(name) >= 5, name  # runs, three curves, scores
    assert "50" in words
