"""Modules that a file names are imported only if they are listed or if the user names them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookfurther import Agent
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.envs.trust import find_untrusted
from lookfurther.errors import CheckpointError, ConfigError
from tests.forged import CARTPOLE, cartpole_config, write_run

HOSTILE = """
import pathlib
import gymnasium
pathlib.Path(__file__).with_name("marker").touch()
gymnasium.register("Hostile-v0", "gymnasium.envs.classic_control:CartPoleEnv")
class Wrapper(gymnasium.Wrapper): pass
"""
WRAPPERS = ["hostile:Wrapper", "builtins:exec", "os:system", "runpy:run_path", "subprocess:Popen"]


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists after `hostile` was imported; its folder is the working directory."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    yield folder / "marker"
    sys.modules.pop("hostile", None)


@pytest.fixture
def run(marker: Path) -> Path:
    """A run folder with a wrapper from an unlisted module."""
    return write_run(marker.parent, cartpole_config(environment__wrappers=("hostile:Wrapper",)))


def error_line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one error line of a command."""
    assert main(list(args)) != 0
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


# find_untrusted


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "gymnasium.wrappers.a/b:x", "json", ""])
def test_unlisted_wrapper_is_untrusted(wrapper: str) -> None:
    module = wrapper.partition(":")[0]
    assert find_untrusted("CartPole-v1", [wrapper]).endswith(f"give --modules {module}")
    if module:
        assert not find_untrusted("CartPole-v1", [wrapper], [module])


@pytest.mark.parametrize("env", ["hostile:Env-v0", "os:Env-v0", "a.b:Env-v0", ":Env-v0"])
def test_unlisted_environment_module_is_untrusted(env: str) -> None:
    module = env.partition(":")[0]
    assert find_untrusted(env, []).endswith(f"give --modules {module}")
    assert not find_untrusted(env, [], [module])


@pytest.mark.parametrize(
    "name", ["gymnasium.wrappers.common:deepcopy", "lookfurther.envs.factory:find_env_spec"]
)
def test_trusted_module_gives_only_wrappers(name: str) -> None:
    assert find_untrusted("CartPole-v1", [name]).endswith("is not a Gymnasium wrapper")


def test_listed_environments_and_wrappers_are_trusted() -> None:
    for env in ("CartPole-v1", "ALE/Pong-v5", "lookfurther.envs.minigrid:lookfurther/Unlock-v0"):
        assert not find_untrusted(env, ["gymnasium.wrappers:FlattenObservation"])


# Runs


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", ".", "--episodes", "1"],
        ["video", ".", "--out", "film.gif"],
        ["demos", "agent", ".", "--name", "new", "--episodes", "1"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize(
    ("env", "wrappers", "module"),
    [
        ("CartPole-v1", ("hostile:Wrapper",), "hostile"),
        ("CartPole-v1", ("builtins:exec",), "builtins"),
        ("hostile:Hostile-v0", (), "hostile"),
    ],
)
def test_command_does_not_import_modules_of_run(
    marker: Path,
    command: list[str],
    env: str,
    wrappers: tuple[str, ...],
    module: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(marker.parent, cartpole_config(env=env, environment__wrappers=wrappers))
    message = error_line(capsys, *command)
    assert f"if you trust that module, give --modules {module}" in message
    assert not marker.exists()


def test_command_imports_modules_of_user(run: Path, marker: Path) -> None:
    assert main(["evaluate", str(run), "--episodes", "1", "--modules", "hostile"]) == 0
    assert marker.exists()


def test_report_and_export_import_nothing(run: Path, marker: Path) -> None:
    assert main(["report", str(run), "--out", "page"]) == 0
    assert main(["export", str(run), "--out", "exported"]) == 0
    with pytest.raises(CheckpointError, match="exported was made with hostile:Wrapper"):
        Agent.load("exported")
    assert not marker.exists()


def test_agent_load_imports_only_modules_of_user(run: Path, marker: Path) -> None:
    for path in (run, next((run / "best").iterdir())):
        with pytest.raises(CheckpointError, match="made with hostile:Wrapper: if you trust"):
            Agent.load(path)
    assert not marker.exists()
    assert Agent.load(run, modules=["hostile"]).step == 100
    assert marker.exists()


def test_environment_of_spec_is_checked(marker: Path) -> None:
    """Videos of Atari games build the environment of the spec."""
    forged = CARTPOLE._replace(env="hostile:Hostile-v0")._asdict()
    run = write_run(marker.parent, cartpole_config(), spec=forged)
    with pytest.raises(CheckpointError, match="give --modules hostile"):
        Agent.load(run)
    assert not marker.exists()


def test_resume_takes_no_wrapper_from_folder(
    run: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("no-demos", "--scale", "small", "--env", "CartPole-v1", "--run.folder", str(run))
    message = error_line(capsys, "train", *args, "--resume")
    assert "was started with environment.wrappers = ('hostile:Wrapper',)" in message
    assert not marker.exists()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("envs", 'envs = ["hostile:Hostile-v0"]'),
        ("wrappers", 'envs = ["CartPole-v1"]\nsettings.environment.wrappers = ["hostile:Wrapper"]'),
    ],
)
def test_suite_does_not_import_modules_of_file(
    marker: Path, key: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("suite.toml").write_text(f'presets = ["no-demos"]\nscale = "small"\n{text}\n')
    message = error_line(capsys, "suite", "suite.toml")
    assert "the suite names hostile:" in message
    assert "give --modules hostile" in message
    assert not marker.exists()


# Demonstration sets


@pytest.fixture
def shared(marker: Path, tmp_path: Path) -> Path:
    """A set in the working directory, made with a wrapper from an unlisted module."""
    import gymnasium
    import numpy as np

    env = gymnasium.make("CartPole-v1")
    first, _ = env.reset(seed=1)
    second, reward, *_ = env.step(0)
    episode = Episode(
        np.stack([first, second]), np.array([0]), np.array([reward], np.float32), False, 1
    )
    made = EnvConfig(wrappers=("hostile:Wrapper",))
    return storage.save_episodes("theirs-v0", [episode], CARTPOLE, "them", env_config=made)


@pytest.mark.parametrize("command", ["verify NAME", "play NAME a.gif", "show NAME --sheet a.png"])
def test_replay_does_not_import_modules_of_set(
    shared: Path, marker: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_line(capsys, "demos", *command.replace("NAME", str(shared)).split())
    assert "made with hostile:Wrapper: if you trust that module, give --modules hostile" in message
    assert not marker.exists()


def test_set_import_imports_modules_of_user(
    shared: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("demos", "import", str(shared), "--name", "mine")
    assert "give --modules hostile" in error_line(capsys, *args)
    assert not marker.exists()
    assert main([*args, "--modules", "hostile"]) == 0
    assert marker.exists()


def test_training_does_not_import_modules_of_set(shared: Path, marker: Path) -> None:
    """Training builds its own environment and ignores the wrappers of a set."""
    assert len(catalog.load_set(str(shared), CARTPOLE, EnvConfig())) == 1
    assert main(["demos", "show", str(shared)]) == 0
    assert not marker.exists()


def test_missing_module_error_names_it(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--modules no\.such: No module named 'no'"):
        Agent.load(run, modules=["no.such"])
