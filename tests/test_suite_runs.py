"""Jobs of a suite: run, stopped and shown."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther import preset
from lookfurther.cli.suite import visible_jobs
from lookfurther.errors import ConfigError
from lookfurther.evaluation import suite, suite_evaluation, suite_runs
from lookfurther.evaluation.results import (
    Evaluation,
    EvaluationConditions,
    read_evaluations,
    write_evaluation,
)
from lookfurther.evaluation.suite_evaluation import SuiteEvaluation, parse_evaluation
from lookfurther.training.config_json import to_json
from tests.test_suite import ONE_JOB_SUITE, ROOT, TINY_SUITE, build_suite_jobs, write_suite


@pytest.mark.parametrize(
    ("step", "seconds", "minutes", "done"),
    [(399, 0, 0, False), (400, 0, 0, True), (10, 59, 1, False), (10, 60, 1, True)],
)
def test_job_is_done_when_checkpoint_used_budget(
    step: int, seconds: int, minutes: int, done: bool, tmp_path: Path
) -> None:
    text = ONE_JOB_SUITE.replace("steps = 400", f"steps = 400\nminutes = {minutes}")
    [job] = build_suite_jobs(tmp_path, text)
    for at, spent in ((4, 1), (step, seconds)):
        folder = job.folder / "checkpoints" / f"step_{at:012}"
        folder.mkdir(parents=True)
        (folder / "facts.json").write_text(json.dumps({"step": at, "seconds": spent}))
    (job.folder / "config.json").write_text(to_json(job.config))
    [job] = build_suite_jobs(tmp_path, text)
    assert job.state == ("done" if done else "waiting")
    assert job.train_arguments()[-1] == "--resume"


def suite_command(*words: str) -> tuple[list[str], dict[str, Any]]:
    line = [sys.executable, "-m", "lookfurther", "suite", *words]
    return line, {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}


@pytest.mark.slow
@pytest.mark.timeout(3600)  # half a minute of work: six processes that import torch
def test_suite_continues_after_failed_job(tmp_path: Path) -> None:
    """One job cannot make its folder; the other is trained, skipped next time, and extended."""
    text = ONE_JOB_SUITE.replace("seeds = [0]", "seeds = [0, 1]")
    first, second = build_suite_jobs(tmp_path, text)
    first.folder.parent.mkdir()
    first.folder.write_text("in the way")
    line, how = suite_command(write_suite(tmp_path, text), "--out", str(tmp_path / "out"))
    done = subprocess.run(line, check=False, **how)
    assert done.returncode == 1
    assert re.search(r"\[1/2\] failed: CartPole-v1 no-demos 0.*cannot be a run folder", done.stdout)
    assert "[2/2] done: CartPole-v1 no-demos 1, 400 steps" in done.stdout
    assert "1 done, 1 failed" in done.stdout
    assert second.has_used_budget()
    first.folder.unlink()
    done = subprocess.run(line, check=False, **how)
    assert done.returncode == 0
    assert "[1/2] done" in done.stdout
    assert "[2/2]" not in done.stdout
    longer = text.replace("steps = 400", "steps = 500").replace("[0, 1]", "[1]")
    line, how = suite_command(write_suite(tmp_path, longer), *line[5:])
    done = subprocess.run(line, check=False, **how)
    assert "[1/1] done: CartPole-v1 no-demos 1, 500 steps" in done.stdout
    assert "resumed at step 400" in second.log_file.read_text()


@pytest.mark.slow
def test_signal_stops_running_job_and_suite(tmp_path: Path) -> None:
    """The job saves a checkpoint, from which the next suite continues."""
    text = ONE_JOB_SUITE.replace("steps = 400", "steps = 1000000").replace("[0]", "[0, 1]")
    found = build_suite_jobs(tmp_path, text)
    line, how = suite_command(write_suite(tmp_path, text), "--out", str(tmp_path / "out"))
    process = subprocess.Popen(line, **how)
    metrics = found[0].folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)  # it is training
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 1
    assert "[1/2] stopped: CartPole-v1 no-demos 0" in out
    assert "1 waiting, 1 stopped" in out
    assert not found[1].folder.exists()
    assert list((found[0].folder / "checkpoints").iterdir())
    holder = json.loads((found[0].folder / "lock").read_text())["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(holder, 0)


EVALUATED_SUITE = ONE_JOB_SUITE.replace("[budget]", "[evaluation]\nepisodes = 2\n[budget]")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # processes that import torch
def test_suite_evaluates_each_run_once(tmp_path: Path) -> None:
    """Without the evaluation only it is repeated; more episodes and more training are evaluated."""
    [job] = build_suite_jobs(tmp_path, EVALUATED_SUITE)
    changes: list[str] = []

    def run_suite(text: str) -> list[str]:
        changes.clear()
        jobs = build_suite_jobs(tmp_path, text)
        suite_runs.run_jobs(jobs, lambda job: changes.append(job.state))
        assert [job.state for job in jobs] == ["done"]
        return list(dict.fromkeys(changes))

    assert run_suite(EVALUATED_SUITE) == ["running", "evaluating", "done"]
    assert run_suite(EVALUATED_SUITE) == []
    evaluation = read_evaluations(job.folder)["noop"]
    assert (len(evaluation.scores), evaluation.conditions.step) == (2, 400)
    checkpoints = {path: path.stat().st_mtime_ns for path in job.folder.glob("checkpoints/*/*")}
    (job.folder / "evaluation" / "noop" / "summary.json").unlink()
    assert run_suite(EVALUATED_SUITE) == ["running", "evaluating", "done"]
    assert run_suite(EVALUATED_SUITE.replace("episodes = 2", "episodes = 3"))[-1] == "done"
    assert len(read_evaluations(job.folder)["noop"].scores) == 3
    assert checkpoints == {
        path: path.stat().st_mtime_ns for path in job.folder.glob("checkpoints/*/*")
    }
    assert run_suite(EVALUATED_SUITE.replace("steps = 400", "steps = 500"))[-1] == "done"
    assert read_evaluations(job.folder)["noop"].conditions.step == 500


@pytest.mark.parametrize("is_stopped", [False, True])
def test_stopped_evaluation_has_not_failed(
    is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a signal ended fails its job only if nobody asked for it."""
    [job] = build_suite_jobs(tmp_path, EVALUATED_SUITE)
    monkeypatch.setattr(suite.SuiteJob, "has_used_budget", lambda _: True)
    monkeypatch.setattr(suite_runs, "run_command", lambda *_: -signal.SIGTERM)
    job.log_file.parent.mkdir(parents=True)
    job.log_file.write_text("")
    code = suite_runs.complete_job(job, lambda: None, lambda: is_stopped)
    suite_runs.finish_job(job, code)
    assert job.state == ("stopped" if is_stopped else "failed")


