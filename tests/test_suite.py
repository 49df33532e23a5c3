"""Suites: the grid of a file, errors before anything starts, and repeated runs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.cli.main import main
from lookfurther.cli.suite import visible_jobs
from lookfurther.cli.train import parse_train_options
from lookfurther.config import Config, replace
from lookfurther.envs.naming import game_of
from lookfurther.errors import ConfigError
from lookfurther.evaluation import suite
from lookfurther.evaluation.paper_scores import game_titles
from lookfurther.presets import PRESETS, preset
from lookfurther.training.config_json import to_json
from lookfurther.validation import validate

ROOT = Path(__file__).parents[1]
TINY_SUITE = """
presets = ["no-demos", "apex-dqn"]
seeds = [0, 1]
scale = "small"
envs = ["CartPole-v1", "Acrobot-v1"]
[budget]
steps = 400
[settings]
learner.gamma = 0.9
"replay.horizons" = [1, 2]
[settings.replay]
learning_starts = 100
capacity = 2000
[settings.actor]
lanes = 4
"""
ONE_JOB_SUITE = (
    TINY_SUITE.replace(', "apex-dqn"', "").replace(', "Acrobot-v1"', "").replace("[0, 1]", "[0]")
)


def write_suite(folder: Path, text: str) -> str:
    path = folder / "tiny.toml"
    path.write_text(text)
    return str(path)


def build_suite_jobs(folder: Path, text: str) -> list[suite.SuiteJob]:
    return suite.build_jobs(suite.read_suite(write_suite(folder, text))[1], folder / "out")


# The grid


def test_suite_file_builds_grid_with_settings(tmp_path: Path) -> None:
    found = build_suite_jobs(tmp_path, TINY_SUITE)
    cells = [(j.config.env, j.config.preset, j.config.run.seed) for j in found]
    assert cells == [
        (env, name, seed)
        for env in ("CartPole-v1", "Acrobot-v1")
        for name in ("no-demos", "apex-dqn")
        for seed in (0, 1)
    ]
    assert len({j.folder for j in found}) == 8
    for job in found:
        usual = preset(job.config.preset, "small")
        changed = replace(
            usual,
            env=job.config.env,
            learner__gamma=0.9,
            replay__horizons=(1, 2),
            replay__learning_starts=100,
            replay__capacity=2000,
            actor__lanes=4,
            run__steps=400,
            run__seed=job.config.run.seed,
            run__folder=str(job.folder),
        )
        assert job.config == changed


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.booleans(),
    st.sampled_from([(), (16,), (16, 32)]),
    st.floats(0, 1),
    st.sampled_from(["raw", "clip"]),
)
def test_train_arguments_reproduce_job_settings(
    name: str, full: bool, hidden: tuple[int, ...], gamma: float, reward: str
) -> None:
    """All settings of a suite reach the process that trains."""
    config = preset(name, "small", env="CartPole-v1", run__folder="a b/c", run__minutes=0.5)
    config = replace(config, environment__full_actions=full, network__hidden=hidden)
    config = replace(config, learner__gamma=gamma, environment__reward_transform=reward)
    demos = ("x/y-v0",) if config.uses_demos else ()
    job = suite.SuiteJob(validate(replace(config, demos=demos)), "small")
    command, *words = job.train_arguments()
    assert command == "train"
    options = parse_train_options(words)
    assert options.config == job.config
    assert not options.resume


def test_demo_names_follow_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset with demonstrations gets those of its game, another one gets none."""
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    text = 'presets = ["apex-dqfd", "no-demos"]\ndemos = ["me/{game}-v0", "all-v0"]\n'
    found = build_suite_jobs(tmp_path, text + 'envs = ["ALE/MontezumaRevenge-v5", "CartPole-v1"]')
    assert [job.config.demos for job in found] == [
        ("me/montezuma_revenge-v0", "all-v0"),
        (),
        ("me/CartPole-v0", "all-v0"),
        (),
    ]


def test_shipped_suites_match_paper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """42 games in the paper's order, and the six games and five curves of Figure 3."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(suite.catalog, "find_set", lambda word: word)
    found = suite.build_jobs(suite.read_suite("paper")[1], tmp_path)
    assert [game_of(j.config.env) for j in found[::2]] == list(game_titles())
    assert {j.config.preset for j in found} == {"apex-dqfd", "apex-dqfd-deeper"}
    found = suite.build_jobs(suite.read_suite("ablation")[1], tmp_path)
    games = {"montezuma_revenge", "private_eye", "ms_pacman", "seaquest", "hero", "kangaroo"}
    assert {game_of(j.config.env) for j in found} == games
    variants = {name for name, p in PRESETS.items() if p.description.startswith("Fig. 3")}
    assert {j.config.preset for j in found} == variants | {"apex-dqfd"}
    assert len(found) == 30
    assert all(j.config.run.steps == Config().run.steps for j in found)


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("no-demos", "nodemos"), "unknown preset 'nodemos'"),
        (("CartPole-v1", "CartPool-v1"), "CartPool"),
        (("learner.gamma", "learner.gama"), "unknown setting learner.gama"),
        (("0.9", "9.0"), "learner.gamma must be in"),
        (("0.9", '"high"'), "learner.gamma must be a finite number"),
        (('"small"', '"smal"'), "unknown scale 'smal'"),
        (("scale", "scales"), "unknown key scales"),
        (("steps", "hours"), "unknown budget.hours"),
        (("seeds = [0, 1]", "seeds = [0, 0]"), "seeds must be a list of whole numbers, each once"),
        (("seeds = [0, 1]", "seeds = 3"), "seeds must be a list, not 3"),
        (("lanes = 4", "lanes = 4\n[settings.run]\nseed = 3"), "settings.run.seed is the suite's"),
        (("no-demos", "apex-dqfd"), "no demonstrations are given"),
        (("presets =", 'demos = ["no/such-v0"]\npresets = ["no-tc"] #'), "no/such-v0"),
        (("[budget]", "[budget"), "cannot be read"),
    ],
)
def test_invalid_suite_prints_one_line_and_starts_nothing(
    change: tuple[str, str], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert change[0] in TINY_SUITE
    path = write_suite(tmp_path, TINY_SUITE.replace(*change))
    assert main(["suite", path, "--out", str(tmp_path / "out")]) in (2, 4)
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_unknown_suite_lists_shipped_suites(capsys: Any) -> None:
    assert main(["suite", "papers"]) == 2
    assert "one of ablation, paper" in capsys.readouterr().err


def test_run_dir_with_other_settings_is_refused(tmp_path: Path) -> None:
    [job] = build_suite_jobs(tmp_path, ONE_JOB_SUITE)
    job.folder.mkdir(parents=True)
    (job.folder / "config.json").write_text(to_json(replace(job.config, learner__gamma=0.8)))
    with pytest.raises(ConfigError, match="holds a run of other settings"):
        build_suite_jobs(tmp_path, ONE_JOB_SUITE)
    longer = replace(job.config, run__steps=7)  # the length of a run may differ
    (job.folder / "config.json").write_text(to_json(longer))
    assert [j.state for j in build_suite_jobs(tmp_path, ONE_JOB_SUITE)] == ["waiting"]


# Running


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


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time limit of the test applies."""
    while not holds():
        time.sleep(0.1)


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
