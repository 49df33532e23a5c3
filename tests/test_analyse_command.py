"""`lookfurther analyse` writes a page and its numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookfurther.analysis import AnalysisSettings, Demonstration, analyse_agent
from lookfurther.analysis.standstill import EpisodeSettings
from lookfurther.cli.main import main
from lookfurther.demos import storage
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.checkpoints import checkpoint
from tests.test_analysis import CARTPOLE, Imitator, cartpole_episode


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with initial weights, and a set of one episode."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    storage.save_episodes("pole/mine-v0", [cartpole_episode()], CARTPOLE, "a test")
    config = preset("no-demos", env=CARTPOLE.env, network__hidden=(8,))
    weights = {"weights": dict(make_network_builder(config.network)(CARTPOLE).state_dict())}
    facts = {"step": 7, "spec": CARTPOLE._asdict(), "config": dataclasses.asdict(config)}
    checkpoint.save(tmp_path / "run/best", 7, weights, facts, keep=1)
    return tmp_path / "run"


SHORT = "--every 20 --steps 5 --episodes 2 --max-steps 9 --device cpu"


def test_command_writes_page_and_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", str(run), "--demos", "pole/mine", *SHORT.split()]) == 0
    assert "analysis: analysis-run/index.html" in capsys.readouterr().out
    page = Path("analysis-run/index.html").read_text()
    for text in ("CartPole-v1: pole/mine", "cannot be restored", "Where greedy play leaves it"):
        assert text in page
    assert "http" not in page.replace("http://www.w3.org", "")  # it needs no other file
    found = json.loads(Path("analysis-run/analysis.json").read_text())
    assert (found["agent_step"], found["demonstration"]["steps"]) == (7, 40)
    assert len(found["values"]["steps"]["max_value"]) == 40
    assert [rollout["start"] for rollout in found["rollouts"]] == [0, 20]
    assert len(found["episodes"]) == 2


def test_set_without_seed_gets_values_only(run: Path) -> None:
    episode = dataclasses.replace(cartpole_episode(), seed=None)
    agent: Any = Imitator(episode, CARTPOLE)
    settings = AnalysisSettings(0, 5, EpisodeSettings(0, 1, 2, 0.0, 0))
    agent.q_values = lambda x: np.zeros((len(x), 2), np.float32)
    analysis = analyse_agent(agent, Demonstration("set", episode), settings)
    assert not analysis.rollouts
    assert any("neither an input log nor a seed" in note for note in analysis.notes)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("run", 4, "the run has no demonstrations: give --demos SET"),
        ("run --demos pole/mine --episode 1", 4, "--episode 1: the sets have 0 to 0"),
        ("sets --demos pole/mine", 5, "sets holds no checkpoint"),
        ("run --demos pole/mine --every -1", 2, "--every must be at least 0, not -1"),
        ("run --demos lake/mine", 4, "FrozenLake"),
    ],
)
def test_wrong_input_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, message: str
) -> None:
    other = CARTPOLE._replace(env="FrozenLake-v1")
    storage.save_episodes("lake/mine-v0", [cartpole_episode()], other, "a test")
    assert main(["analyse", *words.split(), "--device", "cpu"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