def write_scores(folder: Path, episodes: int = 2, **conditions: Any) -> Path:
    """An evaluation of step 400, with other conditions if given."""
    changed = EvaluationConditions(**({"env": "CartPole-v1", "step": 400} | conditions))
    ones = np.ones(episodes, np.int64)
    return write_evaluation(folder, Evaluation(changed, ones.astype(np.float64), ones))


@pytest.mark.parametrize(
    ("conditions", "is_made"),
    [
        ({}, True),
        ({"episodes": 3}, True),
        ({"episodes": 1}, False),
        ({"step": 300}, False),
        ({"sticky": 0.25}, False),
        ({"epsilon": 0.01}, False),
        ({"starts": "human"}, False),
    ],
)
def test_only_evaluations_of_the_same_kind_and_weights_count(
    conditions: dict[str, Any], is_made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a damaged one is made again."""
    [job] = build_suite_jobs(tmp_path, EVALUATED_SUITE)
    saved = SimpleNamespace(path=job.folder, metadata={"step": 400})
    monkeypatch.setattr(suite_evaluation, "find_checkpoint", lambda *_: saved)
    expected = ["evaluate", str(job.folder), "--episodes", "2", "--starts", "noop"]
    assert job.evaluation_commands() == [expected]
    folder = write_scores(job.folder, **conditions)
    assert job.evaluation_commands() == ([] if is_made else [expected])
    (folder / "episodes.csv").write_text("damaged")
    assert job.evaluation_commands() == [expected]


def test_human_starts_name_demonstrations_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset without demonstrations is evaluated from the states of the suite's sets, too."""
    monkeypatch.setattr(suite_evaluation, "check_restorable", lambda *_: None)
    table = {"starts": ["noop", "human", "noop"]}
    evaluation = parse_evaluation(table, ("games",))
    assert evaluation is not None
    config = preset("no-demos", env="ALE/Pong-v5", run__folder="nowhere")
    noop, human = evaluation.for_env("ALE/Pong-v5", 4, ("a-v0",)).missing_commands(config)
    common = ["evaluate", "nowhere", "--episodes", "200", "--starts"]
    assert noop == [*common, "noop", "--modules", "games"]
    assert human == [*common, "human", "--demos", "a-v0", "--modules", "games"]
    with pytest.raises(ConfigError, match="needs demonstrations: add demos"):
        evaluation.for_env("ALE/Pong-v5", 4, ())
    assert parse_evaluation(None, ()) is None
    assert parse_evaluation({}, ()) == SuiteEvaluation(200, ("noop",))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time limit of the test applies."""
    while not holds():
        time.sleep(0.1)


@pytest.mark.parametrize("parallel", [1, 3])
def test_parallel_jobs_run_at_same_time(
    parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many jobs as allowed are in progress at once, and never more."""
    jobs = build_suite_jobs(tmp_path, TINY_SUITE.replace("[0, 1]", "[0, 1, 2]"))
    barrier, counts = threading.Barrier(parallel), []

    def complete_together(job: suite.SuiteJob, *_: Any) -> int:
        barrier.wait()  # returns only when `parallel` jobs are here
        counts.append(sum(job.state == "running" for job in jobs))
        barrier.wait()
        return 0

    monkeypatch.setattr(suite_runs, "complete_job", complete_together)
    monkeypatch.setattr(suite.SuiteJob, "has_used_budget", lambda _: True)
    suite_runs.run_jobs(jobs, lambda _: None, parallel)
    assert {job.state for job in jobs} == {"done"}
    assert len(counts) == len(jobs) == 12
    assert max(counts) == parallel


@given(st.integers(1, 60), st.data())
def test_window_contains_running_job(count: int, data: st.DataObject) -> None:
    centre, room = data.draw(st.integers(0, count - 1)), data.draw(st.integers(-3, 70))
    runs: Any = list(range(count))
    shown = visible_jobs(runs, centre, room)
    assert centre in shown
    assert len(shown) == min(count, max(1, room))


def test_suite_table_shows_jobs(tmp_path: Path) -> None:
    from rich.console import Console

    from lookfurther.cli.suite import StatusBoard

    found = build_suite_jobs(tmp_path, TINY_SUITE)
    found[1].state, found[1].newest_row = (
        "running",
        {"step": 100, "minutes": 2.0, "return_mean": 21.5},
    )
    console = Console(width=100, height=40, record=True, file=io.StringIO())
    console.print(StatusBoard(found, console, None).render_table(found[1]))
    text = console.export_text()
    assert re.search(r"CartPole-v1 +│ no-demos +│ +1 +│ running +│ +25 % +│ +21.5 +│ +2.0", text)
    assert "7 waiting, 1 running" in text
