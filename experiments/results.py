"""Collect the evaluations of a study's runs in one small file.

    python -m experiments.results RUNS --json FILE

RUNS is the folder of run folders that `lookfurther suite` wrote. The file has the evaluation
scores of every run and the references of every task.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.demonstrations import reference_scores
from experiments.experts import TASKS
from lookfurther.envs.naming import base_name
from lookfurther.report.runs import RunData, find_runs, load_run
from lookfurther.system.files import write_text

RESULTS_FOLDER = Path(__file__).with_name("results")


def describe_run(run: RunData) -> dict[str, Any]:
    """Task, preset, seed, processor, commit, minutes and the evaluations of one run."""
    known = [row for row in run.rows if row.get("evaluation_mean") is not None]
    return {
        "task": base_name(run.config.env),
        "preset": run.config.preset,
        "seed": run.config.run.seed,
        "cpu": run.versions.get("cpu"),
        "commit": run.versions.get("commit"),
        "minutes": round(run.last_value("minutes") or 0.0, 3),
        "steps": [row["step"] for row in known],
        "scores": [round(row["evaluation_mean"], 4) for row in known],
    }


def collect_study(folder: Path) -> dict[str, Any]:
    """The finished runs of a folder and the references of their tasks."""
    loaded = [load_run(path) for path in find_runs([folder])]
    finished = [run for run in loaded if (run.last_value("step") or 0) >= run.config.run.steps]
    runs = [describe_run(run) for run in finished]
    tasks = [name for name in TASKS if any(run["task"] == name for run in runs)]
    references = {name: reference_scores(TASKS[name]) for name in tasks}
    return {"references": references, "runs": runs}


def final_score(run: dict[str, Any]) -> float:
    """The mean of the evaluations in the second half of a run."""
    scores = run["scores"]
    return float(np.mean(scores[len(scores) // 2 :]))


def normalise_score(study: dict[str, Any], task: str, score: Any) -> Any:
    """A score, or an array of them, in percent: 0 is random play, 100 the best policy."""
    references = study["references"][task]
    return 100 * (score - references["random"]) / (references["best"] - references["random"])


def preset_scores(study: dict[str, Any], preset: str) -> dict[str, np.ndarray]:
    """Normalised final scores [runs] of a preset, by task; tasks without runs are left out."""
    scores: dict[str, list[float]] = {task: [] for task in study["references"]}
    for run in study["runs"]:
        if run["preset"] == preset:
            score = normalise_score(study, run["task"], final_score(run))
            scores[run["task"]].append(score)
    return {task: np.array(values) for task, values in scores.items() if values}


def load_study(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write_study(path: Path, study: dict[str, Any]) -> None:
    """Write a study as JSON with one line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = ",\n".join(f"  {json.dumps(run)}" for run in study["runs"])
    references = json.dumps(study["references"])
    write_text(path, f'{{\n "references": {references},\n "runs": [\n{runs}\n ]\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of run folders")
    parser.add_argument("--json", type=Path, default=RESULTS_FOLDER / "hour.json")
    options = parser.parse_args()
    study = collect_study(options.runs)
    write_study(options.json, study)
    print(f"{len(study['runs'])} runs: {options.json}")


if __name__ == "__main__":
    main()
