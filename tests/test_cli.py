"""The command line: help without torch, one-line errors, runs from start to resume."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from lookfurther import Agent, __version__
from lookfurther.cli import demos
from lookfurther.cli.main import COMMANDS, main
from lookfurther.cli.options.preset_options import COMMON_SETTINGS
from lookfurther.cli.train import TrainOptions, format_training_summary, parse_train_options
from lookfurther.config import Config
from lookfurther.presets import PRESETS, SCALES, preset
from lookfurther.training import run
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import from_json
from lookfurther.training.monitoring.metrics import TrainingClock, read_metrics
from lookfurther.training.monitoring.summary import Summary
from tests.faulty_envs import Counting
from tests.process_group import stop_at_numpy, wait_until_gone, wait_until_stopped

ROOT = Path(__file__).parents[1]

TINY_SETTINGS = {
    "env": "CartPole-v1",
    "actor.lanes": "4",
    "replay.capacity": "1000",
    "replay.learning_starts": "100",
    "network.hidden": "16",
    "learner.agent-items": "16",
    "learner.samples-per-insert": "4",
    "run.threads": "1",
    "run.precision": "float32",
    "run.log-period": "100",
    "run.checkpoint-minutes": "0",
}


def tiny_train_args(folder: Path, *args: str, **changed: str) -> list[str]:
    """Arguments of a short run; `changed` settings are written as in `config.replace`."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in changed.items()}
    settings = TINY_SETTINGS | given | {"run.folder": str(folder)}
    options = [w for name, value in settings.items() for w in (f"--{name}", *value.split())]
    return ["train", "no-demos", "--scale", "small", *options, *args]


def start_process(*args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the command in a new process and session."""
    code, pipe = "from lookfurther.__main__ import *", subprocess.PIPE
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


# Help


def setting_names(cls: type, prefix: str = "") -> list[str]:
    """Return the dotted name of every setting."""
    found = []
    for field in dataclasses.fields(cls):
        made: Any = field.default_factory
        inner = isinstance(made, type) and dataclasses.is_dataclass(made)
        found += setting_names(made, f"{field.name}.") if inner else [prefix + field.name]
    return found


HELP_SCRIPT = """
import sys
from lookfurther.cli.main import main

for args in (["--help"], ["-h"], ["presets"], ["presets", "--help"], ["--version"],
             ["bench", "--help"], ["train", "--help"], ["train", "--help-all"],
             ["train", "no-demos", "--scale", "small", "--help"]):
    try:
        code = main(args)
    except SystemExit as stop:
        code = stop.code
    assert not code, args
    assert "torch" not in sys.modules, args
"""


def test_help_does_not_import_torch() -> None:
    command = [sys.executable, "-c", HELP_SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: lookfurther COMMAND" in done.stdout
    assert f"\n{__version__}\n" in done.stdout


def test_every_setting_is_an_option_with_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "no-demos", "--help-all"])
    assert not stop.value.code
    out = capsys.readouterr().out
    names = setting_names(Config)
    assert {"env", "demos", "learner.gamma", "run.steps"} <= set(names)
    for name in names:
        assert re.search(rf"--{re.escape(name.replace('_', '-'))}[ ,]", out), name
    assert {"PRESET", "--scale", "--resume"} <= set(out.split())
    assert "(default: 256)" in out  # the preset's agent_items, not the base's 192


GROUPS = ("demos", "cluster")  # of commands
HELP_TEXTS = [
    ["train", "--help"],
    ["train", "no-demos", "--help"],
    ["train", "--help-all"],
    ["bench", "--help"],
    ["presets", "--help"],
    *([name, "--help"] for name in COMMANDS.commands if name not in GROUPS),
    ["cluster", "check", "--help"],
    *(["demos", name, "--help"] for name in demos.COMMANDS.commands),
]


@pytest.mark.parametrize("args", HELP_TEXTS, ids=" ".join)
def test_help_shows_no_empty_default(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(args)
    out, err = capsys.readouterr()
    assert err == ""
    assert f"usage: lookfurther {' '.join(args[: 2 if args[0] in GROUPS else 1])} " in out
    for unclear in ("{None}", "default: )", "default: '')", "default: None)"):
        assert unclear not in out


@pytest.mark.parametrize("name", ["train", "bench"])
def test_help_shows_common_options_only(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "--help"])
    words = set(capsys.readouterr().out.split())
    common = {f"--{setting.replace('_', '-')}" for setting in COMMON_SETTINGS}
    assert {"PRESET", "--scale", "--help-all"} | common <= words
    settings = {f"--{setting.replace('_', '-')}" for setting in setting_names(Config)}
    assert words & settings == common


def test_help_marks_required_environment(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["train", "no-demos", option])
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert re.search(r"--env STR [^(]* \(required\)", text)


@pytest.mark.parametrize(
    ("text", "value"), [("1e5", 100_000), ("2.5e3", 2500), ("1_000", 1000), ("7", 7)]
)
def test_whole_numbers_in_scientific_notation(text: str, value: int) -> None:
    options = parse_train_options(["no-demos", "--run.steps", text, "--replay.horizons", "1", text])
    assert options.config.run.steps == value
    assert options.config.replay.horizons == (1, value)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", SCALES)
def test_parsed_defaults_are_those_of_the_preset(name: str, scale: str) -> None:
    options = parse_train_options([name, "--scale", scale])
    assert options == TrainOptions(name, scale, preset(name, scale))


def test_presets_command_lists_places_and_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    for name, entry in (PRESETS | SCALES).items():
        assert re.search(rf"^  {name} +{re.escape(entry.description)}$", out, re.MULTILINE)
        for setting, value in entry.overrides.items():
            assert f"{setting.replace('__', '.')} = {value}\n" in out


def test_broken_pipe_prints_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lookfurther", "presets"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


# One-line errors


def run_failing_command(args: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of a command and its one-line error."""
    code = main(args)
    err = capfd.readouterr().err
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert err.startswith("lookfurther: ")
    return code, err.removeprefix("lookfurther: ").rstrip("\n")


CARTPOLE = ["--env", "CartPole-v1"]


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


# Complete runs


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


def test_time_limit_prints_resume_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Uses a clock that advances by one second at every reading."""
    seconds = itertools.count(0.0)
    monkeypatch.setattr(
        run, "TrainingClock", lambda spent=0.0: TrainingClock(spent, lambda: next(seconds))
    )
    args = tiny_train_args(tmp_path / "run", run__steps="100000000", run__minutes="2")
    assert main(args) == 0
    out = capfd.readouterr().out
    assert out.endswith("stopped (time): continue with more --run.minutes and --resume\n")


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
