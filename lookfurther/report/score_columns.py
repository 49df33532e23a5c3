"""One score per run: a column for each variant, a row for each environment, as in the paper.

Scores of evaluations and returns in training are never in the same columns: in training, lanes
explore and weights change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from lookfurther.envs.naming import game_of
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.evaluation.paper_scores import StartType, game_titles, reference_scores
from lookfurther.evaluation.results import DEFAULT_EPSILON, EvaluationConditions
from lookfurther.report.curves import RETURN_METRIC
from lookfurther.report.runs import RunGroup, preset_order

# Where scores come from: evaluations by their kind of start, or the last return in training.
ScoreSource = StartType | Literal["training"]


class RunScores(NamedTuple):
    """The scores of the runs of one group."""

    values: np.ndarray  # [runs]: each run's mean over episodes

    @property
    def mean_estimate(self) -> IntervalEstimate:
        """Mean over runs with its interval."""
        return aggregates.estimate_with_interval([self.values], aggregates.mean)


class ScoreColumn(NamedTuple):
    """The scores of a variant under one kind of evaluation."""

    label: str
    variant: str
    scores: dict[str, RunScores]  # by environment


def build_columns(groups: Sequence[RunGroup], source: ScoreSource) -> list[ScoreColumn]:
    """Collect the scores of every variant; each kind of evaluation has its own column."""
    columns: dict[str, ScoreColumn] = {}
    for group in sorted(groups, key=preset_order):
        for label, score in _scores_by_label(group, source).items():
            column = columns.setdefault(label, ScoreColumn(label, group.variant, {}))
            column.scores[group.env] = score
    return list(columns.values())


def lacks_evaluation(groups: Sequence[RunGroup]) -> bool:
    """Whether the runs of some group have no evaluation."""
    return any(not any(run.evaluations for run in group.runs) for group in groups)


def _scores_by_label(group: RunGroup, source: ScoreSource) -> dict[str, RunScores]:
    """Scores by column label: of each kind of evaluation, or the last returns in training."""
    scores: dict[str, list[float]] = {}
    for run in group.runs:
        if source == "training":
            if (value := run.last_value(RETURN_METRIC)) is not None:
                scores.setdefault(group.variant, []).append(value)
            continue
        for evaluation in run.evaluations.values():
            if evaluation.conditions.starts == source:
                label = _column_label(group, evaluation.conditions)
                scores.setdefault(label, []).append(float(evaluation.scores.mean()))
    return {label: RunScores(np.array(values)) for label, values in scores.items()}


def _column_label(group: RunGroup, conditions: EvaluationConditions) -> str:
    """The variant, and the conditions of its evaluation that differ from its training."""
    differences = []
    if conditions.sticky != group.config.environment.sticky_prob:
        differences.append(
            f"sticky {conditions.sticky:g}" if conditions.sticky else "no sticky actions"
        )
    if conditions.epsilon != DEFAULT_EPSILON:
        differences.append(f"ε {conditions.epsilon:g}")
    if not differences:
        return group.variant
    return f"{group.variant} (evaluated: {', '.join(differences)})"


def list_environments(columns: Sequence[ScoreColumn]) -> list[str]:
    """The environments of all columns: the paper's games in its order, then the others."""
    games = list(game_titles())
    envs = {env for column in columns for env in column.scores}
    return sorted(envs, key=lambda env: (_paper_position(games, env), env))


def _paper_position(games: list[str], env: str) -> int:
    game = game_of(env)
    return games.index(game) if game in games else len(games)


def human_normalised_scores(
    column: ScoreColumn, envs: Sequence[str], starts: StartType
) -> list[np.ndarray]:
    """Scores [runs] in percent for each environment; each must have a human score."""
    scores = []
    for env in envs:
        reference = reference_scores(env, starts)
        if reference is None:
            raise ValueError(f"{env} has no human score")
        values = [
            aggregates.human_normalised_score(v, reference.random, reference.human)
            for v in column.scores[env].values
        ]
        scores.append(np.array(values))
    return scores


def common_environments(columns: Sequence[ScoreColumn]) -> list[str]:
    """The environments that every column has a score for."""
    return [env for env in list_environments(columns) if all(env in c.scores for c in columns)]
