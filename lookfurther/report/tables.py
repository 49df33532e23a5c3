"""The paper's tables with our runs beside its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lookfurther.config import SEED_SETTINGS, flatten_settings
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate, Statistic
from lookfurther.evaluation.paper_scores import (
    PAPER_AGENTS,
    PAPER_CORRECTIONS,
    PAPER_PLAYERS,
    START_TITLES,
    StartType,
    game_of,
    game_titles,
    printed_scores,
)
from lookfurther.evaluation.paper_scores import reference_table as known
from lookfurther.evaluation.results import SUMMARY_STATISTICS, Evaluation
from lookfurther.report.runs import RunGroup, format_setting
from lookfurther.report.score_columns import (
    ScoreColumn,
    build_columns,
    common_environments,
    env_title,
    human_normalised_scores,
    list_environments,
)
from lookfurther.report.table import (
    ReportTable,
    TableCell,
    format_count,
    format_interval,
    number_cell,
    percent_cell,
    text_cell,
)

UNEVALUATED_MARK = "†"
AGGREGATE_STATISTICS = (
    ("mean", aggregates.mean),
    ("median", aggregates.median),
    ("IQM", aggregates.iqm),
)

ColumnBlock = tuple[list[str], dict[str, list[TableCell]]]  # header, cells by algorithm


def runs_table(groups: Sequence[RunGroup]) -> ReportTable:
    """What was trained: a row for each group."""
    header = ("environment", "variant", "seeds", "steps", "frames", "updates", "minutes")
    header += ("steps/s", "demos", "return, low ε", "best return")
    rows = []
    for group in groups:
        learner = group.config.learner
        share = 100 * learner.expert_items / group.config.batch_size
        rows.append(
            [
                text_cell(env_title(group.env)),
                text_cell(group.variant),
                text_cell(", ".join(str(run.config.run.seed) for run in group.runs)),
                *(_count_cell(group, key) for key in ("step", "frames", "updates")),
                number_cell(_mean_last_value(group, "minutes")),
                _count_cell(group, "steps_per_second"),
                percent_cell(share),
                _final_return_cell(group),
                number_cell(max((_last_values(group, "return_best")), default=None)),
            ]
        )
    caption = (
        "Means over seeds; steps, frames, updates and minutes are those of one run. The return is"
        " the last one of the least exploring quarter of the lanes, with its 95 % interval over"
        " seeds, the best return that of a single training episode. Demos: their share of a batch."
    )
    return ReportTable("runs", "", caption, header, rows, text_columns=3)


def _last_values(group: RunGroup, key: str) -> list[float]:
    return [value for run in group.runs if (value := run.last_value(key)) is not None]


def _mean_last_value(group: RunGroup, key: str) -> float | None:
    values = _last_values(group, key)
    return float(np.mean(values)) if values else None


def _count_cell(group: RunGroup, key: str) -> TableCell:
    value = _mean_last_value(group, key)
    return TableCell("–") if value is None else TableCell(format_count(value), value)


def _final_return_cell(group: RunGroup) -> TableCell:
    values = _last_values(group, "return_low_epsilon")
    if not values:
        return TableCell("–")
    found = aggregates.estimate_with_interval([np.array(values)], aggregates.mean)
    return number_cell(found.value, format_interval(found))


def evaluations_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """Each run's evaluations: statistics of their episodes."""
    rows = []
    for group in groups:
        for run in group.runs:
            for name, evaluation in run.evaluations.items():
                first = (env_title(group.env), group.variant, str(run.config.run.seed), name)
                rows.append([*map(text_cell, first), *_summary_cells(evaluation)])
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
    """The summary of one evaluation as cells."""
    told = evaluation.summary()
    estimates = [IntervalEstimate(**told[kind]) for kind, _ in SUMMARY_STATISTICS]
    shares = [told[key] for key in ("human_normalised", "expert_relative")]
    return [
        TableCell(f"{told['episodes']:,}", told["episodes"]),
        *(number_cell(found.value, format_interval(found)) for found in estimates),
        number_cell(told["best"]),
        *(TableCell("–") if share is None else percent_cell(share) for share in shares),
    ]


