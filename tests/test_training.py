"""Complete runs: reproducible, resumable, and stopped by faults with a checkpoint."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lookfurther import Agent, Config, Spec, preset, replace, train
from lookfurther.config import EnvConfig, to_json
from lookfurther.demos import catalog
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.episode import Episode
from lookfurther.demos.storage import save_episodes
from lookfurther.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    RunLocked,
    TrainingDiverged,
)
from lookfurther.rollout import EpisodeResult
from lookfurther.training import best_checkpoint, checkpoint, hardware, run
from lookfurther.training.checkpoint import Checkpoint
from lookfurther.training.loop import TrainingLoop, updates_due
from lookfurther.training.metrics import TrainingClock, read_metrics
from lookfurther.training.run_dir import RunDir
from lookfurther.types import END, FIRST
from tests.faulty_envs import Counting, Moody

ROOT = Path(__file__).parents[1]
TIME_METRICS = (
    "minutes",
    "steps_per_second",
    "updates_per_second",
    "memory_gib",
    "wait_environments",
    "wait_learner",
)


def tiny_config(folder: Path, demos: Path | None = None, **overrides: Any) -> Config:
    """A run of about a second: 4 lanes, batches of 16 items, 16 hidden units."""
    small: dict[str, Any] = {
        "env": "CartPole-v1",
        "actor__lanes": 4,
        "replay__capacity": 1000,
        "replay__learning_starts": 100,
        "network__name": "mlp",
        "network__hidden": (16,),
        "learner__agent_items": 16 if demos is None else 12,
        "learner__expert_items": 0 if demos is None else 4,
        "learner__learning_rate": 1e-3,
        "learner__target_period": 20,
        "learner__samples_per_insert": 4.0,
        "run__folder": str(folder),
        "run__steps": 400,
        "run__precision": "float32",
        "run__threads": 1,
        "run__log_period": 100,
        "run__checkpoint_period": 0,
        "run__checkpoint_minutes": 0.0,
    }
    name = "no-demos" if demos is None else "apex-dqfd"
    small |= {} if demos is None else {"demos": (str(demos),)}
    return preset(name, **(small | overrides))


def newest_checkpoint(folder: Path) -> Checkpoint:
    saved, broken = checkpoint.load_newest(folder / "checkpoints")
    assert saved is not None
    assert not broken
    return saved


def flatten_tensors(saved: Checkpoint) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, by file and name."""
    return {f"{file}.{k}": v for file, part in saved.files.items() for k, v in part.items()}


