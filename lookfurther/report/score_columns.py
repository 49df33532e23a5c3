"""One score for each run, in columns by variant and rows by environment, as the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lookfurther.evaluation import aggregates
from lookfurther.evaluation.aggregates import Estimate
from lookfurther.evaluation.paper_scores import Starts, game_of, reference, titles
from lookfurther.evaluation.results import EPSILON, Conditions
from lookfurther.report.runs import Group, order
from lookfurther.system.printable import printable

TRAINING = "return_low_epsilon"  # stands in for an evaluation that was not made, and is marked so


class Score(NamedTuple):
    """What the runs of one group score."""

    values: np.ndarray  # [runs]: each run's mean over episodes
    evaluated: bool  # else the last return of the low-epsilon lanes in training

    @property
    def mean(self) -> Estimate:
        """Mean over runs with its interval."""
        return aggregates.estimate([self.values], aggregates.mean)


class Column(NamedTuple):
    """A variant under one way of evaluating it."""

    label: str
    variant: str
    scores: dict[str, Score]  # by environment


def columns(groups: Sequence[Group], starts: Starts) -> list[Column]:
    """Every variant's scores; evaluations under different conditions are different columns."""
    found: dict[str, Column] = {}
    for group in sorted(groups, key=order):
        for label, score in _measured(group, starts).items():
            column = found.setdefault(label, Column(label, group.variant, {}))
            column.scores[group.env] = score
    return list(found.values())


def _measured(group: Group, starts: Starts) -> dict[str, Score]:
    """Label to score: each kind of evaluation made, or else what training showed."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for evaluation in run.evaluations.values():
            if evaluation.conditions.starts == starts:
                label = _label(group, evaluation.conditions)
                found.setdefault(label, []).append(float(evaluation.scores.mean()))
    if found:
        return {label: Score(np.array(values), True) for label, values in found.items()}
    values = [value for run in group.runs if (value := run.last(TRAINING)) is not None]
    if starts == "human" or not values:
        return {}
    return {group.variant: Score(np.array(values), False)}


def _label(group: Group, conditions: Conditions) -> str:
    """The variant, and how it was evaluated where that is not how it was trained."""
    words = []
    if conditions.sticky != group.config.environment.sticky:
        words.append(f"sticky {conditions.sticky:g}" if conditions.sticky else "no sticky actions")
    if conditions.epsilon != EPSILON:
        words.append(f"ε {conditions.epsilon:g}")
    return f"{group.variant} (evaluated: {', '.join(words)})" if words else group.variant


def environments(table: Sequence[Column]) -> list[str]:
    """The environments of a table's rows: the paper's games in its order, then the others."""
    order = list(titles())
    known = {env for column in table for env in column.scores}
    return sorted(known, key=lambda e: (_place(order, e), e))


def _place(order: list[str], env: str) -> int:
    game = game_of(env)
    return order.index(game) if game in order else len(order)


def title(env: str) -> str:
    """A paper's game by its name there, another environment by its id."""
    return titles().get(game_of(env) or "", printable(env))


def normalised(column: Column, envs: Sequence[str], starts: Starts) -> list[np.ndarray]:
    """Human-normalised scores [runs] in percent for each environment, which must be known."""
    found = []
    for env in envs:
        known = reference(env, starts)
        if known is None:
            raise ValueError(f"{env} has no human score")
        values = [aggregates.human_normalised(v, *known[:2]) for v in column.scores[env].values]
        found.append(np.array(values))
    return found


def common(table: Sequence[Column]) -> list[str]:
    """The environments that every column has a score for."""
    return [env for env in environments(table) if all(env in c.scores for c in table)]
