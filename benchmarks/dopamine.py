"""Training returns of `dqn` and `rainbow` on Atari games next to Dopamine's published curves.

    python -m benchmarks.dopamine RUNS [--json FILE] [--figure FILE]

RUNS is a folder of run folders. A point of a curve is the mean return of the training episodes that
end within 250,000 agent steps. dopamine_published.json has five runs of each of Dopamine's agents.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.measure import add_json_option
from benchmarks.results_page import markdown_table
from lookfurther.config import Config, flatten_settings
from lookfurther.envs.naming import env_title
from lookfurther.errors import LookFurtherError
from lookfurther.presets import preset
from lookfurther.report.figure_style import (
    LINE_COLOURS,
    LineStyle,
    add_legend,
    create_panels,
    save_png,
    set_panel_title,
    set_xlabel,
    style_axes,
)
from lookfurther.system.files import write_text
from lookfurther.training.monitoring.episode_stats import RECENT_EPISODES
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.run_dir import CHANGEABLE_SETTINGS, read_config, read_versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED_FILE = Path(__file__).with_name("dopamine_published.json")
AGENTS = {"dqn": "DQN", "rainbow": "Rainbow"}  # Dopamine's names of the presets
STORED_VERSIONS = ("commit", "python", "torch", "ale-py", "gpu")
LINE_STYLES = {
    "dqn": LineStyle(LINE_COLOURS[0], "-"),
    "DQN, Dopamine": LineStyle(LINE_COLOURS[0], (0, (5, 1.5))),
    "rainbow": LineStyle(LINE_COLOURS[1], "-"),
    "Rainbow, Dopamine": LineStyle(LINE_COLOURS[1], (0, (5, 1.5))),
}
MetricRows = Sequence[Mapping[str, Any]]


class EpisodeSums(NamedTuple):
    """Sums of the returns of a run's first n episodes, for the numbers n in its metrics."""

    counts: np.ndarray  # n, increasing from 0
    sums: np.ndarray

    def sum_of_first(self, n: float) -> float:
        """The sum for any n, interpolated between the nearest known ones."""
        return float(np.interp(n, self.counts, self.sums))


class IterationReturn(NamedTuple):
    """The training episodes that ended in one iteration."""

    step: int  # agent steps at its end
    episodes: int
    mean_return: float


def sum_returns(rows: MetricRows) -> EpisodeSums:
    """Recover sums of returns from means of the last 100 episodes.

    The sum of the first n returns is that of the last 100 plus that of the first n - 100.
    """
    known = EpisodeSums(np.zeros(1), np.zeros(1))
    for row in rows:
        n, previous = row["episodes"], known.counts[-1]
        if n == previous:
            continue
        if n - previous > RECENT_EPISODES:
            raise LookFurtherError(
                f"{n - previous:.0f} episodes between two rows of metrics, at most"
                f" {RECENT_EPISODES} can be used: train with a smaller run.log_period"
            )
        recent = min(n, RECENT_EPISODES)
        total = known.sum_of_first(n - recent) + recent * row["return_mean"]
        known = EpisodeSums(np.append(known.counts, n), np.append(known.sums, total))
    return known


def iteration_returns(rows: MetricRows, iteration_steps: int) -> list[IterationReturn]:
    """The mean return of each complete iteration; one ends at the first row at or after its end."""
    known = sum_returns(rows)
    last_step = rows[-1]["step"] if rows else 0
    ends = range(iteration_steps, last_step + 1, iteration_steps)
    counts = [next(row["episodes"] for row in rows if row["step"] >= end) for end in ends]
    iterations = []
    for end, (before, after) in zip(ends, pairwise([0, *counts]), strict=True):
        if after == before:
            raise LookFurtherError(f"no episode ended in the {iteration_steps:,} steps to {end:,}")
        total = known.sum_of_first(after) - known.sum_of_first(before)
        iterations.append(IterationReturn(end, after - before, total / (after - before)))
    return iterations


def changed_settings(config: Config) -> dict[str, Any]:
    """The settings of a run that differ from its preset, without its seed, length and machine."""
    defaults = flatten_settings(preset(config.preset, env=config.env, run__seed=config.run.seed))
    settings = flatten_settings(config)
    changed = {name: value for name, value in settings.items() if value != defaults[name]}
    return {name: value for name, value in changed.items() if name not in CHANGEABLE_SETTINGS}


