"""What evaluations leave in a run folder, for the command that plays them and for the report.

evaluation/NAME/         NAME is noop or human, with -sticky-0.25 and such where not the default
    episodes.csv         episode,score,steps: one line for each episode played
    best_returns.csv     player,frame,return: cumulative return of the best episodes, of the
                         agent and, where there are demonstrations, of the expert
    summary.json         the conditions and the statistics; written last, so it vouches for both
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
from lookfurther.evaluation.paper_scores import Starts, reference
from lookfurther.training import metrics
from lookfurther.training.metrics import plain
from lookfurther.training.run_dir import write_text

FOLDER = "evaluation"
EPISODES = ("episode", "score", "steps")
RETURNS = ("player", "frame", "return")
PLAYERS = ("agent", "expert")
EPSILON = 0.001
SUMMARY = (
    ("mean", aggregates.mean),
    ("median", aggregates.pooled_median),
    ("iqm", aggregates.iqm),
)


@dataclass(frozen=True)
class Conditions:
    """How an evaluation was played."""

    env: str
    starts: Starts = "noop"
    sticky: float = 0.0
    epsilon: float = EPSILON
    step: int = 0  # of the checkpoint
    seed: int = 0

    @property
    def name(self) -> str:
        """The folder of such an evaluation: two that may not be mixed differ in it."""
        sticky = f"-sticky-{self.sticky:g}" if self.sticky else ""
        return f"{self.starts}{sticky}" + (
            f"-epsilon-{self.epsilon:g}" if self.epsilon != EPSILON else ""
        )


@dataclass(frozen=True)
class Trace:
    """The cumulative return of one episode over time."""

    frames: np.ndarray  # [n] int64: since the episode's start; outside Atari a frame is a step
    returns: np.ndarray  # [n] float64

    @classmethod
    def of(cls, rewards: np.ndarray, repeat: int = 1, phase: int = 0) -> Trace:
        """The trace of rewards that came every `repeat` frames: start, changes and end.

        The first came after `phase` frames, where that is not 0.
        """
        returns = np.concatenate([[0.0], np.cumsum(np.asarray(rewards, np.float64))])
        kept = np.flatnonzero(np.concatenate([[True], np.diff(returns) != 0]))
        kept = np.union1d(kept, [len(returns) - 1])
        frames = np.maximum(kept * repeat - -phase % repeat, 0)
        return cls(frames, returns[kept])


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one run's agent."""

    conditions: Conditions
    scores: np.ndarray  # [episodes] float64
    steps: np.ndarray  # [episodes] int64: agent steps of each
    best: dict[str, Trace] = field(default_factory=dict)  # of PLAYERS

    def summary(self) -> dict[str, Any]:
        """Mean, median and IQM with their intervals over episodes, and the relative scores."""
        known = reference(self.conditions.env, self.conditions.starts)
        mean, expert, human, ahead = float(self.scores.mean()), self.expert(), None, None
        if known:
            human = aggregates.human_normalised(mean, known.random, known.human)
        if known and expert is not None and expert > known.random:
            ahead = aggregates.relative(mean, expert, known.random)
        return {
            "episodes": len(self.scores),
            **{name: aggregates.estimate([self.scores], kind)._asdict() for name, kind in SUMMARY},
            "best": float(self.scores.max()),
            "steps": float(self.steps.mean()),
            "expert": expert,
            "human_normalised": human,
            "expert_relative": ahead,
        }

    def expert(self) -> float | None:
        """The score of the run's own best demonstration, else that of the paper's expert.

        Human starts have none: an expert's score counts from the beginning of the game.
        """
        if self.conditions.starts == "human":
            return None
        if "expert" in self.best:
            return float(self.best["expert"].returns[-1])
        known = reference(self.conditions.env, "noop")
        return known.expert if known else None


