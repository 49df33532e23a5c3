"""Every user error is one line with the exit code of its kind."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from lookfurther.cli.main import main
from lookfurther.cli.train import format_training_summary
from lookfurther.training.monitoring.summary import Summary
from tests.command_runs import CARTPOLE, run_failing_command, start_process, tiny_train_args
from tests.faulty_envs import Counting


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["trian"], 2, "unknown command 'trian': choose one of train, "),
        (["train"], 2, "train needs a preset: one of apex-dqfd,"),
        (["train", "--env", "CartPole-v1"], 2, "train needs a preset"),
        (["train", "best"], 2, "unknown preset 'best': choose one of apex-dqfd,"),
        (["train", "no-demos", "--scale", "huge"], 2, "unknown scale 'huge'"),
        (["train", "no-demos", "--scale"], 2, "unknown scale ''"),
        (["train", "no-demos"], 2, "env must be given, for example --env ALE/Pong-v5"),
        (["train", "no-demos", "--env"], 2, "Missing value for argument '--env'"),
        (["train", "no-demos", "--learner.gama", "1"], 2, "did you mean --learner.gamma"),
        (
            ["train", "no-demos", "--learner.gamma", "abc"],
            2,
            "gamma: 'abc' is not a finite",
        ),
        (
            ["train", "no-demos", "--learner.gamma", "nan", *CARTPOLE],
            2,
            "gamma: 'nan' is not a finite",
        ),
        (["train", "no-demos", "--learner.gamma", "2", *CARTPOLE], 2, r"in \[0, 1\], not 2.0"),
        (
            ["train", "no-demos", "--learner.value-transform", "log"],
            2,
            "Expected one of .'h', 'ident",
        ),
        (["train", "no-demos", "--actor.lanes", "0", *CARTPOLE], 2, "actor.lanes must be 1 or"),
        (["train", "no-demos", "--actor.lanes", "1.5"], 2, "--actor.lanes"),
        (["train", "no-demos", "stray", *CARTPOLE], 2, "Unrecognized options: stray"),
        (["train", "no-demos", "--env", "Nope-v0"], 2, "'Nope-v0': Environment `Nope` doesn't"),
        (["train", "no-demos", "--env", "none:Nope-v0"], 2, "No module named 'none'"),
        (["train", "no-demos", "--env", "Pendulum-v1"], 2, "only Discrete ones can be learned"),
        (["train", "no-demos", "--demos", "a", *CARTPOLE], 2, "drop --demos or choose another"),
        (["train", "apex-dqfd", *CARTPOLE], 2, "add --demos NAME, or use the preset no-demos"),
        (["train", "apex-dqfd", "--demos", "no-v0", *CARTPOLE], 4, "no demonstrations named no-v0"),
        (["train", "no-demos", *CARTPOLE, "--run.device", "tpu"], 2, "auto, cpu, cuda or cuda:N"),
        (["train", "no-demos", *CARTPOLE, "--run.device", "cuda:99"], 2, "use --run.device cpu"),
        (
            ["train", "no-demos", *CARTPOLE, "--replay.capacity", "1" + "0" * 15],
            2,
            "lower --replay.capacity to ",
        ),
        (
            ["train", "no-demos", *CARTPOLE, "--run.folder", "/dev/null"],
            2,
            "cannot be a run folder",
        ),
        (
            ["train", "no-demos", *CARTPOLE, "--run.folder", "/nowhere", "--resume"],
            2,
            "/nowhere holds no run to resume: drop --resume",
        ),
        (
            ["train", "no-demos", *CARTPOLE, "--network.name", "dueling"],
            2,
            "network.name dueling needs images",
        ),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else None,
)
def test_invalid_arguments_print_one_line(
    args: list[str],
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    found, error = run_failing_command(args, capfd)
    assert re.search(reason, error), error
    assert found == code
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_unknown_preset_in_subprocess() -> None:
    done = start_process("train", "best")
    out, err = done.communicate()
    assert (done.returncode, out) == (2, "")
    assert re.fullmatch(r"lookfurther: unknown preset 'best': .*\n", err)


def test_no_arguments_print_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "train PRESET --env ENV" in capsys.readouterr().out


class Huge(Counting):
    """Rewards that fit into float32, while the sum of a batch does not."""

    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        return observation, 3e38, *rest


class Broken(Counting):
    def step(self, action: int) -> Any:
        raise RuntimeError("a cable is loose\nand more")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the environments of this file during a test."""
    made: tuple[Any, ...] = (Huge, Broken)
    for env in made:
        name = f"{env.__name__}-v0"
        monkeypatch.setitem(gymnasium.registry, name, EnvSpec(name, entry_point=env))


@pytest.mark.parametrize(
    ("env", "code", "reason"),
    [
        ("Huge-v0", 6, "are not finite"),
        ("Broken-v0", 3, "failure 3 in a row, the last is RuntimeError: a cable is loose and more"),
    ],
)
def test_failed_run_exit_codes(
    env: str,
    code: int,
    reason: str,
    registered: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    args = tiny_train_args(
        tmp_path / "run", env=env, learner__value_transform="identity", run__steps="400"
    )
    found, error = run_failing_command(args, capfd)
    assert found == code
    assert reason in error


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ((math.nan, math.nan, math.nan), "no episode has ended yet"),
        ((2.5, math.nan, 7.0), "recent return 2.50, best 7.00"),
        ((2.5, 300.0, 1e6), "recent return 2.50, low-epsilon lanes 300.0, best 1,000,000"),
    ],
)
def test_training_summary_omits_missing_returns(returns: tuple, expected: str) -> None:
    summary = Summary(Path("run"), 4_320, 71, 0, *returns, minutes=1.04, stop_reason="time")
    assert (
        format_training_summary(summary)
        == f"4,320 steps, 71 updates, 0 episodes in 1.0 min; {expected}"
    )


@pytest.mark.parametrize("args", [["bench"], ["evaluate", "random", *CARTPOLE]])
def test_unwritable_output_is_rejected_before_work(
    args: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "out.json", r"\[Errno \d+\] "),
    ):
        code, error = run_failing_command([*args, "--json", str(path)], capfd)
        assert code == 2
        assert re.match(f"--json {re.escape(str(path))} cannot be written: {why}", error)
