"""Tuning finds the best of its trials, continues where it stopped, and survives bad trials."""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lookfurther import Config
from lookfurther.errors import ConfigError, TrainingDiverged
from lookfurther.evaluation import tuning
from lookfurther.evaluation.tuning import PruningCallback, Space, read_space, tune
from lookfurther.training.callbacks import RunContext
from lookfurther.training.monitoring.summary import Summary
from tests.training_runs import tiny_config

pytest.importorskip("optuna")
SPACE: Space = {
    "learner.learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "learner.target_period": {"low": 10, "high": 20},
    "network.hidden": {"choices": [[8], [16, 16]]},
}


def score_of(config: Config) -> float:
    """Highest at a learning rate of 0.001."""
    return -abs(math.log10(config.learner.learning_rate) + 3)


@pytest.fixture
def fake_training(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Replaces training and evaluation by `score_of`; returns the trained configurations."""
    trained: list[Config] = []

    def train(config: Config, callbacks: Any) -> Summary:
        trained.append(config)
        (Path(config.run.folder) / "checkpoints").mkdir(parents=True)
        return Summary(Path(config.run.folder), 1, 1, 1, 0.0, 0.0, 0.0, 0.0, "done")

    monkeypatch.setattr(tuning, "train", train)
    monkeypatch.setattr(tuning.Agent, "load", lambda folder: trained[-1])
    monkeypatch.setattr(
        tuning, "evaluate", lambda agent, episodes: [SimpleNamespace(score=score_of(agent))]
    )
    return trained


def test_best_trial_is_returned_and_written(tmp_path: Path, fake_training: list[Config]) -> None:
    result = tune(tiny_config(tmp_path / "run"), SPACE, 6, tmp_path / "tuning")
    assert result.trials == len(fake_training) == 6
    assert result.score == max(map(score_of, fake_training))
    best = max(fake_training, key=score_of)
    assert result.settings["learner.learning_rate"] == best.learner.learning_rate
    assert result.settings["learner.target_period"] == best.learner.target_period
    assert tuple(result.settings["network.hidden"]) == best.network.hidden
    written = tomllib.loads((tmp_path / "tuning" / "best.toml").read_text())
    assert (written["score"], written["settings"]) == (result.score, result.settings)
    assert not list((tmp_path / "tuning").glob("trial_*/checkpoints"))


def test_search_continues_with_the_remaining_trials(
    tmp_path: Path, fake_training: list[Config]
) -> None:
    config = tiny_config(tmp_path / "run")
    tune(config, SPACE, 2, tmp_path / "tuning")
    result = tune(config, SPACE, 5, tmp_path / "tuning")
    assert result.trials == len(fake_training) == 5
    assert result.score == max(map(score_of, fake_training))
    assert len({config.learner.learning_rate for config in fake_training}) == 5
    assert tune(config, SPACE, 5, tmp_path / "tuning") == result
    assert len(fake_training) == 5


def interrupt_second(real: Callable[..., Summary]) -> Callable[..., Summary]:
    calls: list[int] = []

    def train(*arguments: Any, **options: Any) -> Summary:
        calls.append(1)
        summary = real(*arguments, **options)
        return summary._replace(stop_reason="SIGINT") if len(calls) == 2 else summary

    return train


def test_interrupted_trial_is_tried_again(
    tmp_path: Path, fake_training: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "train", interrupt_second(tuning.train))
    config = tiny_config(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        tune(config, SPACE, 3, tmp_path / "tuning")
    assert tune(config, SPACE, 3, tmp_path / "tuning").trials == 3
    assert len(fake_training) == 4


def test_diverged_trial_counts_as_failed(
    tmp_path: Path, fake_training: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: Config, real: Any = tuning.train, **options: Any) -> Summary:
        if not fake_training:
            fake_training.append(config)
            raise TrainingDiverged("the loss is not finite")
        return real(config, **options)

    monkeypatch.setattr(tuning, "train", train)
    result = tune(tiny_config(tmp_path / "run"), SPACE, 3, tmp_path / "tuning")
    assert result.trials == 3
    assert result.score == max(map(score_of, fake_training[1:]))


def test_trial_below_median_stops_its_run(tmp_path: Path) -> None:
    network: Any = None
    context = RunContext(tiny_config(tmp_path), tmp_path, network, step=100)
    reported: list[tuple[float, int]] = []
    trial = SimpleNamespace(
        report=lambda value, step: reported.append((value, step)), should_prune=lambda: True
    )
    PruningCallback(trial).on_log(context, {"return_low_epsilon": math.nan})
    assert (reported, context.stop_reason) == ([], None)
    PruningCallback(trial).on_log(context, {"return_low_epsilon": 5.0})
    assert (reported, context.stop_reason) == ([(5.0, 100)], "pruned")


def test_real_trial_trains_and_scores(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", run__steps=120)
    result = tune(config, SPACE, 1, tmp_path / "tuning", episodes=2)
    assert result.score >= 8  # CartPole falls after eight steps at the earliest
    assert (tmp_path / "tuning" / "trial_0000" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no setting"),
        ('"learner.gama" = { choices = [1] }', r"unknown setting learner\.gama"),
        ('"learner.gamma" = { low = 0.9 }', "needs low and high"),
        ('"learner.gamma" = 0.9', "needs low and high"),
        ('"learner.gamma" = { choices = [] }', "needs a list of choices"),
        ('"network.name" = { low = 1, high = 2 }', r"network\.name is not a number"),
        ("[", "cannot be read"),
    ],
)
def test_bad_space_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "space.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_space(tmp_path / "space.toml", tiny_config(tmp_path))


def test_default_space_is_valid(tmp_path: Path) -> None:
    assert "learner.learning_rate" in read_space(None, tiny_config(tmp_path))


def test_missing_optuna_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'lookfurther\[tune\]'"):
        tune(tiny_config(tmp_path / "run"), SPACE, 1, tmp_path / "tuning")
