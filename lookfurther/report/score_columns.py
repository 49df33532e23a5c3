"""One score for each run, in columns by variant and rows by environment, as the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.envs.naming import game_of
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import IntervalEstimate
from lookfurther.evaluation.paper_scores import StartType, game_titles, reference_scores
from lookfurther.evaluation.results import DEFAULT_EPSILON, EvaluationConditions
from lookfurther.report.runs import RunGroup, preset_order

FALLBACK_METRIC = (
    "return_low_epsilon"  # stands in for an evaluation that was not made, and is marked so
)


class RunScores(NamedTuple):
    """What the runs of one group score."""

    values: np.ndarray  # [runs]: each run's mean over episodes
    is_evaluated: bool  # else the last return of the low-epsilon lanes in training

    @property
    def mean_estimate(self) -> IntervalEstimate:
        """Mean over runs with its interval."""
        return aggregates.estimate_with_interval([self.values], aggregates.mean)


class ScoreColumn(NamedTuple):
    """A variant under one way of evaluating it."""

    label: str
    variant: str
    scores: dict[str, RunScores]  # by environment


def build_columns(groups: Sequence[RunGroup], starts: StartType) -> list[ScoreColumn]:
    """Every variant's scores; evaluations under different conditions are different columns."""
    found: dict[str, ScoreColumn] = {}
    for group in sorted(groups, key=preset_order):
        for label, score in _scores_by_label(group, starts).items():
            column = found.setdefault(label, ScoreColumn(label, group.variant, {}))
            column.scores[group.env] = score
    return list(found.values())


def _scores_by_label(group: RunGroup, starts: StartType) -> dict[str, RunScores]:
    """Label to score: each kind of evaluation made, or else what training showed."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for evaluation in run.evaluations.values():
            if evaluation.conditions.starts == starts:
                label = _column_label(group, evaluation.conditions)
                found.setdefault(label, []).append(float(evaluation.scores.mean()))
    if found:
        return {label: RunScores(np.array(values), True) for label, values in found.items()}
    values = [value for run in group.runs if (value := run.last_value(FALLBACK_METRIC)) is not None]
    if starts == "human" or not values:
        return {}
    return {group.variant: RunScores(np.array(values), False)}


def _column_label(group: RunGroup, conditions: EvaluationConditions) -> str:
    """The variant, and how it was evaluated where that is not how it was trained."""
    words = []
    if conditions.sticky != group.config.environment.sticky_prob:
        words.append(f"sticky {conditions.sticky:g}" if conditions.sticky else "no sticky actions")
    if conditions.epsilon != DEFAULT_EPSILON:
        words.append(f"ε {conditions.epsilon:g}")
    return f"{group.variant} (evaluated: {', '.join(words)})" if words else group.variant


def list_environments(columns: Sequence[ScoreColumn]) -> list[str]:
    """The environments of a table's rows: the paper's games in its order, then the others."""
    order = list(game_titles())
    known = {env for column in columns for env in column.scores}
    return sorted(known, key=lambda e: (_paper_position(order, e), e))


def _paper_position(order: list[str], env: str) -> int:
    game = game_of(env)
    return order.index(game) if game in order else len(order)


def human_normalised_scores(
    column: ScoreColumn, envs: Sequence[str], starts: StartType
) -> list[np.ndarray]:
    """Human-normalised scores [runs] in percent for each environment, which must be known."""
    found = []
    for env in envs:
        known = reference_scores(env, starts)
        if known is None:
            raise ValueError(f"{env} has no human score")
        values = [
            aggregates.human_normalised_score(v, *known[:2]) for v in column.scores[env].values
        ]
        found.append(np.array(values))
    return found


def common_environments(columns: Sequence[ScoreColumn]) -> list[str]:
    """The environments that every column has a score for."""
    return [env for env in list_environments(columns) if all(env in c.scores for c in columns)]
