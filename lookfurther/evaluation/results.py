"""The files of an evaluation in a run folder, written by `evaluate` and read by `report`.

evaluation/NAME/         NAME is noop or human, with -sticky-0.25 and the like if not the default
    episodes.csv         episode,score,steps: one line for each episode
    best_returns.csv     player,frame,return: cumulative return of the best episode of the agent
                         and, if there are demonstrations, of the expert
    summary.json         conditions and statistics; written last: without it, nothing is complete
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lookfurther.errors import LookFurtherError
from lookfurther.evaluation import aggregates
from lookfurther.evaluation.paper_scores import StartType, reference_scores
from lookfurther.system.files import write_text
from lookfurther.training.monitoring import metrics
from lookfurther.training.monitoring.metrics import to_json_value

EVALUATION_FOLDER = "evaluation"
EPISODE_COLUMNS = ("episode", "score", "steps")
RETURN_COLUMNS = ("player", "frame", "return")
CURVE_PLAYERS = ("agent", "expert")
DEFAULT_EPSILON = 0.001
SUMMARY_STATISTICS = (
    ("mean", aggregates.mean),
    ("median", aggregates.pooled_median),
    ("iqm", aggregates.iqm),
)


@dataclass(frozen=True)
class EvaluationConditions:
    """How an evaluation was played."""

    env: str
    starts: StartType = "noop"
    sticky: float = 0.0
    epsilon: float = DEFAULT_EPSILON
    step: int = 0  # of the checkpoint
    seed: int = 0

    @property
    def folder_name(self) -> str:
        """The folder of the evaluation; evaluations that may not be mixed have different ones."""
        sticky = f"-sticky-{self.sticky:g}" if self.sticky else ""
        epsilon = f"-epsilon-{self.epsilon:g}" if self.epsilon != DEFAULT_EPSILON else ""
        return f"{self.starts}{sticky}{epsilon}"


@dataclass(frozen=True)
class ReturnCurve:
    """The cumulative return of one episode over time."""

    frames: np.ndarray  # [n] int64: since the episode's start; outside Atari a frame is a step
    returns: np.ndarray  # [n] float64

    @classmethod
    def from_rewards(
        cls, rewards: np.ndarray, action_repeat: int = 1, phase: int = 0
    ) -> ReturnCurve:
        """The curve of rewards, one for every `action_repeat` frames: start, changes and end.

        If `phase` is not 0, the first reward follows after `phase` frames.
        """
        returns = np.concatenate([[0.0], np.cumsum(np.asarray(rewards, np.float64))])
        kept = np.flatnonzero(np.concatenate([[True], np.diff(returns) != 0]))
        kept = np.union1d(kept, [len(returns) - 1])
        frames = np.maximum(kept * action_repeat - -phase % action_repeat, 0)
        return cls(frames, returns[kept])


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one run's agent."""

    conditions: EvaluationConditions
    scores: np.ndarray  # [episodes] float64
    steps: np.ndarray  # [episodes] int64: agent steps
    best_curves: dict[str, ReturnCurve] = field(default_factory=dict)  # keys: CURVE_PLAYERS

    def summary(self) -> dict[str, Any]:
        """Mean, median and IQM with their intervals over episodes, and the relative scores."""
        references = reference_scores(self.conditions.env, self.conditions.starts)
        mean, expert = float(self.scores.mean()), self.expert_score()
        human_normalised = expert_relative = None
        if references:
            random, human, _ = references
            human_normalised = aggregates.human_normalised_score(mean, random, human)
            if expert is not None and expert > random:
                expert_relative = aggregates.relative_score(mean, expert, random)
        return {
            "episodes": len(self.scores),
            **{
                name: aggregates.estimate_with_interval([self.scores], statistic)._asdict()
                for name, statistic in SUMMARY_STATISTICS
            },
            "best": float(self.scores.max()),
            "steps": float(self.steps.mean()),
            "expert": expert,
            "human_normalised": human_normalised,
            "expert_relative": expert_relative,
        }

    def expert_score(self) -> float | None:
        """The score of the run's best demonstration, else that of the paper's expert.

        None for human starts: an expert's score counts from the beginning of the game.
        """
        if self.conditions.starts == "human":
            return None
        if "expert" in self.best_curves:
            return float(self.best_curves["expert"].returns[-1])
        references = reference_scores(self.conditions.env, "noop")
        return references.expert if references else None


