"""Commands from start to stop, resume and signals."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path

import pytest

from lookfurther import Agent
from lookfurther.cli.main import main
from lookfurther.training import run
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import from_json
from lookfurther.training.monitoring.metrics import TrainingClock, read_metrics
from tests.command_runs import CARTPOLE, run_failing_command, start_process, tiny_train_args
from tests.process_group import stop_at_numpy, wait_until_gone, wait_until_stopped


@pytest.mark.slow
def test_train_stop_resume_train(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    first = start_process(*tiny_train_args(folder, run__steps="400"))
    out, err = first.communicate()
    assert (first.returncode, err) == (0, "")
    assert re.search(
        r"^400 steps, 74 updates, \d+ episodes in [\d.]+ min; recent return ", out, re.M
    )
    assert f"\nrun folder: {folder}\n" in out
    assert "--resume" not in out
    kept = {"config.json", "versions.json", "metrics.jsonl", "events", "checkpoints", "curve.png"}
    assert set(os.listdir(folder)) == kept | {"lock"}
    config = from_json((folder / "config.json").read_text())
    assert (config.env, config.preset, config.run.steps) == ("CartPole-v1", "no-demos", 400)
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(folder / "checkpoints") == ["step_000000000400"]
    assert any("tfevents" in name for name in os.listdir(folder / "events"))

    assert run_failing_command(tiny_train_args(folder, run__steps="500"), capfd) == (
        2,
        f"{folder} already holds a run: add --resume to continue, or choose another --run.folder",
    )
    code, error = run_failing_command(
        tiny_train_args(folder, "--resume", learner__gamma="0.5"), capfd
    )
    assert code == 2
    assert "was started with learner.gamma = 0.999, not 0.5" in error

    assert main(tiny_train_args(folder, "--resume", run__steps="500")) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "resumed at step 400 from step_000000000400\n" in out
    assert "\n500 steps, 99 updates, " in out
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [
        100,
        200,
        300,
        400,
        500,
    ]
    assert Agent.load(folder).spec.env == "CartPole-v1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stderr"), [(signal.SIGINT, "lookfurther: interrupted\n"), (signal.SIGTERM, "")]
)
def test_signal_ends_command_and_subprocesses(number: int, stderr: str, tmp_path: Path) -> None:
    """Uses the subprocess of `bench` that measures the first update and would not end by itself."""
    settings = ["--network.hidden", "16", "--replay.capacity", "2000", "--seconds", "0.05"]
    args = ["bench", "no-demos", "--scale", "small", *CARTPOLE, *settings]
    running = start_process(*args, env=stop_at_numpy(tmp_path))
    wait_until_stopped(running, 1)
    running.send_signal(number)
    _, err = running.communicate()
    assert (running.returncode, err) == (128 + number, stderr)
    wait_until_gone(running.pid)


@pytest.mark.slow
def test_sigterm_saves_checkpoint_and_prints_hint(tmp_path: Path) -> None:
    """The signal arrives during training that would otherwise take hours."""
    folder = tmp_path / "run"
    running = start_process(*tiny_train_args(folder, run__steps="100000000"))
    assert running.stdout is not None
    steps = (int(line.split()[1].replace(",", "")) for line in running.stdout if "steps/s" in line)
    assert any(step >= 200 for step in steps)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate()
    assert (running.returncode, err) == (0, "")
    assert out.endswith("stopped (SIGTERM): continue with the same command and --resume\n")
    saved, broken = checkpoint.load_newest(folder / "checkpoints")
    assert saved is not None
    assert not broken
    assert f"\n{saved.metadata['step']:,} steps, " in "\n" + out
    assert saved.metadata["step"] == read_metrics(folder / "metrics.jsonl")[-1]["step"] >= 200


@pytest.mark.parametrize("has_replay", [True, False])
def test_time_limit_prints_how_to_continue(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    has_replay: bool,
) -> None:
    """Uses a clock that advances by one second at every reading."""
    seconds = itertools.count(0.0)
    monkeypatch.setattr(
        run, "TrainingClock", lambda spent=0.0: TrainingClock(spent, lambda: next(seconds))
    )
    args = tiny_train_args(tmp_path / "run", run__steps="100000000", run__minutes="2")
    assert main([*args, *([] if has_replay else ["--run.no-keep-final-replay"])]) == 0
    hint = "more --run.minutes and --resume"
    if not has_replay:
        hint = f"--init {tmp_path / 'run'} in another --run.folder"
    assert capfd.readouterr().out.endswith(f"stopped (time): continue with {hint}\n")
    saved, _ = checkpoint.load_newest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert ("agent_replay" in saved.files) == has_replay


def test_train_pong_briefly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py", reason="Atari is not installed: pip install lookfurther[atari]")
    args = tiny_train_args(
        tmp_path / "run",
        env="ALE/Pong-v5",
        environment__threads="1",
        replay__capacity="400",
        network__convolutions="4 4 4",
        learner__agent_items="4",
        learner__samples_per_insert="0.2",
        run__steps="300",
    )
    assert main(args) == 0
    out = capfd.readouterr().out
    assert "ALE/Pong-v5: observations (4, 84, 84), 18 actions, 4 lanes\n" in out
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert (row["step"], row["frames"], row["updates"]) == (300, 1200, 9)
    assert (tmp_path / "run" / "curve.png").exists()
    assert Agent.load(tmp_path / "run").spec.observation_shape == (4, 84, 84)
