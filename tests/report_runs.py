"""Made-up runs for the tests of reports, in memory or as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lookfurther.config import Config
from lookfurther.evaluation import results
from lookfurther.evaluation.paper_scores import StartType, game_titles, printed_scores
from lookfurther.evaluation.results import Evaluation, EvaluationConditions
from lookfurther.presets import preset
from lookfurther.report.runs import (
    RunData,
)
from lookfurther.training.config_json import to_json

ROMS = {game: f"ALE/{game.title().replace('_', '')}-v5" for game in game_titles()}


def make_evaluation(env: str, score: float, **conditions: Any) -> Evaluation:
    """An evaluation of two episodes around a score."""
    scores = np.array([score - 1, score + 1])
    return Evaluation(EvaluationConditions(env, **conditions), scores, np.array([10, 20]))


def make_run(config: Config, rows: list[dict[str, Any]], *evaluations: Evaluation) -> RunData:
    """A run that exists only in memory."""
    by_name = {e.conditions.folder_name: e for e in evaluations}
    return RunData(Path(f"run-{config.run.seed}"), config, rows, by_name, {})


def make_rows(growth: float, points: int = 5) -> list[dict[str, Any]]:
    """Metrics with a return that grows by `growth` every 100 steps."""
    return [
        {
            "step": 100 * i,
            "frames": 400 * i,
            "minutes": 0.5 * i,
            "updates": 10 * i,
            "return_low_epsilon": growth * i,
            "return_best": 2 * growth * i,
            "steps_per_second": 1000.0 + i,
            "loss_td": 1.0 / i,
            "loss_im": 0.0,
            "priority_agent": 0.5,
        }
        for i in range(1, points + 1)
    ]


def write_run_folder(run: RunData, path: Path) -> Path:
    """Write a run to a folder."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(to_json(run.config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows))
    (path / "versions.json").write_text(json.dumps(run.versions))
    for evaluation in run.evaluations.values():
        results.write_evaluation(path, evaluation)
    return path


def paper_runs(agent: str, starts: StartType = "noop") -> list[RunData]:
    """Runs on the paper's 42 games with the scores that the paper prints."""
    table = printed_scores(starts)
    configs = {g: preset("apex-dqfd-deeper", env=env) for g, env in ROMS.items()}
    return [
        make_run(
            configs[g],
            make_rows(1),
            make_evaluation(configs[g].env, table[g][agent], starts=starts),
        )
        for g in game_titles()
    ]


BASE_CONFIG = preset("apex-dqfd", env="ALE/Pong-v5", demos=("pong/mine-v0",))
