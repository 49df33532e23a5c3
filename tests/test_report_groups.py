"""Reports: which runs are a group, its name, and the order of its seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lookfurther.config import Config, flatten_settings, replace
from lookfurther.errors import ConfigError
from lookfurther.presets import preset
from lookfurther.report import tables
from lookfurther.report.runs import find_runs, group_runs, learning_fingerprint
from tests.report_runs import (
    BASE_CONFIG,
    make_rows,
    make_run,
    write_run_folder,
)


def different_value(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return {str: f"{value}x", int: 7, float: 0.123, tuple: ("y",)}[type(value)]


def with_unchecked_value(config: Config, name: str) -> Config:
    """A configuration with another value of a setting, which need not be a valid one."""
    value = different_value(flatten_settings(config)[name])
    section, _, leaf = name.partition(".")
    if leaf:
        value = dataclasses.replace(getattr(config, section), **{leaf: value})
    return dataclasses.replace(config, **{section: value})


# Settings that change neither the data nor the updates of a run.
NOT_LEARNING = {"run.seed", "run.folder", "run.steps", "run.minutes", "run.device", "run.compile"}
NOT_LEARNING |= {"run.threads", "environment.threads", "environment.processes"}
NOT_LEARNING |= {"run.log_period", "run.loggers", "run.checkpoint_period", "run.checkpoint_minutes"}
NOT_LEARNING |= {"run.keep_checkpoints", "run.keep_final_replay"}
NOT_LEARNING |= {"environment.worker_timeout", "environment.max_failures"}


@pytest.mark.parametrize("name", flatten_settings(BASE_CONFIG))
def test_groups_are_split_by_what_changes_learning(name: str) -> None:
    changed = with_unchecked_value(BASE_CONFIG, name)
    assert flatten_settings(changed)[name] != flatten_settings(BASE_CONFIG)[name]
    assert (learning_fingerprint(changed) == learning_fingerprint(BASE_CONFIG)) == (
        name in NOT_LEARNING
    )
    changed = dataclasses.replace(changed, run=dataclasses.replace(changed.run, seed=5))
    groups = group_runs([make_run(BASE_CONFIG, make_rows(1)), make_run(changed, make_rows(1))])
    assert len(groups) == (1 if name in NOT_LEARNING else 2)
    if name not in NOT_LEARNING and changed.env == BASE_CONFIG.env:
        assert len({g.variant for g in groups}) == 2


def test_labels_and_settings_table_omit_bookkeeping() -> None:
    """Two variants on different machines are named after the setting that makes them variants."""
    other = replace(BASE_CONFIG, learner__gamma=0.9, run__threads=3, run__log_period=7)
    other = replace(other, run__steps=1000, run__checkpoint_period=5, environment__processes=2)
    groups = group_runs([make_run(c, make_rows(1)) for c in (BASE_CONFIG, other)])
    assert [g.variant for g in groups] == ["apex-dqfd, gamma 0.9", "apex-dqfd, gamma 0.999"]
    table = tables.settings_table(groups)
    assert table is not None
    assert [row[0].text for row in table.rows] == ["learner.gamma"]


def test_seeds_are_in_numeric_order() -> None:
    """In the order of their folders, seed 10 would come before seed 2."""
    runs = [make_run(replace(BASE_CONFIG, run__seed=s), make_rows(1)) for s in (10, 0, 2)]
    (group,) = group_runs(runs)
    assert [run.config.run.seed for run in group.runs] == [0, 2, 10]
    assert tables.runs_table([group]).rows[0][2].text == "0, 2, 10"


def test_variant_label_shows_differing_settings() -> None:
    pong = [replace(BASE_CONFIG, run__seed=seed) for seed in range(3)]
    hero = replace(BASE_CONFIG, env="ALE/Hero-v5", demos=("hero/mine-v0",))
    low_gamma = replace(BASE_CONFIG, learner__gamma=0.9)
    sticky = replace(preset("no-tc", env="ALE/Pong-v5"), environment__sticky_prob=0.25)
    sizes = {
        (g.env, g.variant): len(g.runs)
        for g in group_runs([make_run(c, make_rows(1)) for c in (*pong, hero, low_gamma, sticky)])
    }
    assert sizes == {
        ("ALE/Hero-v5", "apex-dqfd, gamma 0.999"): 1,
        ("ALE/Pong-v5", "apex-dqfd, gamma 0.999"): 3,
        ("ALE/Pong-v5", "apex-dqfd, gamma 0.9"): 1,
        ("ALE/Pong-v5", "no-tc, sticky 0.25"): 1,
    }


def test_same_settings_and_seed_are_an_error() -> None:
    with pytest.raises(ConfigError, match="run-0 and run-0 learn with the same settings and seed"):
        group_runs(
            [
                make_run(BASE_CONFIG, make_rows(1)),
                make_run(replace(BASE_CONFIG, run__folder="elsewhere"), make_rows(1)),
            ]
        )


def test_find_runs_lists_each_run_once(tmp_path: Path) -> None:
    paths = [write_run_folder(make_run(BASE_CONFIG, []), tmp_path / "runs" / name) for name in "ab"]
    (tmp_path / "runs" / "no run").mkdir()
    assert find_runs([tmp_path / "runs", paths[1], tmp_path / "runs" / "." / "a"]) == paths
    with pytest.raises(ConfigError, match="no run holds no run"):
        find_runs([tmp_path / "runs" / "no run"])