def scores_table(groups: Sequence[RunGroup], starts: StartType) -> ReportTable | None:
    """Tables 3 and 4: environments by variants, then the paper's columns for its games."""
    ours = build_columns(groups, starts)
    envs = list_environments(ours)
    if not envs:
        return None
    printed_too = any(game_of(env) in printed_scores(starts) for env in envs)
    theirs = PAPER_AGENTS | PAPER_PLAYERS if printed_too else {}
    rows = [[text_cell(env_title(env)), *_score_cells(env, ours, theirs, starts)] for env in envs]
    which = {"noop": "Table 3", "human": "Table 4"}[starts]
    regime = (
        START_TITLES[starts] if any(map(game_of, envs)) else "whole episodes"
    )  # no-ops are Atari's
    caption = f"In the form of {which}: {regime}, mean score of each run's episodes and 95 %"
    caption += " interval over seeds. The best of a row is bold."
    if any(not score.is_evaluated for column in ours for score in column.scores.values()):
        caption += (
            f" {UNEVALUATED_MARK} not evaluated: the last return of the low-ε lanes in training."
        )
    if starts == "human" and printed_too:
        caption += " The starts were drawn from our own demonstrations, not those of the paper."
    header = ("environment", *(column.label for column in ours), *theirs.values())
    return ReportTable(
        f"scores_{starts}", f"Scores, {regime}", caption, header, rows, paper_columns=len(theirs)
    )


def _score_cells(
    env: str, ours: Sequence[ScoreColumn], theirs: Mapping[str, str], starts: StartType
) -> list[TableCell]:
    """A row: our columns and the paper's, the highest score bold."""
    row = printed_scores(starts).get(game_of(env) or "", {})
    means = [column.scores[env].mean_estimate if env in column.scores else None for column in ours]
    top = max([m.value for m in means if m] + [row[name] for name in theirs if name in row])
    cells = []
    for column, mean in zip(ours, means, strict=True):
        if mean is None:
            cells.append(TableCell("–"))
        else:
            mark = "" if column.scores[env].is_evaluated else UNEVALUATED_MARK
            cells.append(
                number_cell(mean.value, format_interval(mean), mark, is_best=mean.value == top)
            )
    return cells + [number_cell(row.get(name), is_best=row.get(name) == top) for name in theirs]


def normalised_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """Table 2: human-normalised aggregates, the paper's agents on the same games and on its 42."""
    blocks: list[ColumnBlock] = []
    used = []
    for starts, name in START_TITLES.items():
        ours = build_columns(groups, starts)
        envs = [env for env in common_environments(ours) if game_of(env) in known(starts)]
        if envs:
            strata = {
                column.label: human_normalised_scores(column, envs, starts) for column in ours
            }
            strata |= _paper_strata([game_of(env) or "" for env in envs], starts)
            blocks.append(
                _aggregate_block(
                    f"{name}, {len(envs)} game{'s' * (len(envs) != 1)}",
                    strata,
                    AGGREGATE_STATISTICS,
                )
            )
            used.append(f"{name}: {', '.join(map(env_title, envs))}")
    if not blocks:
        return None
    everything = _paper_strata(game_titles(), "noop")
    blocks.append(
        _aggregate_block("no-op starts, the paper's 42 games", everything, AGGREGATE_STATISTICS[:2])
    )
    labels = dict.fromkeys(label for _, cells in blocks for label in cells)
    rows = [
        [
            text_cell(a),
            *(c for head, cells in blocks for c in cells.get(a, [TableCell("–")] * len(head))),
        ]
        for a in labels
    ]
    caption = (
        "In the form of Table 2: 100 × (score − random) / (average human − random) over the games"
        f" that all our columns have ({'; '.join(used)}), with 95 % stratified bootstrap intervals"
        " over seeds; beside them the paper's agents on the same games, and on its 42."
    )
    header = ("algorithm", *(text for head, _ in blocks for text in head))
    return ReportTable("human_normalised", "Human-normalised", caption, header, rows)