def assert_checkpoints_equal(a: Checkpoint, b: Checkpoint, ignored: tuple[str, ...] = ()) -> None:
    """The same tensors bit for bit, and the same counters."""
    ours, theirs = flatten_tensors(a), flatten_tensors(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if not name.startswith(ignored):
            assert value.dtype == theirs[name].dtype
            assert value.numpy().tobytes() == theirs[name].numpy().tobytes(), name
    assert [a.metadata[k] for k in ("step", "updates")] == [
        b.metadata[k] for k in ("step", "updates")
    ]


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics without those that depend on the clock or the machine."""
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIME_METRICS} for row in rows]


def balancing_policy(env: gymnasium.Env) -> Callable[[], int]:
    """Push the cart in the direction the pole leans: about a hundred steps."""
    cart: Any = env.unwrapped
    return lambda: int(cart.state[2] + 0.5 * cart.state[3] > 0)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), balancing_policy, range(2))
    short = [e for e in episodes if len(e) < 10_000]
    return save_episodes(
        "tests/balance-v0", short, spec, "a rule", tmp_path_factory.mktemp("demos")
    )


class WalkEnv(gymnasium.Env):
    """Five states in a row, starting in the middle: the right end gives reward 1, the left 0."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 1, (5,), np.float32), Discrete(2)
        self.place = 2

    def observe_position(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.place = 2
        return self.observe_position(), {}

    def step(self, action: int) -> Any:
        self.place += 2 * int(action) - 1
        over = self.place in (0, 4)
        return self.observe_position(), float(self.place == 4), over, False, {}


# Determinism


def test_same_seed_gives_identical_run(tmp_path: Path, demos: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(runs, (0, 0, 1), strict=True):
        train(tiny_config(folder, demos, run__seed=seed))
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


def test_initial_demo_priorities_are_td_errors(tmp_path: Path, demos: Path) -> None:
    """The run ends before its first update."""
    config = tiny_config(tmp_path / "run", demos, run__steps=100)
    assert train(config).updates == 0
    saved, agent = newest_checkpoint(tmp_path / "run"), Agent.load(tmp_path / "run")
    mass, start = saved.files["expert_replay"]["mass"][0], 0
    for episode in catalog.load_set(str(demos), agent.spec, config.environment):
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


# Kill and resume

KILLED_RUN_SCRIPT = """
import os, signal, sys
from lookfurther.config import from_json
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.train import train
from tests import test_training

run_iteration = TrainingLoop.run_iteration

def run_iteration_or_die(self):
    if self.step >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    run_iteration(self)

TrainingLoop.run_iteration = run_iteration_or_die
env = getattr(test_training, sys.argv[3]) if len(sys.argv) > 3 else None
train(from_json(open(sys.argv[1]).read()), env=env)
"""


def train_until_killed(config: Config, at: int, env: str = "") -> None:
    """Train in another process that is killed (-9) at a step."""
    config_file = Path(config.run.folder).with_suffix(".json")
    config_file.write_text(to_json(config))
    words = [
        sys.executable,
        "-c",
        KILLED_RUN_SCRIPT,
        str(config_file),
        str(at),
        *([env] if env else []),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_killed_run_resumes_to_identical_result(
    tmp_path: Path, demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed 60 steps after its checkpoint: the resumed run repeats those steps."""
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    settings = {"run__steps": 400, "run__checkpoint_period": 200, "replay__capacity": 240}
    train(tiny_config(uninterrupted, demos, **settings))
    train_until_killed(tiny_config(resumed, demos, **settings), at=260)
    assert newest_checkpoint(resumed).metadata["step"] == 200
    capsys.readouterr()
    summary = train(tiny_config(resumed, demos, **settings), resume=True)
    assert "resumed at step 200 from step_000000000200\n" in capsys.readouterr().out
    assert (summary.step, summary.stop_reason) == (400, "done")
    assert_checkpoints_equal(newest_checkpoint(uninterrupted), newest_checkpoint(resumed))
    names = flatten_tensors(newest_checkpoint(uninterrupted)).keys()
    parts = {"weights", "target", "adam", "agent_replay", "expert_replay", "actor", "envs"}
    assert {name.partition(".")[0] for name in names} == parts | {"returns", "random"}
    assert {"agent_replay.mass", "expert_replay.mass", "agent_replay.random"} <= names
    assert {"actor.0.generator", "expert_replay.random", "returns.recent"} <= names
    assert any(name.startswith("adam.square") for name in names)
    assert rows_without_times(uninterrupted) == rows_without_times(resumed)


def test_resume_without_env_state_restarts_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lanes have 50 slots at the checkpoint, and the last 10 wait for later steps."""
    config = tiny_config(tmp_path / "run", env="moody", run__checkpoint_period=200, run__steps=320)
    train_until_killed(config, at=220, env="Moody")
    before = newest_checkpoint(tmp_path / "run")
    assert before.metadata["step"] == 200
    capsys.readouterr()
    train(config, env=Moody, resume=True)
    out = capsys.readouterr().out
    assert "resumed at step 200 from step_000000000200; 4 episodes in progress start again" in out
    after = newest_checkpoint(tmp_path / "run")
    assert (after.metadata["step"], after.metadata["updates"]) == (320, updates_due(config, 316))
    for name in ("planes", "actions", "rewards", "marks"):
        kept = before.files["agent_replay"][name]
        assert torch.equal(after.files["agent_replay"][name][:, : kept.shape[1]], kept)
    marks, mass = (after.files["agent_replay"][name] for name in ("marks", "mass"))
    assert (marks[:, 50, 0] & FIRST != 0).all()  # every lane starts a new episode
    acts = marks[:, :, 0] & END == 0
    assert torch.equal(mass[:, :40].gt(0).all(-1), acts[:, :40])
    assert not mass[:, 40:50].any()  # no item spans the resume
    assert torch.equal(mass[:, 50:70].gt(0).all(-1), acts[:, 50:70])
    assert acts.float().mean() == pytest.approx(3 / 4, abs=0.1)


@pytest.mark.parametrize("phase", range(4))
def test_resume_is_exact_at_every_episode_phase(tmp_path: Path, phase: int) -> None:
    """All lanes have episodes of 3 steps and a reset: the run stops at each of the four."""
    uninterrupted, resumed = (
        tiny_config(tmp_path / "uninterrupted", env="c"),
        tiny_config(tmp_path / "resumed", env="c"),
    )
    train(replace(uninterrupted, run__steps=140), env=Counting)
    train(replace(resumed, run__steps=100 + 4 * phase), env=Counting)
    train(replace(resumed, run__steps=140), env=Counting, resume=True)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "uninterrupted"), newest_checkpoint(tmp_path / "resumed")
    )


def build_noisy_network(spec: Spec) -> nn.Module:
    """A network that uses torch's random generator while it learns and acts."""
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(spec.observation_shape[0], spec.actions))


def test_resume_restores_network_noise(tmp_path: Path) -> None:
    uninterrupted, resumed, evaluated = (
        tiny_config(tmp_path / name, env="walk")
        for name in ("uninterrupted", "resumed", "evaluated")
    )
    train(replace(uninterrupted, run__steps=140), env=WalkEnv, network=build_noisy_network)
    train(replace(resumed, run__steps=100), env=WalkEnv, network=build_noisy_network)
    train(replace(resumed, run__steps=140), env=WalkEnv, network=build_noisy_network, resume=True)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "uninterrupted"), newest_checkpoint(tmp_path / "resumed")
    )
    with_evaluations = replace(
        evaluated, run__steps=140, run__evaluate_period=60, run__evaluate_episodes=1
    )
    train(with_evaluations, env=WalkEnv, network=build_noisy_network)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "uninterrupted"), newest_checkpoint(tmp_path / "evaluated")
    )


