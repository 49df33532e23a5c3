"""A killed run resumes to the result of an uninterrupted one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lookfurther import Agent, Callback, Config, replace, train
from lookfurther.errors import CheckpointError
from lookfurther.training.callbacks import RunContext
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import to_json
from lookfurther.training.loop import updates_due
from lookfurther.types import END, FIRST
from tests.faulty_envs import Counting, Moody
from tests.training_runs import (
    WalkEnv,
    assert_checkpoints_equal,
    build_noisy_network,
    flatten_tensors,
    newest_checkpoint,
    rows_without_times,
    tiny_config,
)

ROOT = Path(__file__).parents[1]


KILLED_RUN_SCRIPT = """
import os, signal, sys
from lookfurther.training.config_json import from_json
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.train import train
from tests import faulty_envs

run_iteration = TrainingLoop.run_iteration

def run_iteration_or_die(self):
    if self.step >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    run_iteration(self)

TrainingLoop.run_iteration = run_iteration_or_die
env = getattr(faulty_envs, sys.argv[3]) if len(sys.argv) > 3 else None
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
    tmp_path: Path, balance_demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed 60 steps after its checkpoint: the resumed run repeats those steps."""
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    settings = {"run__steps": 400, "run__checkpoint_period": 200, "replay__capacity": 240}
    train(tiny_config(uninterrupted, balance_demos, **settings))
    train_until_killed(tiny_config(resumed, balance_demos, **settings), at=260)
    assert newest_checkpoint(resumed).metadata["step"] == 200
    capsys.readouterr()
    summary = train(tiny_config(resumed, balance_demos, **settings), resume=True)
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
    assert "resumed at step 200 from step_000000000200; 4 episodes in progress started again" in out
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


def test_finished_run_without_replay_starts_another(tmp_path: Path, balance_demos: Path) -> None:
    """Only the checkpoint of the last step lacks the replay, although it is also a regular one."""
    complete, without = (
        tiny_config(tmp_path / name, balance_demos, run__checkpoint_period=200)
        for name in ("complete", "without")
    )
    without = replace(without, run__keep_final_replay=False)
    for config in (complete, without):
        train(config)
    saved = newest_checkpoint(tmp_path / "without")
    expected = newest_checkpoint(tmp_path / "complete")
    assert expected.files.pop("agent_replay")
    assert_checkpoints_equal(saved, expected)
    assert "agent_replay" in checkpoint.load(saved.path.with_name("step_000000000200")).files

    with pytest.raises(CheckpointError, match=r"step_0+400 has no replay \(run\.keep"):
        train(replace(without, run__steps=500), resume=True)
    assert newest_checkpoint(tmp_path / "without").files.keys() == saved.files.keys()
    assert Agent.load(tmp_path / "without").step == 400
    started = replace(without, run__folder=str(tmp_path / "new"))
    assert train(started, init=tmp_path / "without").stop_reason == "done"


class StopAtHalf(Callback):
    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        if run.step >= 200:
            run.stop("half")


def test_interrupted_run_keeps_its_replay(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", run__keep_final_replay=False)
    assert train(config, callbacks=[StopAtHalf()]).stop_reason == "half"
    config = replace(config, run__keep_final_replay=True)
    assert train(config, resume=True).stop_reason == "done"
    train(tiny_config(tmp_path / "uninterrupted"))
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "run"), newest_checkpoint(tmp_path / "uninterrupted")
    )


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
