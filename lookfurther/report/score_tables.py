"""Tables 1 to 4 of the paper with the scores of our runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lookfurther.envs.naming import env_title, game_of, is_atari
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import Statistic, Strata
from lookfurther.evaluation.paper_scores import (
    PAPER_AGENTS,
    PAPER_PLAYERS,
    START_TITLES,
    StartType,
    game_titles,
    printed_scores,
    reference_table,
)
from lookfurther.report.runs import RunGroup
from lookfurther.report.score_columns import (
    ScoreColumn,
    ScoreSource,
    build_columns,
    common_environments,
    human_normalised_scores,
    list_environments,
)
from lookfurther.report.table import (
    EMPTY_CELL,
    ReportTable,
    TableCell,
    format_interval,
    number_cell,
    percent_cell,
    text_cell,
)

AGGREGATE_STATISTICS = (
    ("mean", aggregates.mean),
    ("median", aggregates.median),
    ("IQM", aggregates.iqm),
)

ColumnBlock = tuple[list[str], dict[str, list[TableCell]]]  # header, cells by algorithm
AlgorithmScores = dict[str, dict[str, float]]  # by label and environment


def scores_table(groups: Sequence[RunGroup], source: ScoreSource) -> ReportTable | None:
    """Tables 3 and 4: environments by variants, then the paper's columns for its games."""
    ours = build_columns(groups, source)
    envs = list_environments(ours)
    if not envs:
        return None
    printed = _printed_scores(source)
    has_paper_games = any(game_of(env) in printed for env in envs)
    theirs = PAPER_AGENTS | PAPER_PLAYERS if has_paper_games else {}
    rows = [
        [text_cell(env_title(env)), *_score_cells(env, ours, printed.get(game_of(env), {}), theirs)]
        for env in envs
    ]
    caption = _scores_caption(source, has_paper_games)
    header = ("environment", *(column.label for column in ours), *theirs.values())
    name, title = _scores_title(source, envs)
    return ReportTable(name, title, caption, header, rows, paper_columns=len(theirs))


def _printed_scores(source: ScoreSource) -> Mapping[str, Mapping[str, float]]:
    """The paper's scores by game, which are all of evaluations."""
    return {} if source == "training" else printed_scores(source)


def _scores_title(source: ScoreSource, envs: Sequence[str]) -> tuple[str, str]:
    """The file name and the title of a table of scores; only Atari games have no-op starts."""
    if source == "training":
        return "scores_training", "Returns in training"
    if not any(map(is_atari, envs)):
        return "scores_evaluated", "Evaluated scores"
    return f"scores_{source}", f"Evaluated scores, {START_TITLES[source]}"


def _scores_caption(source: ScoreSource, has_paper_games: bool) -> str:
    if source == "training":
        return (
            "The last return of the least exploring quarter of the lanes, mean over seeds with its"
            " 95 % interval. These are not evaluations: weights and exploration differ within them,"
            " so they are only compared with one another. The best of a row is bold."
        )
    number = {"noop": 3, "human": 4}[source]
    caption = f"In the form of Table {number} of the paper. " if has_paper_games else ""
    caption += (
        "Mean score of each run's evaluated episodes, mean over seeds with its 95 % interval."
    )
    caption += " The best of a row is bold."
    if source == "human" and has_paper_games:
        caption += " The starts were drawn from our own demonstrations, not those of the paper."
    return caption


def _score_cells(
    env: str,
    ours: Sequence[ScoreColumn],
    paper: Mapping[str, float],
    theirs: Mapping[str, str],
) -> list[TableCell]:
    """Our scores and the paper's of one environment; the highest is marked as the best."""
    means = [column.scores[env].mean_estimate if env in column.scores else None for column in ours]
    known = [m.value for m in means if m] + [paper[name] for name in theirs if name in paper]
    best = max(known) if len(known) > 1 else None
    cells = [
        EMPTY_CELL
        if mean is None
        else number_cell(mean.value, format_interval(mean), is_best=mean.value == best)
        for mean in means
    ]
    return cells + [number_cell(paper.get(n), is_best=paper.get(n) == best) for n in theirs]


