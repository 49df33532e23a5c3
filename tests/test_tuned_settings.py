"""Tuned settings are valid, come from measurements, and can be used by name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.cli.clone import parse_clone_options
from lookfurther.cli.main import main
from lookfurther.cli.train import parse_train_options
from lookfurther.config import Config, flatten_settings
from lookfurther.demos.catalog import find_set
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.evaluation.suite import build_jobs
from lookfurther.presets import TUNED, preset
from lookfurther.report.runs import group_runs
from lookfurther.settings.tuned import read_tuned_settings
from lookfurther.system.formatting import format_score
from lookfurther.training.run_dir import read_config
from lookfurther.validation import validate
from tests.report_runs import make_run

ROOT = Path(__file__).parents[1]
ENTRIES = read_tuned_settings()
TINY = "--run.steps 1000 --replay.learning-starts 500 --run.log-period 500 --run.evaluate-period 0"


def measured_numbers(source: str) -> list[float]:
    """Every number in a result file or a note."""
    text = (ROOT / source).read_text(encoding="utf-8")
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_ten_environments_have_tuned_settings() -> None:
    families = ("ALE/", "MiniGrid-", "CartPole-", "Acrobot-", "MountainCar-")
    assert len(ENTRIES) >= 10
    for family in families:
        assert any(env.startswith(family) for env in ENTRIES), family


@pytest.mark.parametrize("env", ENTRIES)
def test_tuned_settings_are_valid(env: str) -> None:
    config = validate(preset(TUNED, env=env))
    assert (config.env, config.preset) == (env, TUNED)
    assert config.uses_demos == bool(ENTRIES[env].demos)


@pytest.mark.parametrize("env", ENTRIES)
def test_tuned_settings_differ_from_preset(env: str) -> None:
    tuned = ENTRIES[env]
    defaults = flatten_settings(preset(tuned.preset, tuned.scale))
    values = flatten_settings(preset(TUNED, env=env))
    assert tuned.settings
    for name in tuned.settings:
        assert values[name] != defaults[name], name
    changed = {name for name in values if values[name] != defaults[name]}
    assert changed - {"env", "preset", "demos"} == set(tuned.settings)


@pytest.mark.parametrize("env", ENTRIES)
def test_tuned_scores_are_in_their_source(env: str) -> None:
    tuned = ENTRIES[env]
    assert len(tuned.scores) == len(tuned.seeds) > 0
    assert tuned.score == pytest.approx(np.mean(tuned.scores))
    assert tuned.minutes > 0
    assert tuned.machine
    assert tuned.score_type
    measured = measured_numbers(tuned.source)
    for score in tuned.scores:
        assert any(abs(score - other) < 1e-3 for other in measured), score


def test_new_runs_have_result_of_their_settings() -> None:
    """A row of the result file was measured with the settings of its entry."""
    source = "benchmarks/results/tuned.json"
    rows = json.loads((ROOT / source).read_text())["rows"]
    measured: dict[tuple[str, int], dict[str, Any]] = {(r["env"], r["seed"]): r for r in rows}
    entries = {env: tuned for env, tuned in ENTRIES.items() if tuned.source == source}
    assert {env for env, _ in measured} == set(entries)
    for env, tuned in entries.items():
        for seed, score in zip(tuned.seeds, tuned.scores, strict=True):
            row = measured[env, seed]
            assert row["mean"] == pytest.approx(score, abs=1e-3)
            assert (row["preset"], row["scale"]) == (tuned.preset, tuned.scale)
            assert row["settings"] == tuned.settings
            assert row["steps"] >= tuned.settings["run.steps"]


@pytest.mark.parametrize("env", ENTRIES)
def test_sets_are_shipped_or_have_commands(env: str) -> None:
    tuned = ENTRIES[env]
    named = [name for name in tuned.demos if not name.startswith("shipped/")]
    assert bool(named) == bool(tuned.demo_commands)
    for name in named:
        assert f"--name {name}" in tuned.demo_commands[-1]
    assert all(command.startswith("lookfurther demos ") for command in tuned.demo_commands)


def test_missing_set_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name, command = next(
        (e.demos[0], e.demo_commands[0]) for e in ENTRIES.values() if e.demo_commands
    )
    with pytest.raises(DemonstrationError, match=f"{name}: make them with {command}"):
        find_set(name)


# Use by name


def test_options_replace_tuned_settings() -> None:
    line = "tuned --env=CartPole-v1 --run.steps 7000 --learner.gamma 0.9"
    config = parse_train_options(shlex.split(line)).config
    tuned = preset(TUNED, env="CartPole-v1", run__steps=7000, learner__gamma=0.9)
    assert config == tuned
    assert config.actor.lanes == ENTRIES["CartPole-v1"].settings["actor.lanes"]


def test_last_environment_and_scale_count() -> None:
    """As with every other option that is given twice."""
    line = "tuned --env Acrobot-v1 --env CartPole-v1"
    assert parse_train_options(shlex.split(line)).config == preset(TUNED, env="CartPole-v1")
    line = "no-demos --scale paper --env CartPole-v1 --scale=small"
    options = parse_train_options(shlex.split(line))
    assert options.scale == "small"
    assert options.config == preset("no-demos", "small", env="CartPole-v1")


def test_other_commands_take_tuned_settings() -> None:
    env = next(env for env, tuned in ENTRIES.items() if tuned.demos)
    options = parse_clone_options(["tuned", "--env", env])
    assert options.config.demos == ENTRIES[env].demos


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "tuned settings need an environment: set env to one of CartPole-v1"),
        ({"env": "Nope-v0"}, "no tuned settings for Nope-v0"),
        ({"env": ["CartPole-v1"]}, "no tuned settings for \\['CartPole-v1'\\]"),
        ({"env": "CartPole-v1", "scale": "small"}, "have their own scale"),
    ],
)
def test_wrong_use_is_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preset(TUNED, **arguments)


def test_presets_command_lists_tuned_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    for env, tuned in ENTRIES.items():
        assert f"  {env}: score {format_score(tuned.score)} ({tuned.score_type})\n" in out
        for command in tuned.demo_commands:
            assert f"first: {command}\n" in out


def test_training_with_tuned_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(f"train tuned --env CartPole-v1 --quiet {TINY}")) == 0
    config = read_config(Path("runs/CartPole-v1-tuned-0/config.json"))
    expected = flatten_settings(preset(TUNED, env="CartPole-v1"))
    differing = {n for n, v in flatten_settings(config).items() if v != expected[n]}
    assert differing == {word[2:].replace("-", "_") for word in TINY.split()[::2]}


def test_suite_trains_with_tuned_settings(tmp_path: Path) -> None:
    """The command of a job gives the same configuration."""
    data = {"envs": ["CartPole-v1", "Acrobot-v1"], "presets": [TUNED, "no-demos"]}
    for job in build_jobs(data, tmp_path):
        arguments = job.train_arguments()[1:]
        assert parse_train_options(arguments).config == job.config


def test_suite_keeps_tuned_demonstrations_unless_it_names_others(tmp_path: Path) -> None:
    data: dict[str, Any] = {"envs": ["ALE/Freeway-v5"], "presets": [TUNED]}
    (job,) = build_jobs(data, tmp_path)
    assert job.config.demos == ("shipped/freeway",)
    names = ["shipped/{game}", "shipped/{game}"]
    (job,) = build_jobs(data | {"demos": names}, tmp_path)
    assert job.config.demos == ("shipped/freeway", "shipped/freeway")


def test_report_has_one_variant_for_all_environments() -> None:
    """Settings that differ between environments do not split it; changes by the user do."""

    def labels(*configs: Config) -> list[str]:
        return sorted({group.variant for group in group_runs([make_run(c, []) for c in configs])})

    tuned = [preset(TUNED, env=env) for env in ("CartPole-v1", "Acrobot-v1", "FrozenLake-v1")]
    assert labels(*tuned) == ["tuned"]
    for gamma in (0.9, Config().learner.gamma):
        changed = preset(TUNED, env="CartPole-v1", learner__gamma=gamma)
        assert labels(*tuned, changed) == ["tuned", f"tuned, gamma {gamma:g}"]
