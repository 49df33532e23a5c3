"""A file names modules, wrappers and environments: none is imported unless trusted or allowed."""

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
    """The file that exists once `hostile` was imported; its folder is the working directory."""
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
    """A run folder whose wrapper is in a module of its own."""
    return write_run(marker.parent, cartpole_config(environment__wrappers=("hostile:Wrapper",)))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that does not succeed: one line."""
    assert main(list(words)) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


# The rule


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "gymnasium.wrappers.a/b:x", "json", ""])
def test_wrapper_outside_the_list_is_untrusted(wrapper: str) -> None:
    module = wrapper.partition(":")[0]
    assert find_untrusted("CartPole-v1", [wrapper]).endswith(f"give --modules {module}")
    if module:
        assert not find_untrusted("CartPole-v1", [wrapper], [module])


@pytest.mark.parametrize("env", ["hostile:Env-v0", "os:Env-v0", "a.b:Env-v0", ":Env-v0"])
def test_module_of_an_environment_outside_the_list_is_untrusted(env: str) -> None:
    module = env.partition(":")[0]
    assert find_untrusted(env, []).endswith(f"give --modules {module}")
    assert not find_untrusted(env, [], [module])


@pytest.mark.parametrize(
    "name", ["gymnasium.wrappers.common:deepcopy", "lookfurther.envs.factory:find_env_spec"]
)
def test_trusted_module_gives_its_wrappers_and_nothing_else(name: str) -> None:
    assert find_untrusted("CartPole-v1", [name]).endswith("is not a Gymnasium wrapper")


def test_known_environments_and_wrappers_are_trusted() -> None:
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
def test_command_imports_nothing_that_a_run_names(
    marker: Path,
    command: list[str],
    env: str,
    wrappers: tuple[str, ...],
    module: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(marker.parent, cartpole_config(env=env, environment__wrappers=wrappers))
    said = refused(capsys, *command)
    assert f"if you trust that module, give --modules {module}" in said
    assert not marker.exists()


def test_command_imports_a_module_that_the_user_names(run: Path, marker: Path) -> None:
    assert main(["evaluate", str(run), "--episodes", "1", "--modules", "hostile"]) == 0
    assert marker.exists()


def test_report_and_export_need_no_environment_and_import_nothing(run: Path, marker: Path) -> None:
    assert main(["report", str(run), "--out", "page"]) == 0
    assert main(["export", str(run), "--out", "exported"]) == 0
    with pytest.raises(CheckpointError, match="exported was made with hostile:Wrapper"):
        Agent.load("exported")
    assert not marker.exists()


def test_loading_an_agent_imports_nothing_but_what_is_named(run: Path, marker: Path) -> None:
    for path in (run, next((run / "best").iterdir())):
        with pytest.raises(CheckpointError, match="made with hostile:Wrapper: if you trust"):
            Agent.load(path)
    assert not marker.exists()
    assert Agent.load(run, modules=["hostile"]).step == 100
    assert marker.exists()


def test_environment_in_the_spec_is_checked_as_well(marker: Path) -> None:
    """Films of Atari games build the environment that the spec names."""
    forged = CARTPOLE._replace(env="hostile:Hostile-v0")._asdict()
    run = write_run(marker.parent, cartpole_config(), spec=forged)
    with pytest.raises(CheckpointError, match="give --modules hostile"):
        Agent.load(run)
    assert not marker.exists()


def test_resumed_run_takes_no_wrapper_from_its_folder(
    run: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("no-demos", "--scale", "small", "--env", "CartPole-v1", "--run.folder", str(run))
    said = refused(capsys, "train", *words, "--resume")
    assert "was started with environment.wrappers = ('hostile:Wrapper',)" in said
    assert not marker.exists()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("envs", 'envs = ["hostile:Hostile-v0"]'),
        ("wrappers", 'envs = ["CartPole-v1"]\nsettings.environment.wrappers = ["hostile:Wrapper"]'),
    ],
)
def test_suite_imports_nothing_that_its_file_names(
    marker: Path, key: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("suite.toml").write_text(f'presets = ["no-demos"]\nscale = "small"\n{text}\n')
    said = refused(capsys, "suite", "suite.toml")
    assert "the suite names hostile:" in said
    assert "give --modules hostile" in said
    assert not marker.exists()


# Demonstration sets


@pytest.fixture
def shared(marker: Path, tmp_path: Path) -> Path:
    """A set, made with a wrapper in a module of its own, in the working directory."""
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
def test_replay_of_a_set_imports_nothing_that_it_names(
    shared: Path, marker: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "demos", *command.replace("NAME", str(shared)).split())
    assert "made with hostile:Wrapper: if you trust that module, give --modules hostile" in said
    assert not marker.exists()


def test_import_of_a_set_imports_modules_that_the_user_names(
    shared: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("demos", "import", str(shared), "--name", "mine")
    assert "give --modules hostile" in refused(capsys, *words)
    assert not marker.exists()
    assert main([*words, "--modules", "hostile"]) == 0
    assert marker.exists()


def test_training_on_a_set_imports_nothing_that_it_names(shared: Path, marker: Path) -> None:
    """Training has its own environment: a set's wrappers have no part in it."""
    assert len(catalog.load_set(str(shared), CARTPOLE, EnvConfig())) == 1
    assert main(["demos", "show", str(shared)]) == 0
    assert not marker.exists()


def test_module_that_does_not_exist_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--modules no\.such: No module named 'no'"):
        Agent.load(run, modules=["no.such"])