def normalised_table(groups: Sequence[RunGroup]) -> ReportTable | None:
    """Table 2: human-normalised aggregates of our variants and of the paper's agents.

    The paper's agents are listed on the games of our columns and on the paper's 42 games.
    """
    blocks: list[ColumnBlock] = []
    games = []
    for starts, name in START_TITLES.items():
        columns = build_columns(groups, starts)
        known = reference_table(starts)
        envs = [env for env in common_environments(columns) if game_of(env) in known]
        if envs:
            strata = {c.label: human_normalised_scores(c, envs, starts) for c in columns}
            strata |= _paper_strata([game_of(env) for env in envs], starts)
            title = f"{name}, {len(envs)} game{'s' * (len(envs) != 1)}"
            blocks.append(_aggregate_block(title, strata, AGGREGATE_STATISTICS))
            games.append(f"{name}: {', '.join(map(env_title, envs))}")
    if not blocks:
        return None
    all_games = _paper_strata(game_titles(), "noop")
    title = "no-op starts, the paper's 42 games"
    blocks.append(_aggregate_block(title, all_games, AGGREGATE_STATISTICS[:2]))
    labels = dict.fromkeys(label for _, cells in blocks for label in cells)
    rows = [
        [
            text_cell(a),
            *(c for head, cells in blocks for c in cells.get(a, [EMPTY_CELL] * len(head))),
        ]
        for a in labels
    ]
    caption = (
        "In the form of Table 2: 100 × (score − random) / (average human − random) over the games"
        f" that all our columns have ({'; '.join(games)}), with 95 % stratified bootstrap intervals"
        " over seeds; the paper's agents on the same games and on its 42 games."
    )
    header = ("algorithm", *(text for head, _ in blocks for text in head))
    return ReportTable("human_normalised", "Human-normalised", caption, header, rows)


def _aggregate_block(
    title: str, strata: Mapping[str, Strata], statistics: Sequence[tuple[str, Statistic]]
) -> ColumnBlock:
    """Columns with the aggregates of each algorithm."""
    cells = {
        label: [_aggregate_cell(scores, statistic) for _, statistic in statistics]
        for label, scores in strata.items()
    }
    return [f"{name}, {title}" for name, _ in statistics], cells


def _aggregate_cell(strata: Strata, statistic: Statistic) -> TableCell:
    estimate = aggregates.estimate_with_interval(strata, statistic)
    return percent_cell(estimate.value, format_interval(estimate, lambda v: f"{v:,.0f}"))


def _paper_strata(games: Iterable[str], starts: StartType) -> dict[str, list[np.ndarray]]:
    """The paper's agents that have scores of all these games; each score counts as one run."""
    table, references = printed_scores(starts), reference_table(starts)
    strata = {}
    for name, label in PAPER_AGENTS.items():
        if all(name in table.get(game, {}) for game in games):
            pairs = [(table[game][name], references[game]) for game in games]
            scores = [aggregates.human_normalised_score(s, r.random, r.human) for s, r in pairs]
            strata[label] = [np.array([score]) for score in scores]
    return strata


def pairwise_table(groups: Sequence[RunGroup], source: ScoreSource) -> ReportTable | None:
    """Table 1: on how many environments one algorithm is at least as good as another."""
    columns = build_columns(groups, source)
    scores: AlgorithmScores = {
        column.label: {env: float(score.values.mean()) for env, score in column.scores.items()}
        for column in columns
    }
    paper = _paper_scores(list_environments(columns), source)
    labels = [*scores, *paper]
    scores |= paper
    if not columns or len(labels) < 2:
        return None
    rows = [
        [text_cell(a), *(_comparison_cell(scores[a], scores[b], a == b) for b in labels)]
        for a in labels
        if a not in PAPER_PLAYERS.values()
    ]
    caption = (
        "The number of environments on which the row is at least as good as the column, of those"
        " with a score of both."
    )
    caption = f"In the form of Table 1 of the paper. {caption}" if paper else caption
    name, title = "pairs", "One against another"
    if source == "training":
        name, title = "pairs_training", "One against another, returns in training"
    return ReportTable(name, title, caption, ("algorithm", *labels), rows, 1, len(paper))


def _paper_scores(envs: Sequence[str], source: ScoreSource) -> AlgorithmScores:
    """The paper's scores on these environments; algorithms without any are left out."""
    rows = {env: _printed_scores(source).get(game_of(env), {}) for env in envs}
    scores = {
        label: {env: row[name] for env, row in rows.items() if name in row}
        for name, label in (PAPER_AGENTS | PAPER_PLAYERS).items()
    }
    return {label: by_env for label, by_env in scores.items() if by_env}


def _comparison_cell(a: Mapping[str, float], b: Mapping[str, float], is_same: bool) -> TableCell:
    shared = a.keys() & b.keys()
    if is_same or not shared:
        return EMPTY_CELL
    text = f"{sum(a[env] >= b[env] for env in shared)} / {len(shared)}"
    return TableCell(text, text)