def compare_run(folder: Path, published: dict[str, Any]) -> dict[str, Any]:
    """The curve of a run and the published ones of the same game and agent."""
    config = read_config(folder / "config.json")
    game, agent = env_title(config.env), AGENTS.get(config.preset)
    curves = [c["runs"] for c in published["curves"] if (c["game"], c["agent"]) == (game, agent)]
    if not curves:
        raise LookFurtherError(f"{folder}: there is no published curve of {config.preset}, {game}")
    rows = read_metrics(folder / "metrics.jsonl")
    iterations = iteration_returns(rows, published["iteration_steps"])
    if not iterations:
        raise LookFurtherError(f"{folder} is shorter than {published['iteration_steps']:,} steps")
    versions = read_versions(folder / "versions.json")
    return {
        "game": game,
        "preset": config.preset,
        "seed": config.run.seed,
        "settings": changed_settings(config),
        "versions": {name: versions[name] for name in STORED_VERSIONS if name in versions},
        "minutes": round(rows[-1]["minutes"], 1),
        "steps": [iteration.step for iteration in iterations],
        "largest_gradient_norm": round(max(row.get("gradient_norm", 0.0) for row in rows), 3),
        "episodes": [iteration.episodes for iteration in iterations],
        "returns": [round(iteration.mean_return, 2) for iteration in iterations],
        "published": [run[: len(iterations)] for run in curves[0]],
    }


def compare_runs(folder: Path) -> dict[str, Any]:
    """The result file: every run in the folder next to the published curves."""
    published = json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))
    runs = sorted(path.parent for path in folder.glob("*/config.json"))
    if not runs:
        raise LookFurtherError(f"{folder} holds no runs: give a folder of run folders")
    compared = [compare_run(run, published) for run in runs]
    steps = published["iteration_steps"]
    return {"source": published["source"], "iteration_steps": steps, "runs": compared}


def curves_table(result: dict[str, Any]) -> str:
    """Our return, the mean of the published runs and their range, by iteration and run."""
    runs = result["runs"]
    rows = []
    for step in sorted({step for run in runs for step in run["steps"]}):
        cells = [
            _format_cell(run, run["steps"].index(step)) if step in run["steps"] else "–"
            for run in runs
        ]
        rows.append([f"{step:,}", *cells])
    return markdown_table(["steps", *(f"{run['game']}, `{run['preset']}`" for run in runs)], rows)


def _format_cell(run: dict[str, Any], index: int) -> str:
    values = [curve[index] for curve in run["published"] if index < len(curve)]
    ours = f"{run['returns'][index]:.1f}"
    if not values:
        return ours
    return f"{ours}; {np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def plot_returns(result: dict[str, Any]) -> Figure:
    """A panel per game: our runs, and the mean and range of the published ones."""
    games = list(dict.fromkeys(run["game"] for run in result["runs"]))
    figure, panels = create_panels(len(games))
    for axes, game in zip(panels, games, strict=True):
        style_axes(axes, "return" if axes is panels[0] else "")
        for run in (run for run in result["runs"] if run["game"] == game):
            ours, theirs = (
                LINE_STYLES[name] for name in (run["preset"], f"{AGENTS[run['preset']]}, Dopamine")
            )
            curves = np.array(run["published"])
            steps = run["steps"][: curves.shape[1]]
            axes.plot(run["steps"], run["returns"], color=ours.colour, linewidth=1.8)
            axes.plot(steps, curves.mean(0), color=theirs.colour, linestyle=theirs.dash)
            low, high = curves.min(0), curves.max(0)
            axes.fill_between(steps, low, high, color=theirs.colour, alpha=0.12, linewidth=0)
        set_panel_title(axes, game)
        set_xlabel(axes, "agent steps")
    add_legend(figure, list(LINE_STYLES), LINE_STYLES)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="a folder of run folders")
    parser.add_argument("--figure", type=Path, help="also draw the curves to this PNG file")
    add_json_option(parser)
    options = parser.parse_args()
    try:
        result = compare_runs(options.runs)
    except LookFurtherError as error:
        sys.exit(str(error))
    print(f"ours; mean (range) of {result['source']}\n\n{curves_table(result)}", end="")
    if options.json:
        write_text(options.json, json.dumps(result, indent=2) + "\n")
    if options.figure:
        save_png(plot_returns(result), options.figure)


if __name__ == "__main__":
    main()
