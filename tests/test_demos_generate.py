"""lookfurther demos search, bot and agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageSequence

from lookfurther.cli.demos import generate
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.envs import get_spec
from lookfurther.envs.minigrid import UNLOCK_PICKUP
from lookfurther.system import processes
from tests.demo_commands import PONG, episode, run_command

pytestmark = pytest.mark.usefixtures("datasets_home")


@pytest.mark.parametrize(
    ("word", "env"),
    [
        ("MontezumaRevenge", "ALE/MontezumaRevenge-v5"),
        ("montezuma_revenge", "ALE/MontezumaRevenge-v5"),
        ("ALE/MontezumaRevenge-v5", "ALE/MontezumaRevenge-v5"),
        ("pong", PONG),
        ("Pong", PONG),
        ("ms_pacman", "ALE/MsPacman-v5"),
    ],
)
def test_to_env_id_accepts_several_spellings(word: str, env: str) -> None:
    assert generate.to_env_id(word) == env


def test_search_saves_found_episodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookfurther.demos import go_explore

    def found(options: go_explore.SearchConfig, report: Any) -> list[Episode]:
        assert options == go_explore.SearchConfig(PONG, 500, 1.5, 1, 7, 2)
        report(go_explore.SearchProgress(250, 1.0, 3, 21.0, 4))
        report(go_explore.SearchProgress(300, 1.1, 3, 21.0, 4))
        return [episode(40), episode(80, 1)]

    monkeypatch.setattr(go_explore, "run_search", found)
    search_args = [
        "--frames",
        "500",
        "--minutes",
        "1.5",
        "--processes",
        "1",
        "--seed",
        "7",
        "--episodes",
        "2",
    ]
    out = run_command(capsys, "search", "pong", "--name", "pong", *search_args)
    assert out.count("best return 21 after 4 steps") == 1
    demo_set = catalog.open_set("pong")
    assert (len(demo_set.episodes), demo_set.description.author) == (2, "search of 500 frames")
    assert "frames must be at least 1" in run_command(
        capsys, "search", "pong", "--name", "x", "--frames", "0", code=2
    )


def test_bot_records_verified_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid")
    level = "BabyAI-GoToLocal-v0"
    out = run_command(capsys, "bot", level, "--name", "local", "--episodes", "2", "--seed", "5")
    assert "train with --environment.wrappers lookfurther.envs.minigrid:OneHotGrid" in out
    summary = json.loads(run_command(capsys, "show", "local", "--json"))
    assert [(e["seed"], e["verified"], e["terminal"]) for e in summary["episodes"]] == [
        (5, True, True),
        (6, True, True),
    ]
    assert min(e["return"] for e in summary["episodes"]) > 0
    run_command(capsys, "verify", "local")
    run_command(capsys, "play", "local", str(tmp_path / "a.gif"))
    chosen = summary["episodes"][summary["best"]]
    with Image.open(tmp_path / "a.gif") as video:
        assert len(list(ImageSequence.Iterator(video))) == chosen["steps"] + 1
    assert "EmptyEnv is not a BabyAI level" in run_command(
        capsys, "bot", "MiniGrid-Empty-5x5-v0", "--name", "x", code=4
    )
    assert "at least 1" in run_command(
        capsys, "bot", level, "--name", "x", "--episodes", "0", code=2
    )
    for env, name in ((PONG, "pong"), ("CartPole-v1", "CartPoleEnv")):
        output = run_command(capsys, "bot", env, "--name", "x", code=4)
        assert f"{name} is not a BabyAI level, and the bot plays only those" in output


def test_bot_plays_level_that_a_module_registers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes, which verify the episodes, import the module too."""
    pytest.importorskip("minigrid")
    monkeypatch.setattr(processes, "count_cores", lambda: 2)
    module = "lookfurther.envs.minigrid"
    run_command(capsys, "bot", f"{module}:{UNLOCK_PICKUP}", "--name", "unlock", "--episodes", "2")
    assert "2 episodes, all equal" in run_command(capsys, "verify", "unlock", "--modules", module)


@pytest.mark.slow
def test_agent_records_verified_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookfurther import preset, train

    config = preset(
        "no-demos",
        "small",
        env="CartPole-v1",
        run__steps=200,
        run__folder=str(tmp_path / "run"),
        actor__lanes=2,
        replay__learning_starts=50,
        replay__capacity=1000,
        run__device="cpu",
    )
    train(config)
    run = str(tmp_path / "run")
    run_command(capsys, "agent", run, "--name", "cart", "--episodes", "2", "--epsilon", "1")
    demo_set = catalog.open_set("cart")
    assert [e.is_verified for e in demo_set.description.episodes] == [True, True]
    assert demo_set.description.author == f"the agent of {run}"
    assert best_episode_index(demo_set.episodes) in (0, 1)
    spec = get_spec("CartPole-v1", EnvConfig())
    assert len(catalog.load_set("cart", spec, EnvConfig())) == 2
    assert "holds no checkpoint" in run_command(
        capsys, "agent", str(tmp_path), "--name", "x", code=5
    )
    assert "epsilon must be 0 ... 1" in run_command(
        capsys, "agent", run, "--name", "x", "--epsilon", "2", code=2
    )