def _aggregate_block(
    name: str, strata: Mapping[str, aggregates.Strata], kinds: Sequence[tuple[str, Statistic]]
) -> ColumnBlock:
    """Aggregates of each algorithm under a common name."""
    cells = {label: [_aggregate_cell(v, kind) for _, kind in kinds] for label, v in strata.items()}
    return [f"{kind}, {name}" for kind, _ in kinds], cells


def _paper_strata(games: Iterable[str], starts: StartType) -> dict[str, list[np.ndarray]]:
    """The paper's agents that have scores of all these games; one score is one run."""
    table = printed_scores(starts)
    found = {}
    for name, label in PAPER_AGENTS.items():
        if all(name in table.get(game, {}) for game in games):
            pairs = [(table[game][name], known(starts)[game]) for game in games]
            values = [aggregates.human_normalised_score(s, r.random, r.human) for s, r in pairs]
            found[label] = [np.array([value]) for value in values]
    return found


def _aggregate_cell(strata: aggregates.Strata, kind: aggregates.Statistic) -> TableCell:
    found = aggregates.estimate_with_interval(strata, kind)
    return percent_cell(found.value, format_interval(found, lambda v: f"{v:,.0f}"))


def pairwise_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """Table 1: on how many environments one is at least as good as another."""
    ours = build_columns(groups, "noop")
    table: dict[str, dict[str, float]] = {
        column.label: {env: float(score.values.mean()) for env, score in column.scores.items()}
        for column in ours
    }
    for name, label in (PAPER_AGENTS | PAPER_PLAYERS).items():
        own = {
            env: printed_scores("noop").get(game_of(env) or "", {})
            for env in list_environments(ours)
        }
        scored = {env: row[name] for env, row in own.items() if name in row}
        table |= {label: scored} if scored else {}
    against = list(table)
    algorithms = [label for label in against if label not in PAPER_PLAYERS.values()]
    if len(against) < 2:
        return None
    rows = [
        [text_cell(a), *(_comparison_cell(table[a], table[b], a == b) for b in against)]
        for a in algorithms
    ]
    caption = (
        "In the form of Table 1: on how many of the environments that both have a score for the"
        " row does at least as well as the column (no-op starts)."
    )
    paper = len(against) - len(ours)
    return ReportTable(
        "pairs", "One against another", caption, ("algorithm", *against), rows, paper_columns=paper
    )


def _comparison_cell(a: Mapping[str, float], b: Mapping[str, float], is_same: bool) -> TableCell:
    shared = a.keys() & b.keys()
    if is_same or not shared:
        return TableCell("–")
    text = f"{sum(a[env] >= b[env] for env in shared)} / {len(shared)}"
    return TableCell(text, text)


def settings_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """The settings in which the groups differ."""
    every = [flatten_settings(group.config) for group in groups]
    apart = [
        n
        for n in every[0]
        if n not in SEED_SETTINGS and any(own[n] != every[0][n] for own in every)
    ]
    if not apart:
        return None
    header = ("setting", *(f"{env_title(group.env)}: {group.variant}" for group in groups))
    rows = [[text_cell(n), *(text_cell(format_setting(own[n])) for own in every)] for n in apart]
    caption = "Where the groups differ, the seed and the folder aside. All else is equal."
    return ReportTable("settings", "", caption, header, rows, text_columns=len(header))


def corrections_table() -> ReportTable:
    """Where the paper's own numbers disagree."""
    rows = [[text_cell(text) for text in correction] for correction in PAPER_CORRECTIONS]
    caption = "Where the paper's printed numbers disagree with one another, and what is done here."
    header = ("place", "printed", "here", "why")
    return ReportTable("corrections", "", caption, header, rows, text_columns=len(header))