def write(run: Path, evaluation: Evaluation) -> Path:
    """Leave an evaluation in a run folder, in the place of an older one of its name."""
    folder = run / FOLDER / evaluation.conditions.name
    summary = folder / "summary.json"
    folder.mkdir(parents=True, exist_ok=True)
    summary.unlink(missing_ok=True)
    scored = zip(evaluation.scores.tolist(), evaluation.steps.tolist(), strict=True)
    _write_csv(folder / "episodes.csv", EPISODES, [(i, *pair) for i, pair in enumerate(scored)])
    points = [
        (player, frame, value)
        for player, trace in evaluation.best.items()
        for frame, value in zip(trace.frames.tolist(), trace.returns.tolist(), strict=True)
    ]
    _write_csv(folder / "best_returns.csv", RETURNS, points)
    write_text(summary, json.dumps(facts(evaluation), indent=2, allow_nan=False) + "\n")
    return folder


def facts(evaluation: Evaluation) -> dict[str, Any]:
    """Conditions and statistics as JSON can hold them: what is not finite as null."""
    all_of_it = dataclasses.asdict(evaluation.conditions) | evaluation.summary()
    return {key: _finite(value) for key, value in all_of_it.items()}


def read(run: Path) -> dict[str, Evaluation]:
    """The evaluations of a run folder by name; one without its summary was not finished."""
    found = sorted((run / FOLDER).glob("*/summary.json"))
    return {path.parent.name: _read(path.parent) for path in found}


def _read(folder: Path) -> Evaluation:
    conditions = _conditions(folder / "summary.json")
    episodes = _read_csv(folder / "episodes.csv", EPISODES, (_whole, _number, _whole))
    if not episodes:
        raise LookFurtherError(f"{folder / 'episodes.csv'} holds no episode: evaluate the run anew")
    points = _read_csv(folder / "best_returns.csv", RETURNS, (_player, _whole, _number))
    best = {}
    for player in PLAYERS:
        if own := [point[1:] for point in points if point[0] == player]:
            frames, returns = zip(*own, strict=True)
            best[player] = Trace(np.array(frames, np.int64), np.array(returns, np.float64))
    _, scores, steps = zip(*episodes, strict=True)
    return Evaluation(conditions, np.array(scores, np.float64), np.array(steps, np.int64), best)


def _conditions(path: Path) -> Conditions:
    """The conditions in a summary, every value checked."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        conditions = Conditions(
            env=str(facts["env"]),
            starts=facts["starts"],
            sticky=_number(facts["sticky"]),
            epsilon=_number(facts["epsilon"]),
            step=_whole(facts["step"]),
            seed=_whole(facts["seed"]),
        )
        if conditions.starts not in get_args(Starts) or conditions.name != path.parent.name:
            raise ValueError(f"its folder should be called {conditions.name}")
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LookFurtherError(f"{path} cannot be read ({error}): evaluate the run anew") from None
    return conditions


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= metrics.LARGEST:
        raise ValueError(f"{value} is not finite")
    return number


def _whole(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 2**53:
        raise ValueError(f"{value} is not a whole number from 0 on")
    return number


def _player(text: str) -> str:
    if text not in PLAYERS:
        raise ValueError(f"{text!r} is no player")
    return text


def _finite(value: Any) -> Any:
    """A value or a dictionary of them as JSON can hold it."""
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else plain(value)


def _write_csv(path: Path, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def _read_csv(
    path: Path, header: tuple[str, ...], kinds: tuple[Callable[[str], Any], ...]
) -> list[tuple[Any, ...]]:
    """The rows of a CSV file with exactly this header, each value through its kind."""
    rows: list[tuple[Any, ...]] = []
    try:
        for words in csv.reader(path.read_text(encoding="utf-8").splitlines()):
            if rows:
                rows.append(tuple(kind(word) for kind, word in zip(kinds, words, strict=True)))
            elif tuple(words) == header:
                rows.append(header)
            else:
                raise ValueError(f"its columns should be {','.join(header)}")
    except (OSError, ValueError, csv.Error) as error:
        at = f"{path}, line {len(rows) + 1}"
        raise LookFurtherError(f"{at}: {error}; evaluate the run anew") from None
    return rows[1:]
