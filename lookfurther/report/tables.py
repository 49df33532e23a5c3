"""Tables of the runs themselves: training, evaluations, settings; corrections to the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lookfurther.config import flatten_settings
from lookfurther.envs.naming import env_title, is_atari
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.evaluation.paper_scores import PAPER_CORRECTIONS, START_TITLES
from lookfurther.evaluation.results import SUMMARY_STATISTICS, EvaluationConditions
from lookfurther.report.curves import RETURN_METRIC
from lookfurther.report.runs import BOOKKEEPING_SETTINGS, RunGroup, format_setting
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
    """One row for each group of runs; frames only if there are Atari games."""
    counts = {"step": "steps", "frames": "frames", "updates": "updates"}
    if not any(is_atari(group.env) for group in groups):
        del counts["frames"]
    header = ("environment", "variant", "seeds", *counts.values(), "minutes", "steps/s", "demos")
    header += ("return, low ε", "best return")
    caption = (
        f"Means over seeds; {', '.join(counts.values())} and minutes are those of one run. The"
        " return is the last one of the least exploring quarter of the lanes in training, with its"
        " 95 % interval over seeds; the best return is that of a single training episode. Demos:"
        " their share of a batch."
    )
    rows = [_run_row(group, list(counts)) for group in groups]
    return ReportTable("runs", "", caption, header, rows, text_columns=3)


def _run_row(group: RunGroup, counts: Sequence[str]) -> TableRow:
    return [
        text_cell(env_title(group.env)),
        text_cell(group.variant),
        text_cell(", ".join(str(run.config.run.seed) for run in group.runs)),
        *(
            EMPTY_CELL if key == "frames" and not is_atari(group.env) else _count_cell(group, key)
            for key in counts
        ),
        number_cell(_mean_last_value(group, "minutes")),
        _count_cell(group, "steps_per_second"),
        percent_cell(100 * _demo_share(group)),
        _final_return_cell(group),
        number_cell(max(_last_values(group, "return_best"), default=None)),
    ]


def _demo_share(group: RunGroup) -> float:
    """The share of demonstrations in a batch: the last measured one if it varies."""
    measured = _last_values(group, "expert_share")
    if measured:
        return sum(measured) / len(measured)
    return group.config.learner.expert_items / group.config.batch_size


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


RELATIVE_SCORES = {  # key of a summary: (header, caption)
    "human_normalised": (
        "human-normalised",
        " Human-normalised: 100 × (score − random) / (average human − random).",
    ),
    "expert_relative": (
        "expert-relative",
        " Expert-relative: 100 × (score − expert) / (expert − random); 0 is the expert.",
    ),
}


def evaluations_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """One row for each evaluation of each run; relative scores where there are references."""
    evaluated = [
        (group, run, evaluation)
        for group in groups
        for run in group.runs
        for evaluation in run.evaluations.values()
    ]
    if not evaluated:
        return None
    summaries = [evaluation.summary() for *_, evaluation in evaluated]
    relative = [key for key in RELATIVE_SCORES if any(s[key] is not None for s in summaries)]
    rows = []
    for (group, run, evaluation), summary in zip(evaluated, summaries, strict=True):
        texts = (env_title(group.env), group.variant, str(run.config.run.seed))
        conditions = describe_conditions(evaluation.conditions)
        cells = _summary_cells(summary, relative)
        rows.append([*map(text_cell, (*texts, conditions)), *cells])
    header = ("environment", "variant", "seed", "evaluation", "episodes", "mean", "median", "IQM")
    header += ("best", *(RELATIVE_SCORES[key][0] for key in relative))
    caption = "Episodes of each run's chosen weights, with 95 % bootstrap intervals over episodes."
    caption += "".join(RELATIVE_SCORES[key][1] for key in relative)
    return ReportTable("evaluations", "", caption, header, rows, text_columns=4)


def describe_conditions(conditions: EvaluationConditions) -> str:
    """Starts and sticky actions of an Atari evaluation, and epsilon."""
    parts = [f"ε {conditions.epsilon:g}"]
    if is_atari(conditions.env):
        parts.insert(0, START_TITLES[conditions.starts])
        parts += [f"sticky {conditions.sticky:g}"] * (conditions.sticky > 0)
    return ", ".join(parts)


def _summary_cells(summary: dict[str, Any], relative: Sequence[str]) -> list[TableCell]:
    estimates = [IntervalEstimate(**summary[name]) for name, _ in SUMMARY_STATISTICS]
    return [
        TableCell(f"{summary['episodes']:,}", summary["episodes"]),
        *(number_cell(estimate.value, format_interval(estimate)) for estimate in estimates),
        number_cell(summary["best"]),
        *(EMPTY_CELL if summary[k] is None else percent_cell(summary[k]) for k in relative),
    ]


def settings_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """The settings in which the groups differ."""
    flat = [flatten_settings(group.config) for group in groups]
    differing = [
        name
        for name in flat[0]
        if name not in BOOKKEEPING_SETTINGS
        and any(settings[name] != flat[0][name] for settings in flat)
    ]
    if not differing:
        return None
    header = ("setting", *(f"{env_title(group.env)}: {group.variant}" for group in groups))
    rows = [
        [text_cell(name), *(text_cell(format_setting(settings[name])) for settings in flat)]
        for name in differing
    ]
    caption = (
        "The settings in which the groups differ, without those that do not change learning: seed,"
        " folder, length, device, threads, processes, logging and checkpoints."
    )
    return ReportTable("settings", "", caption, header, rows, text_columns=len(header))


def corrections_table() -> ReportTable:
    """The places where the paper's own numbers disagree."""
    rows = [[text_cell(text) for text in correction] for correction in PAPER_CORRECTIONS]
    caption = "Where the paper's printed numbers disagree with one another, and what is done here."
    header = ("place", "printed", "here", "why")
    return ReportTable("corrections", "", caption, header, rows, text_columns=len(header))