# Divergence


class ExplodingEnv(WalkEnv):
    """WalkEnv with huge rewards after 330 steps of all lanes together."""

    steps = 0

    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        ExplodingEnv.steps += 1
        return observation, 3e38 if ExplodingEnv.steps > 330 else 0.0, *rest


def test_non_finite_loss_stops_run_without_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reward fits in float32, but the sum of a batch does not."""
    monkeypatch.setattr(ExplodingEnv, "steps", 0)
    changed = {"learner__value_transform": "identity", "replay__horizons": (1,)}
    config = tiny_config(tmp_path / "run", env="explodes", run__checkpoint_period=200, **changed)
    with pytest.raises(TrainingDiverged, match=r"the loss .* at update \d+ is not finite"):
        train(config, env=ExplodingEnv)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved.metadata["step"] == 200
    for value in flatten_tensors(saved).values():
        assert not value.is_floating_point() or torch.isfinite(value).all()
    assert np.isfinite(Agent.load(tmp_path / "run").q_values(np.eye(5, dtype=np.float32))).all()


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_non_finite_network_stops_run_at_start(tmp_path: Path, value: float) -> None:
    def network(spec: Spec) -> nn.Module:
        layer = nn.Linear(4, spec.actions)
        layer.bias.data.fill_(value)
        return layer

    with pytest.raises(TrainingDiverged, match="are not finite"):
        train(tiny_config(tmp_path / "run"), network=network)
    assert not (tmp_path / "run" / "checkpoints").exists()


# Environment faults


class PoisonedEnv(Counting):
    """Episodes of 24 steps; every fifth gives a NaN reward when part of it is already sampled."""

    def __init__(self) -> None:
        super().__init__(length=24)
        self.episode = 0

    def make_observation(self, action: float) -> Any:
        bad = float(self.episode % 5 == 0)
        return np.array([bad, self.t, self.seed], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.nan if observation[0] and self.t == 18 else reward, *rest


def test_environment_fault_saves_resumable_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", env="poisoned", run__steps=600)
    with pytest.raises(EnvironmentFault, match=r"PoisonedEnv, lane 0, episode 4, step 18: .*nan"):
        train(config, env=PoisonedEnv)
    saved = newest_checkpoint(tmp_path / "run")
    turns = (
        4 * 25 + 18 - 1
    )  # four complete episodes with their resets, and the steps before the NaN
    assert saved.metadata["step"] == 4 * turns
    summary = train(replace(config, run__steps=4 * turns + 40), env=PoisonedEnv, resume=True)
    assert summary.step == 4 * turns + 40
    mass = newest_checkpoint(tmp_path / "run").files["agent_replay"]["mass"] > 0
    assert not mass[:, turns - 10 :].any()


def test_fault_in_first_step_saves_checkpoint(tmp_path: Path) -> None:
    class Stillborn(Counting):
        def step(self, action: int) -> Any:
            observation, _, *rest = super().step(action)
            return observation, np.inf, *rest

    config = tiny_config(tmp_path / "run", env="stillborn")
    with pytest.raises(EnvironmentFault, match="Stillborn, lane 0, episode 0, step 1"):
        train(config, env=Stillborn)
    assert newest_checkpoint(tmp_path / "run").metadata["step"] == 0
    assert train(config, env=Counting, resume=True).step == 400


def test_dropped_episodes_are_counted_not_sampled(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path / "run", env="poisoned", environment__on_fault="drop", run__steps=1200,
        replay__capacity=2000, learner__samples_per_insert=0.5,
    )  # fmt: skip
    summary = train(config, env=PoisonedEnv)
    assert summary.stop_reason == "done"
    dropped = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["dropped_episodes"]
    assert dropped >= 4
    replay = newest_checkpoint(tmp_path / "run").files["agent_replay"]
    mass = (replay["mass"] > 0).any(-1)
    bad = replay["planes"][:, :, 0] == 1
    complete = ~bad & ((replay["marks"][:, :, 0] & 6) == 0)
    assert bad.sum() >= 18 * dropped
    assert not mass[bad].any()
    assert mass[complete].float().mean() > 0.8  # the rest is sampled, except pending slots


def test_run_stops_when_every_episode_is_dropped(tmp_path: Path) -> None:
    class Always(Counting):
        def step(self, action: int) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.nan if self.t == 2 else reward, *rest

    with pytest.raises(EnvironmentFault, match="every episode was dropped"):
        train(tiny_config(tmp_path / "run", env="always", environment__on_fault="drop"), env=Always)
    assert newest_checkpoint(tmp_path / "run").metadata["updates"] == 0


# Full disk


def test_failed_checkpoint_prints_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, calls = checkpoint.save, []

    def full_at_first(*arguments: Any) -> Path:
        calls.append(arguments[1])
        if len(calls) == 1:
            raise CheckpointError("no space left")
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "save", full_at_first)
    assert train(tiny_config(tmp_path / "run", run__checkpoint_period=100)).stop_reason == "done"
    out = capsys.readouterr().out
    assert out.count("warning: no checkpoint at step 100: no space left\n") == 1
    assert calls == [100, 200, 300, 400, 400]
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == [
        "step_000000000300",
        "step_000000000400",
    ]


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


# Locks


def test_second_run_in_run_dir_is_refused(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run")
    with RunDir.open(tmp_path / "run", config, resume=False):
        for resume in (False, True):
            with pytest.raises(RunLocked, match=f"is held by process {os.getpid()} on"):
                train(config, resume=resume)
    assert train(config, resume=True).step == 400  # no checkpoint yet: from the beginning
    with pytest.raises(ConfigError, match="already holds a run: add --resume"):
        train(config)


# Missing TensorBoard and closed output


def test_without_tensorboard_prints_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # cannot be imported
    train(tiny_config(tmp_path / "run"))
    err = capsys.readouterr().err
    assert err.startswith("warning: no TensorBoard scalars (")
    assert err.count("\n") == 1
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 4
    assert not (tmp_path / "run" / "events").exists()


def test_closed_stdout_does_not_stop_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert train(tiny_config(tmp_path / "run", run__steps=120)).stop_reason == "done"


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
    tmp_path: Path, demos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if demonstrations use part of the memory, whatever the capacity."""
    monkeypatch.setattr(hardware, "available_memory", lambda device: 160_000)
    with pytest.raises(ConfigError, match=r"lower --replay\.capacity to") as caught:
        train(tiny_config(tmp_path / "run", demos, replay__capacity=5000))
    fits = int(str(caught.value).split(" to ")[1].split()[0].replace(",", ""))
    train(tiny_config(tmp_path / "run", demos, replay__capacity=fits, run__steps=4))
    with pytest.raises(ConfigError, match=r"lower --replay\.capacity"):
        train(tiny_config(tmp_path / "other", demos, replay__capacity=fits + 50))


# The end of a run


def test_last_metrics_row_is_at_last_step(tmp_path: Path) -> None:
    """Also if the run is shorter than its log period, or not a multiple of it."""
    train(tiny_config(tmp_path / "run", run__steps=60, run__log_period=1000))
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [60]
    train(tiny_config(tmp_path / "run", run__steps=240, run__log_period=100), resume=True)
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps == [60, 100, 200, 240]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["run"]["steps"] == 240
