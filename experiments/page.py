"""Write the tables and figures of docs/experiments.md from the result files.

python -m experiments.page
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dopamine import curves_table, plot_returns
from benchmarks.measure import REPOSITORY_ROOT
from benchmarks.results_page import TABLE, load_result, markdown_table
from experiments.experts import TASKS
from experiments.figures import plot_curves, plot_scores, plot_values
from experiments.results import RESULTS_FOLDER, load_study, preset_scores
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.presets import PRESETS
from lookfurther.report.figure_style import save_png
from lookfurther.system.files import write_text

PAGE = REPOSITORY_ROOT / "docs" / "experiments.md"
IMAGES = REPOSITORY_ROOT / "docs" / "images"
STUDY_FILE = RESULTS_FOLDER / "hour.json"
STABILITY_FILE = RESULTS_FOLDER / "stability.json"
BASELINE = "apex-dqfd"


def study_tasks(study: dict[str, Any]) -> list[str]:
    """The tasks of a study, in the order of the list of tasks."""
    return [name for name in TASKS if name in study["references"]]


def study_presets(study: dict[str, Any]) -> list[str]:
    """The presets of a study, in the order of the list of presets."""
    found = {run["preset"] for run in study["runs"]}
    return [name for name in PRESETS if name in found]


def format_interval(estimate: IntervalEstimate, digits: int = 0) -> str:
    """A value with its interval, or alone if the interval is narrower than a digit or unknown."""
    value, low, high = (f"{round(number, digits) + 0.0:.{digits}f}" for number in estimate)
    is_shown = np.isfinite(estimate.low) and not low == high == value
    return f"{value} ({low} to {high})" if is_shown else value


def scores_table(study: dict[str, Any]) -> str:
    """Normalised scores by preset and task, and the mean over tasks if a preset has all."""
    tasks = study_tasks(study)
    rows = []
    for name in study_presets(study):
        scores = preset_scores(study, name)
        cells = [_format_mean([scores[task]]) if task in scores else "–" for task in tasks]
        overall = _format_mean(list(scores.values())) if len(scores) == len(tasks) else "–"
        rows.append([f"`{name}`", *cells, f"**{overall}**"])
    return markdown_table(["preset", *tasks, "mean"], rows)


def _format_mean(strata: aggregates.Strata) -> str:
    return format_interval(aggregates.estimate_with_interval(strata, aggregates.mean))


def comparison_table(study: dict[str, Any]) -> str:
    """Every preset against the baseline: difference of means and probability of improvement."""
    baseline = preset_scores(study, BASELINE)
    rows = []
    for name in study_presets(study):
        if name == BASELINE:
            continue
        scores = preset_scores(study, name)
        common = [task for task in scores if task in baseline]
        ours, theirs = ([part[task] for task in common] for part in (scores, baseline))
        difference = estimate_difference(ours, theirs)
        improvement = aggregates.estimate_improvement(ours, theirs)
        cells = [format_interval(difference, 1), format_interval(improvement, 2)]
        rows.append([f"`{name}`", str(len(common)), *cells])
    header = ["preset", "tasks", "mean score minus that of `apex-dqfd`"]
    return markdown_table([*header, "probability of a higher score"], rows)


def estimate_difference(ours: aggregates.Strata, theirs: aggregates.Strata) -> IntervalEstimate:
    """The difference of the means over tasks with its interval, both sides resampled."""

    def statistic(strata: aggregates.Strata) -> np.ndarray:
        return aggregates.mean(strata[: len(ours)]) - aggregates.mean(strata[len(ours) :])

    return aggregates.estimate_with_interval([*ours, *theirs], statistic)


def references_table(study: dict[str, Any]) -> str:
    """The returns that are 0 % and 100 %."""
    rows = [
        [task, f"{references['random']:,.4g}", f"{references['best']:,.6g}"]
        for task, references in study["references"].items()
    ]
    return markdown_table(["task", "random play, 0 %", "best policy, 100 %"], rows)


def stability_table(rows: Sequence[dict[str, Any]]) -> str:
    """Errors of the learned values by discount factor, with and without the TC loss."""
    lines = []
    for gamma in dict.fromkeys(row["gamma"] for row in rows):
        cells = [f"{gamma}"]
        for name in ("apex-dqfd", "no-tc"):
            members = [r for r in rows if (r["gamma"], r["preset"]) == (gamma, name)]
            known = [row for row in members if "failure" not in row]
            failed = f", {len(members) - len(known)} diverged" if len(known) < len(members) else ""
            for key in ("error", "bias", "share_of_best"):
                values = [100 * row[key] for row in known]
                cells.append(_mean_and_range(values) + (failed if key == "error" else ""))
        lines.append(cells)
    parts = ("error", "bias", "policy")
    header = ["γ", *(f"{part}, {with_} TC" for with_ in ("with", "without") for part in parts)]
    return markdown_table(header, lines)


def _mean_and_range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean, low, high = (f"{value:.0f}" for value in (np.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def load_stability() -> list[dict[str, Any]]:
    return json.loads(STABILITY_FILE.read_text(encoding="utf-8"))["rows"]


TABLES: dict[str, Callable[[], str]] = {
    "references": lambda: references_table(load_study(STUDY_FILE)),
    "scores": lambda: scores_table(load_study(STUDY_FILE)),
    "comparison": lambda: comparison_table(load_study(STUDY_FILE)),
    "stability": lambda: stability_table(load_stability()),
    "dopamine": lambda: curves_table(load_result("dopamine")),
}


def render_page(page: str) -> str:
    """The page with the content of every table replaced."""
    return TABLE.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", page)


def draw_figures(folder: Path) -> None:
    """Draw the figures of the page."""
    study = load_study(STUDY_FILE)
    tasks, presets = study_tasks(study), study_presets(study)
    save_png(plot_scores(study, presets), folder / "experiments_scores.png")
    save_png(plot_curves(study, tasks), folder / "experiments_curves.png")
    save_png(plot_values(load_stability()), folder / "experiments_values.png")
    save_png(plot_returns(load_result("dopamine")), folder / "experiments_dopamine.png")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    write_text(PAGE, render_page(PAGE.read_text(encoding="utf-8")))
    draw_figures(IMAGES)


if __name__ == "__main__":
    main()
