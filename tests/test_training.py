"""Training runs: determinism, rates, limits, custom environments and memory."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lookfurther import Agent, Config, Spec, replace, train
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.rollout import EpisodeResult
from lookfurther.training import hardware, run
from lookfurther.training.checkpoints import best_checkpoint, checkpoint
from lookfurther.training.loop import TrainingLoop, updates_due
from lookfurther.training.monitoring.metrics import TrainingClock, read_metrics
from tests.training_runs import (
    TIME_METRICS,
    WalkEnv,
    assert_checkpoints_equal,
    newest_checkpoint,
    rows_without_times,
    tiny_config,
)

# Determinism


def test_same_seed_gives_identical_run(tmp_path: Path, balance_demos: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(runs, (0, 0, 1), strict=True):
        train(tiny_config(folder, balance_demos, run__seed=seed))
    a, b, c = map(rows_without_times, runs)
    assert len(a) == 4
    assert a == b
    assert a != c
    assert_checkpoints_equal(newest_checkpoint(runs[0]), newest_checkpoint(runs[1]))
    first, other = (newest_checkpoint(run).files["weights"] for run in (runs[0], runs[2]))
    assert not any(torch.equal(first[name], other[name]) for name in first)


def expected_first_priority(q: np.ndarray, episode: Episode, t: int, n: int) -> float:
    """Huber loss of the TD error of values q [T + 1, A], online and target network the same."""
    h = lambda z: np.sign(z) * (np.sqrt(abs(z) + 1) - 1) + 0.01 * z  # noqa: E731
    back = lambda x: (  # noqa: E731
        np.sign(x) * (((np.sqrt(1 + 0.04 * (abs(x) + 1.01)) - 1) / 0.02) ** 2 - 1)
    )
    steps = min(n, len(episode) - t)
    r = sum(0.999**j * float(episode.rewards[t + j]) for j in range(steps))
    ended = episode.terminal and t + steps == len(episode)
    goal = h(r + (0.0 if ended else 0.999**steps * back(q[t + steps].max())))
    error = abs(q[t, episode.actions[t]] - goal)
    return error**2 / 2 if error <= 1 else error - 0.5


def test_initial_demo_priorities_are_td_errors(tmp_path: Path, balance_demos: Path) -> None:
    """The run ends before its first update."""
    config = tiny_config(tmp_path / "run", balance_demos, run__steps=100)
    assert train(config).updates == 0
    saved, agent = newest_checkpoint(tmp_path / "run"), Agent.load(tmp_path / "run")
    mass, start = saved.files["expert_replay"]["mass"][0], 0
    for episode in catalog.load_set(str(balance_demos), agent.spec, config.environment):
        q = agent.q_values(episode.planes).astype(np.float64)
        for t in range(len(episode)):
            wanted = [expected_first_priority(q, episode, t, n) for n in config.replay.horizons]
            given = (np.array(wanted) + config.replay.priority_offset) ** config.replay.alpha
            assert mass[start + t].numpy() == pytest.approx(given, rel=1e-3)
        assert (mass[start + len(episode)] == 0).all()
        start += len(episode) + 1
    assert (mass[start:] == 0).all()


def test_evaluation_does_not_change_training(tmp_path: Path) -> None:
    """Evaluations change no number of a run, and save the best weights."""
    for folder, period in (("plain", 0), ("evaluated", 100)):
        config = tiny_config(
            tmp_path / folder, run__evaluate_period=period, run__evaluate_episodes=3
        )
        train(config)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "plain"), newest_checkpoint(tmp_path / "evaluated")
    )
    plain, evaluated = (
        rows_without_times(tmp_path / "plain"),
        rows_without_times(tmp_path / "evaluated"),
    )
    scores = {row["step"]: row.pop("evaluation_mean", None) for row in evaluated}
    assert plain == evaluated
    assert scores.pop(100) is None  # no update yet, so no evaluation
    saved, _ = checkpoint.load_newest(tmp_path / "evaluated" / "best")
    assert saved is not None
    assert saved.metadata["score"] == max(scores.values())
    assert scores[saved.metadata["step"]] == max(scores.values())
    chosen = Agent.load(tmp_path / "evaluated").network.state_dict()
    assert all(torch.equal(chosen[name], w) for name, w in saved.files["weights"].items())


def test_best_weights_have_highest_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run resumes from step 200 and gets other scores at steps 300 and 400."""
    folder, scores, weights_by_score = tmp_path / "run", iter((1, 5, 3, 4, 4, 7, 6, 2, 8)), {}

    def scripted_evaluation(*_: Any) -> list[EpisodeResult]:
        score = float(next(scores))
        weights_by_score[score] = {
            k: v.clone() for k, v in loops[-1].learner.online_network.state_dict().items()
        }
        return [EpisodeResult(array("d", [score]))]

    def record_loop(self: TrainingLoop, *arguments: Any) -> None:
        loops.append(self)
        original_init(self, *arguments)

    loops, original_init = [], TrainingLoop.__init__
    monkeypatch.setattr(TrainingLoop, "__init__", record_loop)
    monkeypatch.setattr(best_checkpoint, "play_episodes", scripted_evaluation)
    config = tiny_config(folder, run__checkpoint_period=200, run__evaluate_period=100)
    for expected in ((300, 5), (300, 5), (300, 7), (400, 8)):
        train(config, resume=(folder / "checkpoints").exists())
        agent = Agent.load(folder)
        (path,) = (folder / "best").iterdir()
        assert (agent.step, checkpoint.load(path).metadata["score"]) == expected
        kept = agent.network.state_dict()
        assert all(torch.equal(kept[k], v) for k, v in weights_by_score[float(expected[1])].items())
        shutil.rmtree(folder / "checkpoints" / "step_000000000400")


