"""The sections of a report; every table is also a CSV file and every figure a PNG file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookfurther.envs.naming import env_title, is_atari
from lookfurther.evaluation.paper_scores import START_TITLES
from lookfurther.report import comparison, figures, page, tables
from lookfurther.report.curves import TIME_AXES, compute_confidence_band, extract_curves
from lookfurther.report.figure_style import assign_line_styles, save_figure
from lookfurther.report.figures import group_by_env
from lookfurther.report.page import Section
from lookfurther.report.runs import RunGroup, preset_order
from lookfurther.report.score_columns import ScoreColumn, build_columns
from lookfurther.report.table import ReportTable
from lookfurther.system.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE_PRESET = "apex-dqfd"  # what the other variants are compared with, where it is among them
SEED_LINES_CAPTION = (
    "Thick lines are means over seeds in their 95 % bootstrap interval, thin lines single runs."
)
SEED_MEANS_CAPTION = "Over agent steps: means over seeds in their 95 % bootstrap interval."


class SectionBuilder:
    """Builds the sections and writes their files to one folder."""

    def __init__(self, groups: Sequence[RunGroup], out: Path) -> None:
        self.groups, self.out = groups, out
        self.noop_columns = build_columns(groups, "noop")
        variants = [g.variant for g in sorted(groups, key=preset_order)]
        labels = [c.label for starts in START_TITLES for c in build_columns(groups, starts)]
        self.styles = assign_line_styles(variants + labels)

    def build_sections(self) -> list[Section]:
        """All sections that these runs have something to show in."""
        self._write_data()
        built = (
            Section("runs", "Runs", self._runs_section()),
            Section("curves", "Learning curves", self._curves_section()),
            Section("scores", "Scores", self._scores_section()),
            Section("comparison", "Ablation and comparison", self._comparison_section()),
            Section("imitation", "Imitation against inspiration", self._imitation_section()),
            Section("training", "Inside the learner", self._training_section()),
            Section("settings", "Settings", self._add_table(tables.settings_table(self.groups))),
        )
        return [section for section in built if section.body]

    def _add_table(self, table: ReportTable | None) -> str:
        if table is None:
            return ""
        write_text(self.out / f"{table.name}.csv", table.to_csv())
        return page.render_table(table)

    def _add_figure(self, figure: Figure | None, name: str, caption: str) -> str:
        if figure is None:
            return ""
        return page.render_figure(save_figure(figure, self.out / f"{name}.png"), caption)

    def _write_data(self) -> None:
        """The numbers behind curves and scores, for other tools."""
        points = [
            (group.env, group.variant, axis, len(group.runs), *map(float, point))
            for group in self.groups
            for axis in TIME_AXES
            if (
                found := compute_confidence_band(
                    extract_curves(group.runs, axis, "return_low_epsilon")
                )
            )
            is not None
            for point in zip(*found, strict=True)
        ]
        header = ("environment", "variant", "axis", "runs", "x", "mean", "low", "high")
        self._write_csv("curves", header, points)
        values = [
            (env, column.label, starts, score.is_evaluated, float(value))
            for starts in START_TITLES
            for column in build_columns(self.groups, starts)
            for env, score in column.scores.items()
            for value in score.values
        ]
        self._write_csv("scores", ("environment", "column", "starts", "evaluated", "score"), values)

    def _write_csv(
        self, name: str, header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
    ) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_text(self.out / f"{name}.csv", text.getvalue())

    def _runs_section(self) -> str:
        body = self._add_table(tables.runs_table(self.groups))
        many = len(self.groups) > 12
        return page.render_details(f"All {len(self.groups)} groups", body) if many else body

    def _curves_section(self) -> str:
        drawn = {
            name: self._add_figure(
                figures.plot_return_curves(self.groups, self.styles, axis), f"curves_{axis}", ""
            )
            for axis, name in TIME_AXES.items()
        }
        said = "Return of the least exploring quarter of the lanes, mean of recent episodes."
        return page.render_tabs("curves", drawn) + page.render_caption(
            f"{said} {SEED_LINES_CAPTION}"
        )

    def _scores_section(self) -> str:
        body = "".join(
            self._add_table(tables.scores_table(self.groups, starts)) for starts in START_TITLES
        )
        if evaluations := self._add_table(tables.evaluations_table(self.groups)):
            body += page.render_details("Every evaluation", evaluations)
        body += self._add_table(tables.normalised_table(self.groups))
        body += self._add_table(tables.pairwise_table(self.groups))
        for starts, name in START_TITLES.items():
            figure = comparison.plot_human_relative(
                build_columns(self.groups, starts), self.styles, starts
            )
            caption = f"Human-relative score, {name}: 100 × (score − average human) / (average"
            caption += " human − random)."
            body += self._add_figure(figure, f"human_relative_{starts}", caption)
        if any(is_atari(group.env) for group in self.groups):
            body += page.render_details(
                "Corrections to the paper's tables", self._add_table(tables.corrections_table())
            )
        return body

    def _comparison_section(self) -> str:
        if len(self.noop_columns) < 2:
            return ""
        base = next(
            (c for c in self.noop_columns if c.variant == BASELINE_PRESET), self.noop_columns[0]
        )
        dots = "Scores: rings are runs, discs their mean, bars its 95 % bootstrap interval."
        chance = f"How probably a run beats one of {base.label} on an environment of both, ties"
        chance += " counting half, with 95 % stratified bootstrap intervals."
        above = "Performance profile: the share of runs whose score is above each value."
        return (
            self._add_figure(
                comparison.plot_scores(self.noop_columns, self.styles), "comparison", dots
            )
            + self._add_figure(self._plot_improvement(base), "improvement", chance)
            + self._add_figure(
                comparison.plot_performance_profile(self.noop_columns, self.styles),
                "profile",
                above,
            )
        )

    def _plot_improvement(self, baseline: ScoreColumn) -> Figure | None:
        return comparison.plot_improvement(self.noop_columns, baseline, self.styles)

    def _imitation_section(self) -> str:
        said = "Cumulative return of the best evaluated episode of each variant and of the best"
        said += " expert episode. A dot marks where an agent reaches the expert's final score."
        return self._add_figure(figures.plot_imitation(self.groups, self.styles), "imitation", said)

    def _training_section(self) -> str:
        envs = group_by_env(self.groups)
        parts = []
        for env, members in envs.items():
            name = "training_" + re.sub(r"\W+", "_", env).strip("_")
            drawn = self._add_figure(
                figures.plot_training_metrics(members, self.styles), name, SEED_MEANS_CAPTION
            )
            if drawn:
                parts.append(page.render_details(env_title(env), drawn, is_open=not parts))
        return "".join(parts)