def write_evaluation(run: Path, evaluation: Evaluation) -> Path:
    """Write an evaluation to a run folder; replace an older one of the same name."""
    folder = run / EVALUATION_FOLDER / evaluation.conditions.folder_name
    summary = folder / "summary.json"
    folder.mkdir(parents=True, exist_ok=True)
    summary.unlink(missing_ok=True)
    pairs = zip(evaluation.scores.tolist(), evaluation.steps.tolist(), strict=True)
    episodes = [(i, *pair) for i, pair in enumerate(pairs)]
    _write_csv(folder / "episodes.csv", EPISODE_COLUMNS, episodes)
    points = [
        (player, frame, value)
        for player, curve in evaluation.best_curves.items()
        for frame, value in zip(curve.frames.tolist(), curve.returns.tolist(), strict=True)
    ]
    _write_csv(folder / "best_returns.csv", RETURN_COLUMNS, points)
    text = json.dumps(evaluation_to_dict(evaluation), indent=2, allow_nan=False)
    write_text(summary, text + "\n")
    return folder


def evaluation_to_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Conditions and statistics for JSON; values that are not finite become null."""
    values = dataclasses.asdict(evaluation.conditions) | evaluation.summary()
    return {key: _to_json_value(value) for key, value in values.items()}


def read_evaluations(run: Path) -> dict[str, Evaluation]:
    """The evaluations of a run folder by name, without unfinished ones."""
    summaries = sorted((run / EVALUATION_FOLDER).glob("*/summary.json"))
    return {path.parent.name: read_evaluation(path.parent) for path in summaries}


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder."""
    conditions = _read_conditions(folder / "summary.json")
    episodes = _read_csv(
        folder / "episodes.csv", EPISODE_COLUMNS, (_parse_count, _parse_float, _parse_count)
    )
    if not episodes:
        raise LookFurtherError(
            f"{folder / 'episodes.csv'} holds no episode: evaluate the run again"
        )
    points = _read_csv(
        folder / "best_returns.csv", RETURN_COLUMNS, (_parse_player, _parse_count, _parse_float)
    )
    curves = {}
    for player in CURVE_PLAYERS:
        if player_points := [point[1:] for point in points if point[0] == player]:
            frames, returns = zip(*player_points, strict=True)
            curves[player] = ReturnCurve(np.array(frames, np.int64), np.array(returns, np.float64))
    _, scores, steps = zip(*episodes, strict=True)
    return Evaluation(conditions, np.array(scores, np.float64), np.array(steps, np.int64), curves)


def _read_conditions(path: Path) -> EvaluationConditions:
    """The conditions of a summary, with every value checked."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        conditions = EvaluationConditions(
            env=str(summary["env"]),
            starts=summary["starts"],
            sticky=_parse_float(summary["sticky"]),
            epsilon=_parse_float(summary["epsilon"]),
            step=_parse_count(summary["step"]),
            seed=_parse_count(summary["seed"]),
        )
        is_known = conditions.starts in get_args(StartType)
        if not is_known or conditions.folder_name != path.parent.name:
            raise ValueError(f"its folder should be called {conditions.folder_name}")
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LookFurtherError(f"{path} cannot be read ({error}): evaluate the run again") from None
    return conditions


def _parse_float(value: Any) -> float:
    number = float(value)
    if not abs(number) <= metrics.MAX_METRIC:
        raise ValueError(f"{value} is not finite")
    return number


def _parse_count(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 2**53:
        raise ValueError(f"{value} is not a whole number from 0 on")
    return number


def _parse_player(text: str) -> str:
    if text not in CURVE_PLAYERS:
        raise ValueError(f"{text!r} is no player")
    return text


def _to_json_value(value: Any) -> Any:
    """A value, or a dictionary of values, for JSON."""
    if isinstance(value, dict):
        return {key: to_json_value(inner) for key, inner in value.items()}
    return to_json_value(value)


def _write_csv(path: Path, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def _read_csv(
    path: Path, header: tuple[str, ...], parsers: tuple[Callable[[str], Any], ...]
) -> list[tuple[Any, ...]]:
    """The rows of a CSV file with exactly this header, each column through its parser."""
    rows: list[tuple[Any, ...]] = []
    try:
        for cells in csv.reader(path.read_text(encoding="utf-8").splitlines()):
            if rows:
                rows.append(tuple(parse(cell) for parse, cell in zip(parsers, cells, strict=True)))
            elif tuple(cells) == header:
                rows.append(header)
            else:
                raise ValueError(f"its columns should be {','.join(header)}")
    except (OSError, ValueError, csv.Error) as error:
        location = f"{path}, line {len(rows) + 1}"
        raise LookFurtherError(f"{location}: {error}; evaluate the run again") from None
    return rows[1:]
