"""From runs to the tables and figures of docs/experiments.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import demonstrations, page, results
from experiments.experts import TASKS
from lookfurther.cli.main import main


def make_study() -> dict[str, Any]:
    """Two presets on two tasks; scores of the second half are random + share x range."""
    references = {
        "DeepSea": {"random": 0.0, "best": 1.0},
        "CartPole": {"random": 20.0, "best": 500.0},
    }
    shares = {"apex-dqfd": (0.9, 1.0), "no-tc": (0.4, 0.5)}
    runs = []
    for task, levels in references.items():
        width = levels["best"] - levels["random"]
        for name, values in shares.items():
            for seed, share in enumerate(values):
                scores = [0.0, 0.0, *[levels["random"] + share * width] * 2]
                row = {"task": task, "preset": name, "seed": seed, "minutes": 1.0}
                runs.append(row | {"steps": [1, 2, 3, 4], "scores": scores})
    return {"references": references, "runs": runs}


def test_scores_are_normalised_means_of_second_half() -> None:
    study = make_study()
    scores = results.preset_scores(study, "no-tc")
    assert {task: values.tolist() for task, values in scores.items()} == {
        "DeepSea": pytest.approx([40, 50]),
        "CartPole": pytest.approx([40, 50]),
    }
    lines = page.scores_table(study).splitlines()
    assert lines[2].startswith("| `apex-dqfd` | 95 (90 to 100) | 95 (90 to 100) | **95")
    difference = page.comparison_table(study).splitlines()[2].split(" | ")
    assert difference[0] == "| `no-tc`"
    assert difference[1] == "2"
    assert difference[2].startswith("-50.0 (")
    assert difference[3] == "0.00 |"


def test_missing_runs_are_left_out_of_tables() -> None:
    """A preset without runs on a task has no mean, and is compared on the other tasks."""
    study = make_study()
    study["runs"] = [r for r in study["runs"] if (r["task"], r["preset"]) != ("DeepSea", "no-tc")]
    assert page.scores_table(study).splitlines()[3] == "| `no-tc` | – | 45 (40 to 50) | **–** |"
    assert page.comparison_table(study).splitlines()[2].startswith("| `no-tc` | 1 | -50.0 (")


@pytest.mark.parametrize(
    ("estimate", "text"),
    [((1.5, 1.0, 2.0), "2 (1 to 2)"), ((-0.2, -0.3, 0.1), "0"), ((3.0, float("nan"), 1.0), "3")],
)
def test_interval_is_shown_if_known_and_wide(
    estimate: tuple[float, float, float], text: str
) -> None:
    assert page.format_interval(page.IntervalEstimate(*estimate)) == text


def test_study_is_read_as_written(tmp_path: Path) -> None:
    results.write_study(tmp_path / "x" / "study.json", make_study())
    assert results.load_study(tmp_path / "x" / "study.json") == make_study()


def test_tables_of_page_match_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.render_page(text) == text
    assert all(f"<!-- table: {name} -->" in text for name in page.TABLES)


TINY_STUDY = """
presets = ["apex-dqfd", "no-demos"]
scale = "small"
envs = ["experiments.tasks:DeepSea-v0"]
demos = ["study/{game}-v0"]
[budget]
steps = 400
[settings]
actor.lanes = 4
replay.capacity = 2000
replay.learning_starts = 100
network.hidden = [8]
[settings.run]
threads = 1
device = "cpu"
evaluate_period = 100
log_period = 100
evaluate_episodes = 1
"""


@pytest.mark.slow
def test_tiny_study_runs_from_demonstrations_to_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setattr(page, "STUDY_FILE", tmp_path / "study.json")
    demonstrations.save_demonstrations("DeepSea", TASKS["DeepSea"])
    (tmp_path / "tiny.toml").write_text(TINY_STUDY)
    words = ["suite", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "runs")]
    assert main([*words, "--modules", "experiments.tasks", "--parallel", "2"]) == 0
    results.write_study(page.STUDY_FILE, results.collect_study(tmp_path / "runs"))
    study = results.load_study(page.STUDY_FILE)
    assert [run["preset"] for run in study["runs"]] == ["apex-dqfd", "no-demos"]
    assert [run["steps"][-1] for run in study["runs"]] == [400, 400]
    assert page.scores_table(study).count("\n") == 2 + 2
    rows = tmp_path / "runs" / "experiments.tasks-DeepSea-v0-no-demos-0" / "metrics.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))  # not finished
    assert len(results.collect_study(tmp_path / "runs")["runs"]) == 1
    page.draw_figures(tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "experiments_scores.png",
        "experiments_curves.png",
        "experiments_values.png",
        "experiments_dopamine.png",
    }
