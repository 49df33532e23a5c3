"""The sections of a report.

Every table is also a CSV and a LaTeX file, every figure also a PNG, a PDF and an SVG file.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lookfurther.envs.naming import env_title, is_atari
from lookfurther.evaluation.paper_scores import START_TITLES
from lookfurther.report import comparison, figures, page, score_tables, tables
from lookfurther.report.curves import (
    RETURN_METRIC,
    TIME_AXES,
    compute_confidence_band,
    extract_curves,
)
from lookfurther.report.figure_style import assign_line_styles, save_figure
from lookfurther.report.figures import group_by_env
from lookfurther.report.latex import table_to_latex
from lookfurther.report.page import Section
from lookfurther.report.runs import RunGroup, preset_order
from lookfurther.report.score_columns import (
    ScoreColumn,
    ScoreSource,
    build_columns,
    lacks_evaluation,
    list_environments,
)
from lookfurther.report.table import ReportTable
from lookfurther.system.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE_PRESET = "apex-dqfd"  # the variant that others are compared with, if it is present
MAX_OPEN_GROUPS = 12  # a longer table of runs is folded
SEED_LINES_CAPTION = (
    "Return of the least exploring quarter of the lanes, mean of recent episodes. Thick lines are"
    " means over seeds with their 95 % bootstrap interval, thin lines single runs."
)
SEED_MEANS_CAPTION = "Over agent steps: means over seeds with their 95 % bootstrap interval."
SCORES_CAPTION = "rings are runs, discs their mean, bars its 95 % bootstrap interval."
IMPROVEMENT_CAPTION = (
    "probability that a run scores higher than one of {} on an environment of both, ties counting"
    " half, with 95 % stratified bootstrap intervals."
)
PROFILE_CAPTION = "performance profile, the share of runs with a score above each value."
HUMAN_RELATIVE_CAPTION = (
    "Human-relative score, {}: 100 × (score − average human) / (average human − random)."
)
IMITATION_CAPTION = (
    "Cumulative return of the best evaluated episode of each variant and of the best expert"
    " episode. A dot marks where an agent reaches the expert's final score."
)


class SectionBuilder:
    """Builds the sections and writes their files to one folder."""

    def __init__(self, groups: Sequence[RunGroup], out: Path) -> None:
        self.groups, self.out = groups, out
        # Training returns are compared only if some runs have nothing better.
        self.sources: tuple[ScoreSource, ...] = tuple(START_TITLES)
        if lacks_evaluation(groups):
            self.sources += ("training",)
        self.columns: dict[ScoreSource, list[ScoreColumn]] = {
            source: build_columns(groups, source) for source in self.sources
        }
        variants = [g.variant for g in sorted(groups, key=preset_order)]
        labels = [c.label for columns in self.columns.values() for c in columns]
        self.styles = assign_line_styles(variants + labels)

    def build_sections(self) -> list[Section]:
        """Build the sections for which these runs have data."""
        self._write_data()
        sections = (
            Section("runs", "Runs", self._runs_section()),
            Section("curves", "Learning curves", self._curves_section()),
            Section("scores", "Scores", self._scores_section()),
            Section("comparison", "Ablation and comparison", self._comparison_section()),
            Section("imitation", "Imitation against inspiration", self._imitation_section()),
            Section("training", "Training metrics", self._training_section()),
            Section("settings", "Settings", self._add_table(tables.settings_table(self.groups))),
        )
        return [section for section in sections if section.body]

    def _add_table(self, table: ReportTable | None) -> Markup:
        if table is None:
            return Markup()
        write_text(self.out / f"{table.name}.csv", table.to_csv())
        write_text(self.out / f"{table.name}.tex", table_to_latex(table))
        return page.render_table(table)

    def _add_figure(self, figure: Figure | None, name: str, caption: str) -> Markup:
        if figure is None:
            return Markup()
        return page.render_figure(save_figure(figure, self.out / name), caption)

    def _write_data(self) -> None:
        """Write the numbers behind curves and scores, for other tools."""
        points = []
        for group in self.groups:
            for axis in time_axes([group]):
                band = compute_confidence_band(extract_curves(group.runs, axis, RETURN_METRIC))
                for point in zip(*band, strict=True) if band is not None else ():
                    numbers = len(group.runs), *map(float, point)
                    points.append((group.env, group.variant, axis, *numbers))
        header = ("environment", "variant", "axis", "runs", "x", "mean", "low", "high")
        self._write_csv("curves", header, points)
        scores = [
            (env, column.label, _source_name(source, env), float(value))
            for source, columns in self.columns.items()
            for column in columns
            for env, score in column.scores.items()
            for value in score.values
        ]
        self._write_csv("scores", ("environment", "column", "source", "score"), scores)

    def _write_csv(
        self, name: str, header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
    ) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_text(self.out / f"{name}.csv", text.getvalue())

    def _runs_section(self) -> Markup:
        body = self._add_table(tables.runs_table(self.groups))
        if len(self.groups) <= MAX_OPEN_GROUPS:
            return body
        return page.render_details(f"All {len(self.groups)} groups", body)

    def _curves_section(self) -> Markup:
        parts = {}
        for axis, name in time_axes(self.groups).items():
            members = [group for group in self.groups if axis in time_axes([group])]
            figure = figures.plot_return_curves(members, self.styles, axis)
            parts[name] = self._add_figure(figure, f"curves_{axis}", "")
        return page.render_tabs("curves", parts) + page.render_caption(SEED_LINES_CAPTION)

    def _scores_section(self) -> Markup:
        body = Markup()
        for source in self.sources:
            body += self._add_table(score_tables.scores_table(self.groups, source))
        if evaluations := self._add_table(tables.evaluations_table(self.groups)):
            body += page.render_details("Every evaluation", evaluations)
        body += self._add_table(score_tables.normalised_table(self.groups))
        for source in self.sources:
            if source != "human":
                body += self._add_table(score_tables.pairwise_table(self.groups, source))
        for starts, name in START_TITLES.items():
            columns = self.columns[starts]
            figure = comparison.plot_human_relative(columns, self.styles, starts)
            caption = HUMAN_RELATIVE_CAPTION.format(name)
            body += self._add_figure(figure, f"human_relative_{starts}", caption)
        if any(map(is_atari, list_environments(self.columns["noop"]))):
            corrections = self._add_table(tables.corrections_table())
            body += page.render_details("Corrections to the paper's tables", corrections)
        return body

    def _comparison_section(self) -> Markup:
        body = self._compare_columns(self.columns["noop"], "", "Evaluated scores")
        training = self.columns.get("training", [])
        return body + self._compare_columns(training, "_training", "Returns in training")

    def _compare_columns(self, columns: Sequence[ScoreColumn], suffix: str, what: str) -> Markup:
        """Figures that compare variants by one kind of score."""
        if len(columns) < 2:
            return Markup()
        baseline = next((c for c in columns if c.variant == BASELINE_PRESET), columns[0])
        scores = comparison.plot_scores(columns, self.styles)
        improvement = comparison.plot_improvement(columns, baseline, self.styles)
        profile = comparison.plot_performance_profile(columns, self.styles)
        caption = IMPROVEMENT_CAPTION.format(baseline.label)
        return (
            self._add_figure(scores, f"comparison{suffix}", f"{what}: {SCORES_CAPTION}")
            + self._add_figure(improvement, f"improvement{suffix}", f"{what}: {caption}")
            + self._add_figure(profile, f"profile{suffix}", f"{what}: {PROFILE_CAPTION}")
        )

    def _imitation_section(self) -> Markup:
        figure = figures.plot_imitation(self.groups, self.styles)
        return self._add_figure(figure, "imitation", IMITATION_CAPTION)

    def _training_section(self) -> Markup:
        body = Markup()
        for env, members in group_by_env(self.groups).items():
            name = "training_" + re.sub(r"\W+", "_", env).strip("_")
            figure = figures.plot_training_metrics(members, self.styles)
            if figure is not None:
                part = self._add_figure(figure, name, SEED_MEANS_CAPTION)
                body += page.render_details(env_title(env), part, is_open=not body)
        return body


def time_axes(groups: Sequence[RunGroup]) -> dict[str, str]:
    """The axes of time and their titles; only Atari games have frames that are not steps."""
    has_frames = any(is_atari(group.env) for group in groups)
    return {axis: title for axis, title in TIME_AXES.items() if axis != "frames" or has_frames}


def _source_name(source: ScoreSource, env: str) -> str:
    """The source of a score in a CSV file."""
    if source == "training":
        return "training"
    return f"evaluation, {START_TITLES[source]}" if is_atari(env) else "evaluation"
