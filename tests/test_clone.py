"""Behaviour cloning reaches the demonstrator, and its folder is a run like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther import Agent, clone, evaluate, preset, replace, train
from lookfurther.cli.main import main
from lookfurther.config import Config, EnvConfig
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.saved_demos import load_demos
from lookfurther.demos.storage import save_episodes
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.report.runs import load_run
from lookfurther.training.clone import SEGMENT_STEPS, CloneSummary, split_steps
from lookfurther.training.monitoring.metrics import read_metrics
from tests.training_runs import newest_checkpoint, tiny_config


def damped_policy(env: gymnasium.Env) -> Callable[[], int]:
    """Push in the direction the pole falls, and towards the centre: 500 steps."""
    cart: Any = env.unwrapped
    return lambda: int(np.dot(cart.state, (0.1, 0.3, 1.0, 0.5)) > 0)


@pytest.fixture(scope="module")
def demo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), damped_policy, range(4))
    assert [episode.score for episode in episodes] == [500.0] * 4
    folder = tmp_path_factory.mktemp("demos")
    return save_episodes("tests/damped-v0", episodes, spec, "a rule", folder)


def clone_config(folder: Path, demo_path: Path, **overrides: Any) -> Config:
    settings: dict[str, Any] = {
        "learner__imitated_episodes": "all",
        "learner__agent_items": 28,
        "learner__learning_rate": 1e-2,
        "network__hidden": (32,),
    }
    return tiny_config(folder, demo_path, **(settings | overrides))


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory, demo_path: Path) -> CloneSummary:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return clone(clone_config(folder, demo_path), epochs=40)


def test_clone_reaches_nine_tenths_of_demonstrator(cloned: CloneSummary) -> None:
    agent = Agent.load(cloned.folder)
    scores = [episode.score for episode in evaluate(agent, episodes=10)]
    assert cloned.held_out_accuracy >= 0.8
    assert np.mean(scores) >= 450


def test_saved_weights_have_lowest_held_out_loss(cloned: CloneSummary) -> None:
    rows = read_metrics(cloned.folder / "metrics.jsonl")
    assert len(rows) == cloned.epochs
    best = min(rows, key=lambda row: row["loss_held_out"])
    assert newest_checkpoint(cloned.folder).metadata["updates"] == best["updates"]
    assert (cloned.held_out_loss, cloned.held_out_accuracy) == (
        best["loss_held_out"],
        best["accuracy_held_out"],
    )


def test_clone_folder_is_accepted_like_a_run(
    cloned: CloneSummary, tmp_path: Path, demo_path: Path
) -> None:
    run = str(cloned.folder)
    assert main(["evaluate", run, "--episodes", "2"]) == 0
    assert main(["report", run, "--out", str(tmp_path / "report")]) == 0
    assert "clone" in (tmp_path / "report" / "index.html").read_text()
    assert main(["export", run, "--out", str(tmp_path / "agent")]) == 0
    assert Agent.load(tmp_path / "agent").config.preset == "clone"
    assert (
        main(
            ["video", run, "--out", str(tmp_path / "agent.gif"), "--episodes", "1", "--speed", "20"]
        )
        == 0
    )
    assert load_run(cloned.folder).evaluations
    config = clone_config(tmp_path / "continued", demo_path, run__steps=8)
    assert train(config, init=cloned.folder).step == 8


def test_clone_command_writes_default_folder(
    tmp_path: Path, demo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--scale", "small", "--env", "CartPole-v1", "--demos", str(demo_path)]
    assert main(["clone", "apex-dqfd", *arguments, "--epochs", "1", "--network.hidden", "8"]) == 0
    config = load_run(tmp_path / "runs" / "CartPole-v1-clone-0").config
    assert config.learner.imitated_episodes == "all"


def test_same_seed_gives_identical_weights(tmp_path: Path, demo_path: Path) -> None:
    configs = [clone_config(tmp_path / name, demo_path) for name in "ab"]
    first, second = (clone(config, epochs=2)._replace(minutes=0.0) for config in configs)
    assert first._replace(folder=second.folder) == second
    other = clone(replace(configs[0], run__seed=1, run__folder=str(tmp_path / "c")), epochs=2)
    assert other.held_out_loss != first.held_out_loss


def test_patience_ends_cloning(tmp_path: Path, demo_path: Path) -> None:
    config = clone_config(tmp_path / "run", demo_path, learner__learning_rate=1e-30)
    assert clone(config, epochs=50, patience=2).epochs == 3  # nothing improves after the first


def test_without_held_out_steps_all_are_learned_and_measured(
    tmp_path: Path, demo_path: Path
) -> None:
    """The accuracy is the share of all demonstrated actions that the saved agent takes."""
    summary = clone(clone_config(tmp_path / "run", demo_path), epochs=3, held_out=0.0)
    agent, episodes = Agent.load(summary.folder), load_demos(demo_path)
    is_equal = [
        agent.q_values(episode.planes[:-1].reshape(len(episode), -1)).argmax(-1) == episode.actions
        for episode in episodes
    ]
    assert summary.held_out_accuracy == pytest.approx(np.concatenate(is_equal).mean())
    rows = read_metrics(summary.folder / "metrics.jsonl")
    best = min(rows, key=lambda row: row["loss_learned"])
    assert summary.held_out_accuracy == best["accuracy_learned"]
    learned, held_out = split_steps(30, 0.0, np.random.default_rng(0))
    assert (learned.tolist(), held_out.tolist()) == (list(range(30)), [])


@given(st.integers(SEGMENT_STEPS + 1, 2000), st.floats(0.01, 0.99), st.integers(0, 9))
def test_split_is_a_partition_by_segments(count: int, share: float, seed: int) -> None:
    learned, held_out = split_steps(count, share, np.random.default_rng(seed))
    assert sorted([*learned, *held_out]) == list(range(count))
    assert len(learned) > 0
    assert len(held_out) > 0
    assert not set(learned // SEGMENT_STEPS) & set(held_out // SEGMENT_STEPS)


@pytest.mark.parametrize("held_out", [0.0, 0.1])
def test_sets_without_imitated_steps_are_refused(held_out: float) -> None:
    with pytest.raises(DemonstrationError, match="0 demonstrated steps are too few"):
        split_steps(0, held_out, np.random.default_rng(0))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(DemonstrationError, match="50 demonstrated steps are too few"):
        split_steps(SEGMENT_STEPS, 0.1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs must be 1 or more"),
        ({"patience": 0}, "patience must be 1 or more"),
        ({"held_out": 1.0}, "held_out must be 0 or more and below 1"),
        ({"held_out": -0.1}, "held_out must be 0 or more and below 1"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path, demo_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        clone(clone_config(tmp_path / "run", demo_path), **arguments)


def test_clone_without_demonstrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clone needs demonstrations: add --demos"):
        clone(preset("apex-dqfd", env="CartPole-v1", run__folder=str(tmp_path / "run")))
