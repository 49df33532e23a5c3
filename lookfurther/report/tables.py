"""Tables of the runs themselves: training, evaluations, settings; corrections to the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lookfurther.config import SEED_SETTINGS, flatten_settings
from lookfurther.envs.naming import env_title
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.evaluation.paper_scores import PAPER_CORRECTIONS
from lookfurther.evaluation.results import SUMMARY_STATISTICS, Evaluation
from lookfurther.report.curves import RETURN_METRIC
from lookfurther.report.runs import RunGroup, format_setting
from lookfurther.report.table import (
    EMPTY_CELL,
    ReportTable,
    TableCell,
    TableRow,
    format_count,
    format_interval,
    number_cell,
    percent_cell,
    text_cell,
)


def runs_table(groups: Sequence[RunGroup]) -> ReportTable:
    """One row for each group of runs."""
    header = ("environment", "variant", "seeds", "steps", "frames", "updates", "minutes")
    header += ("steps/s", "demos", "return, low ε", "best return")
    caption = (
        "Means over seeds; steps, frames, updates and minutes are those of one run. The return is"
        " the last one of the least exploring quarter of the lanes, with its 95 % interval over"
        " seeds; the best return is that of a single training episode. Demos: their share of a"
        " batch."
    )
    rows = [_run_row(group) for group in groups]
    return ReportTable("runs", "", caption, header, rows, text_columns=3)


def _run_row(group: RunGroup) -> TableRow:
    demo_share = 100 * group.config.learner.expert_items / group.config.batch_size
    return [
        text_cell(env_title(group.env)),
        text_cell(group.variant),
        text_cell(", ".join(str(run.config.run.seed) for run in group.runs)),
        *(_count_cell(group, key) for key in ("step", "frames", "updates")),
        number_cell(_mean_last_value(group, "minutes")),
        _count_cell(group, "steps_per_second"),
        percent_cell(demo_share),
        _final_return_cell(group),
        number_cell(max(_last_values(group, "return_best"), default=None)),
    ]


def _last_values(group: RunGroup, key: str) -> list[float]:
    return [value for run in group.runs if (value := run.last_value(key)) is not None]


def _mean_last_value(group: RunGroup, key: str) -> float | None:
    values = _last_values(group, key)
    return float(np.mean(values)) if values else None


def _count_cell(group: RunGroup, key: str) -> TableCell:
    value = _mean_last_value(group, key)
    return EMPTY_CELL if value is None else TableCell(format_count(value), value)


def _final_return_cell(group: RunGroup) -> TableCell:
    values = _last_values(group, RETURN_METRIC)
    if not values:
        return EMPTY_CELL
    estimate = aggregates.estimate_with_interval([np.array(values)], aggregates.mean)
    return number_cell(estimate.value, format_interval(estimate))


def evaluations_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """One row for each evaluation of each run."""
    rows = []
    for group in groups:
        for run in group.runs:
            for name, evaluation in run.evaluations.items():
                texts = (env_title(group.env), group.variant, str(run.config.run.seed), name)
                rows.append([*map(text_cell, texts), *_summary_cells(evaluation)])
    if not rows:
        return None
    header = ("environment", "variant", "seed", "evaluation", "episodes", "mean", "median", "IQM")
    header += ("best", "human-normalised", "expert-relative")
    caption = (
        "Episodes of each run's chosen weights, with 95 % bootstrap intervals over episodes."
        " Expert-relative: 100 × (score − expert) / (expert − random); 0 is the expert."
    )
    return ReportTable("evaluations", "", caption, header, rows, text_columns=4)


def _summary_cells(evaluation: Evaluation) -> list[TableCell]:
    summary = evaluation.summary()
    estimates = [IntervalEstimate(**summary[name]) for name, _ in SUMMARY_STATISTICS]
    percentages = [summary[key] for key in ("human_normalised", "expert_relative")]
    return [
        TableCell(f"{summary['episodes']:,}", summary["episodes"]),
        *(number_cell(estimate.value, format_interval(estimate)) for estimate in estimates),
        number_cell(summary["best"]),
        *(EMPTY_CELL if value is None else percent_cell(value) for value in percentages),
    ]


def settings_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """The settings in which the groups differ."""
    flat = [flatten_settings(group.config) for group in groups]
    differing = [
        name
        for name in flat[0]
        if name not in SEED_SETTINGS and any(settings[name] != flat[0][name] for settings in flat)
    ]
    if not differing:
        return None
    header = ("setting", *(f"{env_title(group.env)}: {group.variant}" for group in groups))
    rows = [
        [text_cell(name), *(text_cell(format_setting(settings[name])) for settings in flat)]
        for name in differing
    ]
    caption = "The settings in which the groups differ, except seed and folder."
    return ReportTable("settings", "", caption, header, rows, text_columns=len(header))


def corrections_table() -> ReportTable:
    """The places where the paper's own numbers disagree."""
    rows = [[text_cell(text) for text in correction] for correction in PAPER_CORRECTIONS]
    caption = "Where the paper's printed numbers disagree with one another, and what is done here."
    header = ("place", "printed", "here", "why")
    return ReportTable("corrections", "", caption, header, rows, text_columns=len(header))