# Time limits


def test_time_limit_stops_with_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gains a second at every reading and once goes back by an hour."""
    readings = []

    def now() -> float:
        readings.append(None)
        return len(readings) - (3600.0 if len(readings) > 40 else 0.0)

    monkeypatch.setattr(run, "TrainingClock", lambda seconds=0.0: TrainingClock(seconds, now))
    config = tiny_config(tmp_path / "run", run__minutes=2.0, run__log_period=8, run__steps=10_000)
    summary = train(config)
    assert summary.stop_reason == "time"
    assert 2.0 <= summary.minutes < 2.1
    assert newest_checkpoint(tmp_path / "run").metadata["step"] == summary.step < 10_000
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    minutes = [row["minutes"] for row in rows]
    assert minutes == sorted(minutes)
    assert all(row[name] >= 0 for row in rows for name in TIME_METRICS)
    assert (
        train(config, resume=True).step == summary.step + 4
    )  # the time limit counts time before the resume
    longer = train(replace(config, run__minutes=4.0), resume=True)
    assert 4.0 <= longer.minutes < 4.2


def test_checkpoints_follow_checkpoint_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock is a minute; a checkpoint is due after 30 of them."""
    readings, saves = [], []

    def now() -> float:
        readings.append(None)
        return 60.0 * len(readings)

    write = checkpoint.save
    monkeypatch.setattr(run, "TrainingClock", lambda seconds=0.0: TrainingClock(seconds, now))
    monkeypatch.setattr(checkpoint, "save", lambda *a: (saves.append(len(readings)), write(*a))[1])
    train(tiny_config(tmp_path / "run", run__checkpoint_minutes=30.0, run__log_period=10_000))
    gaps = np.diff(saves[:-1])
    assert len(gaps) >= 2
    assert (abs(gaps - 31) <= 2).all()


# Rates


