"""One score per run: a column for each variant, a row for each environment, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.envs.naming import game_of
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.evaluation.paper_scores import StartType, game_titles, reference_scores
from lookfurther.evaluation.results import DEFAULT_EPSILON, EvaluationConditions
from lookfurther.report.curves import RETURN_METRIC
from lookfurther.report.runs import RunGroup, preset_order


class RunScores(NamedTuple):
    """The scores of the runs of one group."""

    values: np.ndarray  # [runs]: each run's mean over episodes
    is_evaluated: bool  # False: the last return of the low-epsilon lanes in training

    @property
    def mean_estimate(self) -> IntervalEstimate:
        """Mean over runs with its interval."""
        return aggregates.estimate_with_interval([self.values], aggregates.mean)


class ScoreColumn(NamedTuple):
    """The scores of a variant under one kind of evaluation."""

    label: str
    variant: str
    scores: dict[str, RunScores]  # by environment


def build_columns(groups: Sequence[RunGroup], starts: StartType) -> list[ScoreColumn]:
    """Collect the scores of every variant; each kind of evaluation has its own column."""
    columns: dict[str, ScoreColumn] = {}
    for group in sorted(groups, key=preset_order):
        for label, score in _scores_by_label(group, starts).items():
            column = columns.setdefault(label, ScoreColumn(label, group.variant, {}))
            column.scores[group.env] = score
    return list(columns.values())


def _scores_by_label(group: RunGroup, starts: StartType) -> dict[str, RunScores]:
    """Scores by column label: of each kind of evaluation, or of training if there is none."""
    evaluated: dict[str, list[float]] = {}
    for run in group.runs:
        for evaluation in run.evaluations.values():
            if evaluation.conditions.starts == starts:
                label = _column_label(group, evaluation.conditions)
                evaluated.setdefault(label, []).append(float(evaluation.scores.mean()))
    if evaluated:
        return {label: RunScores(np.array(values), True) for label, values in evaluated.items()}
    values = [value for run in group.runs if (value := run.last_value(RETURN_METRIC)) is not None]
    if starts == "human" or not values:
        return {}
    return {group.variant: RunScores(np.array(values), False)}


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
