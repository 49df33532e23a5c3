"""The sections of a report; every table is also a CSV file and every figure a PNG file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookfurther.evaluation.paper_scores import STARTS, game_of
from lookfurther.report import comparison, figures, page, tables
from lookfurther.report.curves import AXES, band, lines
from lookfurther.report.figure_style import looks, save
from lookfurther.report.figures import by_env
from lookfurther.report.page import Section
from lookfurther.report.runs import Group, order
from lookfurther.report.score_columns import Column, columns, title
from lookfurther.report.table import Table
from lookfurther.training.run_dir import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "apex-dqfd"  # what the other variants are compared with, where it is among them
SEEDS = "Thick lines are means over seeds in their 95 % bootstrap interval, thin lines single runs."
MEANS = "Over agent steps: means over seeds in their 95 % bootstrap interval."


class Builder:
    """Builds the sections and writes their files to one folder."""

    def __init__(self, groups: Sequence[Group], out: Path) -> None:
        self.groups, self.out = groups, out
        self.noop = columns(groups, "noop")
        variants = [g.variant for g in sorted(groups, key=order)]
        labels = [c.label for starts in STARTS for c in columns(groups, starts)]
        self.looks = looks(variants + labels)

    def sections(self) -> list[Section]:
        """All sections that these runs have something to show in."""
        self._data()
        built = (
            Section("runs", "Runs", self._runs()),
            Section("curves", "Learning curves", self._curves()),
            Section("scores", "Scores", self._scores()),
            Section("comparison", "Ablation and comparison", self._comparison()),
            Section("imitation", "Imitation against inspiration", self._imitation()),
            Section("training", "Inside the learner", self._training()),
            Section("settings", "Settings", self._table(tables.settings_table(self.groups))),
        )
        return [section for section in built if section.body]

    def _table(self, table: Table | None) -> str:
        if table is None:
            return ""
        write_text(self.out / f"{table.name}.csv", table.csv())
        return page.table(table)

    def _figure(self, figure: Figure | None, name: str, caption: str) -> str:
        if figure is None:
            return ""
        return page.figure(save(figure, self.out / f"{name}.png"), caption)

    def _data(self) -> None:
        """The numbers behind curves and scores, for other tools."""
        points = [
            (group.env, group.variant, axis, len(group.runs), *map(float, point))
            for group in self.groups
            for axis in AXES
            if (found := band(lines(group.runs, axis, "return_low_epsilon"))) is not None
            for point in zip(*found, strict=True)
        ]
        header = ("environment", "variant", "axis", "runs", "x", "mean", "low", "high")
        self._csv("curves", header, points)
        values = [
            (env, column.label, starts, score.evaluated, float(value))
            for starts in STARTS
            for column in columns(self.groups, starts)
            for env, score in column.scores.items()
            for value in score.values
        ]
        self._csv("scores", ("environment", "column", "starts", "evaluated", "score"), values)

    def _csv(self, name: str, header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_text(self.out / f"{name}.csv", text.getvalue())

    def _runs(self) -> str:
        body = self._table(tables.runs_table(self.groups))
        many = len(self.groups) > 12
        return page.fold(f"All {len(self.groups)} groups", body) if many else body

    def _curves(self) -> str:
        drawn = {
            name: self._figure(figures.curves(self.groups, self.looks, axis), f"curves_{axis}", "")
            for axis, name in AXES.items()
        }
        said = "Return of the least exploring quarter of the lanes, mean of recent episodes."
        return page.tabs("curves", drawn) + page.caption(f"{said} {SEEDS}")

    def _scores(self) -> str:
        body = "".join(self._table(tables.scores_table(self.groups, starts)) for starts in STARTS)
        if evaluations := self._table(tables.evaluations_table(self.groups)):
            body += page.fold("Every evaluation", evaluations)
        body += self._table(tables.normalised_table(self.groups))
        body += self._table(tables.pairs_table(self.groups))
        for starts, name in STARTS.items():
            figure = comparison.human_relative(columns(self.groups, starts), self.looks, starts)
            caption = f"Human-relative score, {name}: 100 × (score − average human) / (average"
            caption += " human − random)."
            body += self._figure(figure, f"human_relative_{starts}", caption)
        if any(game_of(group.env) for group in self.groups):
            body += page.fold(
                "Corrections to the paper's tables", self._table(tables.corrections_table())
            )
        return body

    def _comparison(self) -> str:
        if len(self.noop) < 2:
            return ""
        base = next((c for c in self.noop if c.variant == BASE), self.noop[0])
        dots = "Scores: rings are runs, discs their mean, bars its 95 % bootstrap interval."
        chance = f"How probably a run beats one of {base.label} on an environment of both, ties"
        chance += " counting half, with 95 % stratified bootstrap intervals."
        above = "Performance profile: the share of runs whose score is above each value."
        return (
            self._figure(comparison.scores(self.noop, self.looks), "comparison", dots)
            + self._figure(self._improvement(base), "improvement", chance)
            + self._figure(comparison.profile(self.noop, self.looks), "profile", above)
        )

    def _improvement(self, base: Column) -> Figure | None:
        return comparison.improvement(self.noop, base, self.looks)

    def _imitation(self) -> str:
        said = "Cumulative return of the best evaluated episode of each variant and of the best"
        said += " expert episode. A dot marks where an agent reaches the expert's final score."
        return self._figure(figures.imitation(self.groups, self.looks), "imitation", said)

    def _training(self) -> str:
        envs = by_env(self.groups)
        parts = []
        for env, members in envs.items():
            name = "training_" + re.sub(r"\W+", "_", env).strip("_")
            drawn = self._figure(figures.training(members, self.looks), name, MEANS)
            if drawn:
                parts.append(page.fold(title(env), drawn, opened=not parts))
        return "".join(parts)