@given(
    st.integers(0, 10**7),
    st.integers(1, 512),
    st.floats(0.01, 64),
    st.integers(0, 10**6),
    st.integers(0, 1000),
)
def test_updates_due_follow_samples_per_insert(
    inserted: int, batch: int, rate: float, start: int, more: int
) -> None:
    config = replace(
        Config(),
        learner__agent_items=batch,
        learner__expert_items=0,
        learner__samples_per_insert=rate,
        replay__learning_starts=start,
    )
    due = updates_due(config, inserted)
    allowed = max(0, inserted - start) * rate
    assert due * batch <= allowed * (1 + 1e-12)
    assert (due + 1) * batch > allowed * (1 - 1e-12)  # not a full batch too few either
    assert updates_due(config, start) == 0
    burst = updates_due(config, inserted + more) - due
    assert 0 <= burst <= more * rate / batch + 1


@pytest.mark.parametrize("rate", [0.3, 4.0, 9.7])
def test_run_keeps_samples_per_insert(tmp_path: Path, rate: float) -> None:
    config = tiny_config(tmp_path / "run", learner__samples_per_insert=rate, run__steps=300)
    summary = train(config)
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert (row["step"], row["updates"]) == (300, summary.updates)
    assert summary.updates == updates_due(
        config, 300 - 4
    )  # the last four steps were inserted after it
    slack = (config.batch_size + 4 * rate) / 200
    assert rate - slack <= row["samples_per_insert"] <= rate


# Custom environments and networks


def test_train_with_custom_env_and_network(tmp_path: Path) -> None:
    def network(spec: Spec) -> nn.Module:
        return nn.Sequential(nn.Linear(spec.observation_shape[0], 8), nn.Tanh(), nn.Linear(8, 2))

    config = tiny_config(
        tmp_path / "walk", env="walk", run__steps=1500, learner__gamma=0.9,
        learner__learning_rate=1e-2, replay__horizons=(1, 3),
    )  # fmt: skip
    summary = train(config, env=WalkEnv, network=network)
    agent = Agent.load(summary.folder, network=network)
    assert agent.act(np.eye(5, dtype=np.float32)[1:4]).tolist() == [1, 1, 1]
    assert agent.spec == Spec("WalkEnv", (5,), 1, "float32", 2, 1.0)
    with pytest.raises(CheckpointError, match="do not fit this network"):
        Agent.load(summary.folder)
    with pytest.raises(CheckpointError, match="do not fit this network"):
        train(replace(config, run__steps=1600), env=WalkEnv, resume=True)


# Memory


def test_too_large_replay_is_refused_before_allocation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the replays need [\d.,]+ GiB") as caught:
        train(tiny_config(tmp_path / "run", replay__capacity=10**15))
    message = str(caught.value)
    assert "\n" not in message
    assert not (tmp_path / "run").exists()
    fits = int(message.rpartition("--replay.capacity to ")[2].split()[0].replace(",", ""))
    assert 1000 < fits < 10**15


def test_suggested_replay_capacity_fits(
    tmp_path: Path, balance_demos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if demonstrations use part of the memory, whatever the capacity."""
    monkeypatch.setattr(hardware, "available_memory", lambda device: 160_000)
    with pytest.raises(ConfigError, match=r"lower --replay\.capacity to") as caught:
        train(tiny_config(tmp_path / "run", balance_demos, replay__capacity=5000))
    fits = int(str(caught.value).split(" to ")[1].split()[0].replace(",", ""))
    train(tiny_config(tmp_path / "run", balance_demos, replay__capacity=fits, run__steps=4))
    with pytest.raises(ConfigError, match=r"lower --replay\.capacity"):
        train(tiny_config(tmp_path / "other", balance_demos, replay__capacity=fits + 50))


# The end of a run


def test_last_metrics_row_is_at_last_step(tmp_path: Path) -> None:
    """Also if the run is shorter than its log period, or not a multiple of it."""
    train(tiny_config(tmp_path / "run", run__steps=60, run__log_period=1000))
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [60]
    train(tiny_config(tmp_path / "run", run__steps=240, run__log_period=100), resume=True)
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [60, 100, 200, 240]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"]["steps"] == 240
