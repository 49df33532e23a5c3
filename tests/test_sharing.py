"""Agents and sets survive the way to a local stand-in of the Hub; hostile files do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lookfurther import Agent, train
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog
from lookfurther.demos.collect import collect_episodes
from lookfurther.demos.storage import save_episodes
from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.sharing import contents
from lookfurther.sharing.contents import RemoteFile, select_files
from tests.training_runs import balancing_policy, tiny_config

pytest.importorskip("huggingface_hub")
from lookfurther.sharing.hub import pull, push
from tests.hub_server import HubServer, serve_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    with serve_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_config(folder, run__steps=120))
    assert main(["evaluate", str(folder), "--episodes", "2", "--lanes", "2"]) == 0
    return folder


def save_demo_set() -> str:
    episodes, spec = collect_episodes("CartPole-v1", EnvConfig(), balancing_policy, range(2))
    save_episodes("me/balance-v0", episodes, spec, "a rule")
    return "me/balance-v0"


def test_agent_survives_push_and_pull(
    hub: HubServer, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(run_folder), "me/cartpole"]) == 0
    assert capsys.readouterr().out == f"pushed: {hub.url}/me/cartpole\n"
    assert main(["pull", "me/cartpole"]) == 0
    assert capsys.readouterr().out == "pulled: agents/cartpole\n"
    original, pulled = Agent.load(run_folder), Agent.load("agents/cartpole")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(original.q_values(observations), pulled.q_values(observations))
    files = hub.repos["models/me/cartpole"]
    card = files["README.md"].decode()
    assert "## Evaluation" in card
    assert "Not evaluated" not in card
    assert str(run_folder.parent) not in "".join(map(str, files.values()))
    assert not list(Path("agents").rglob(".cache"))


def test_second_push_replaces_the_first(hub: HubServer, run_folder: Path) -> None:
    hub.repos["models/me/cartpole"] = {
        "best/step_000000000001/weights.safetensors": b"old",
        "notes.txt": b"kept",
    }
    push(str(run_folder), "me/cartpole", private=True)
    names = set(hub.repos["models/me/cartpole"])
    assert "notes.txt" in names
    assert {name.split("/")[1] for name in names if name.startswith("best/")} == {
        "step_000000000120"
    }


def test_demo_set_survives_push_and_pull(hub: HubServer) -> None:
    name = save_demo_set()
    original = catalog.open_set(name)
    push(name, "me/balance-demos", private=True)
    assert hub.private == {"datasets/me/balance-demos"}
    card = hub.repos["datasets/me/balance-demos"]["README.md"].decode()
    assert "| episodes | 2 |" in card
    assert main(["pull", "me/balance-demos", "--kind", "demos"]) == 0
    pulled = catalog.open_set("me/balance-demos-v0")
    assert pulled.description == original.description
    for ours, theirs in zip(original.episodes, pulled.episodes, strict=True):
        np.testing.assert_array_equal(ours.planes, theirs.planes)
        np.testing.assert_array_equal(ours.actions, theirs.actions)


def test_damaged_agent_leaves_nothing(hub: HubServer, run_folder: Path) -> None:
    push(str(run_folder), "me/cartpole")
    files = hub.repos["models/me/cartpole"]
    (weights,) = (name for name in files if name.endswith(".safetensors"))
    files[weights] = files[weights][:-1] + bytes([files[weights][-1] ^ 1])
    with pytest.raises(LookFurtherError, match=r"weights\.safetensors"):
        pull("me/cartpole", "agent", Path("agent"))
    assert not Path("agent").exists()


def test_other_files_are_not_downloaded(hub: HubServer, run_folder: Path) -> None:
    push(str(run_folder), "me/cartpole")
    hostile = {"setup.py": b"raise SystemExit", "../outside": b"x", "best/weights.pkl": b"x"}
    hub.repos["models/me/cartpole"] |= hostile
    pulled = pull("me/cartpole", "agent", Path("agent"))
    names = {str(path.relative_to(pulled)) for path in pulled.rglob("*")}
    assert not names & set(hostile)
    assert not Path("outside").exists()


def test_file_of_another_size_than_listed_is_refused(hub: HubServer, run_folder: Path) -> None:
    push(str(run_folder), "me/cartpole")
    hub.listed_sizes["config.json"] = 7
    with pytest.raises(LookFurtherError, match=r"config\.json does not have 7 bytes as listed"):
        pull("me/cartpole", "agent", Path("agent"))
    assert not Path("agent").exists()


def test_repository_over_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(count: int, size: int | None) -> list[RemoteFile]:
        return [RemoteFile(f"evaluation/{i}/summary.json", size) for i in range(count)]

    assert len(select_files("me/x", "agent", files(3, 10))) == 3
    with pytest.raises(LookFurtherError, match="at most 100 are pulled"):
        select_files("me/x", "agent", files(101, 10))
    with pytest.raises(LookFurtherError, match="an unknown size"):
        select_files("me/x", "agent", files(1, None))
    monkeypatch.setattr(contents, "MAX_BYTES", 29)
    with pytest.raises(LookFurtherError, match="30 bytes: at most 29 bytes"):
        select_files("me/x", "agent", files(3, 10))


def test_missing_repository_is_one_line(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "me/nothing"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lookfurther: me/nothing: ")


def test_unreachable_hub_is_one_line(
    monkeypatch: pytest.MonkeyPatch, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # a port that nobody listens to
    for words in (["push", str(run_folder), "me/x"], ["pull", "me/x"]):
        assert main(words) == 1
        line = capsys.readouterr().err
        assert line.startswith("lookfurther: me/x: the Hub cannot be reached (")
        assert line.count("\n") == 1


def test_repository_of_another_kind_is_refused(hub: HubServer) -> None:
    hub.repos["models/me/other"] = {"README.md": b"# other", "model.bin": b"x"}
    with pytest.raises(LookFurtherError, match="holds no agent that lookfurther push"):
        pull("me/other", "agent", Path("agent"))


def test_existing_folder_is_refused(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists: remove it or choose another --out"):
        pull("me/cartpole", "agent", tmp_path)


def test_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'lookfurther\[hub\]'"):
        push("anything", "me/x")


def test_shipped_set_is_not_pushed(hub: HubServer) -> None:
    name = next(name for name in catalog._list_ids() if name.startswith("shipped/"))
    with pytest.raises(ConfigError, match="comes with the package"):
        push(name, "me/x")
