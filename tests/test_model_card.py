"""Exports load as the same agent, and the model card describes it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lookfurther.agent import Agent
from lookfurther.cli.main import main
from lookfurther.config import Config, replace
from lookfurther.evaluation import results
from lookfurther.evaluation.results import Evaluation, EvaluationConditions
from lookfurther.networks.dueling import count_parameters, make_network_builder
from lookfurther.report.model_card import make_score_table
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import from_json
from lookfurther.types import Spec

SPEC = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 6, 255.0)
CONFIG = replace(
    Config(),
    env=SPEC.env,
    demos=("/somewhere/pong/mine-v0",),
    environment__sticky_prob=0.25,
    network__name="small-conv",
    network__convolutions=(4,),
    network__hidden=(8,),
    run__folder="/home/someone/runs/pong",
    run__seed=3,
)


def evaluation(step: int, starts: Any = "noop", sticky: float = 0.25) -> Evaluation:
    conditions = EvaluationConditions(SPEC.env, starts, sticky, step=step)
    return Evaluation(conditions, np.array([1.0, 2, 3, 6]), np.array([9, 9, 9, 9]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with its best weights at step 1,200 and its newest at step 9,000."""
    folder = tmp_path / "run"
    for name, step in (("best", 1_200), ("checkpoints", 9_000)):
        weights = {"weights": dict(make_network_builder(CONFIG.network)(SPEC).state_dict())}
        config = dataclasses.asdict(CONFIG)
        facts = {"step": step, "spec": SPEC._asdict(), "config": config}
        checkpoint.save(folder / name, step, weights, facts, keep=1)
    rows = [{"step": s, "updates": s // 10, "minutes": s / 100} for s in (1_000, 1_200, 9_000)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "versions.json").write_text('{"torch": "2.99", "minigrid": null}')
    return folder


def test_export_loads_as_the_same_agent(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "share" / "pong"
    assert main(["export", str(run), "--out", str(out)]) == 0
    before, after = Agent.load(run), Agent.load(out)
    assert after.step == before.step == 1_200
    assert after.spec == before.spec == SPEC
    assert after.config == replace(CONFIG, run__folder="")
    assert from_json((out / "config.json").read_text()) == after.config
    observations = np.random.default_rng(0).integers(
        0, 256, (50, *SPEC.observation_shape), np.uint8
    )
    assert np.array_equal(before.q_values(observations), after.q_values(observations))
    [file] = out.rglob("*.safetensors")
    state = load_file(file)
    assert all(torch.equal(state[k], v) for k, v in before.network.state_dict().items())


def test_half_export_has_half_the_size_and_the_same_clear_actions(
    run: Path, tmp_path: Path
) -> None:
    """Rounding to float16 changes a weight by at most one part in 2,048."""
    for name, words in (("full", []), ("half", ["--half"])):
        assert main(["export", str(run), "--out", str(tmp_path / name), *words]) == 0
    sizes = {
        name: next((tmp_path / name).rglob("*.safetensors")).stat().st_size
        for name in ("full", "half")
    }
    parameters = count_parameters(Agent.load(run).network)
    assert sizes["full"] - sizes["half"] == pytest.approx(2 * parameters, abs=64)
    random = np.random.default_rng(0)
    observations = random.integers(0, 256, (200, *SPEC.observation_shape), np.uint8)
    before, after = (Agent.load(path).q_values(observations) for path in (run, tmp_path / "half"))
    difference = np.abs(after - before).max()
    assert 0 < difference < 1e-2 * np.abs(before).max()
    best_two = np.sort(before, -1)[:, -2:]
    is_clear = best_two[:, 1] - best_two[:, 0] > 2 * difference
    assert is_clear.mean() > 0.5
    assert np.array_equal(before.argmax(-1)[is_clear], after.argmax(-1)[is_clear])
    assert "| weights | rounded to float16;" in (tmp_path / "half/README.md").read_text()
    assert "float16" not in (tmp_path / "full/README.md").read_text()


def test_export_of_half_export_keeps_rounding_remark(run: Path, tmp_path: Path) -> None:
    for source, out, words in (
        (run, "half", ["--half"]),
        (tmp_path / "half", "again", []),
        (tmp_path / "again", "third", []),
    ):
        assert main(["export", str(source), "--out", str(tmp_path / out), *words]) == 0
        assert "| weights | rounded to float16;" in (tmp_path / out / "README.md").read_text()


def test_half_export_refuses_weights_outside_the_range(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent.load(run)
    weights = agent.network.state_dict()
    next(iter(weights.values())).fill_(65_520)  # the largest float16 is 65,504
    facts = {"step": 1, "spec": SPEC._asdict(), "config": dataclasses.asdict(CONFIG)}
    saved = checkpoint.save(tmp_path / "large", 1, {"weights": dict(weights)}, facts, keep=1)
    assert main(["export", str(saved), "--out", str(tmp_path / "out"), "--half"]) == 2
    assert "a weight that float16 cannot hold: export without --half" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_export_of_export_has_equal_files(run: Path, tmp_path: Path) -> None:
    results.write_evaluation(run, evaluation(1_200))
    first, second = tmp_path / "one", tmp_path / "two"
    assert main(["export", str(run), "--out", str(first)]) == 0
    assert main(["export", str(first), "--out", str(second)]) == 0
    files = {p.relative_to(first) for p in first.rglob("*") if p.is_file()}
    assert files == {p.relative_to(second) for p in second.rglob("*") if p.is_file()}
    equal = [name for name in files if name.name != "README.md"]
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in equal)


def test_card_describes_training_and_evaluation(run: Path, tmp_path: Path) -> None:
    results.write_evaluation(run, evaluation(1_200))
    results.write_evaluation(run, evaluation(1_200, "human", 0.0))
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    for line in (
        "# apex-dqfd on ALE/Pong-v5",
        "| environment | `ALE/Pong-v5` |",
        "| preset | `apex-dqfd` (Tables 1-4, Ape-X DQfD) |",
        "| sticky actions in training | probability 0.25 |",
        "| demonstrations | `mine-v0` |",
        "| training length | 1,200 agent steps, 120 updates, 12.0 minutes |",
        "| seed | 3 |",
        "| torch | 2.99 |",
    ):
        assert line in card
    assert "| no-op starts | 0.25 | 0.001 | 4 | 3 (" in card
    assert "| human starts | no | 0.001 | 4 | 3 (" in card
    assert "someone" not in card
    assert "minigrid" not in card
    assert "Not evaluated" not in card


def test_scores_without_atari_have_no_starts() -> None:
    conditions = EvaluationConditions("CartPole-v1")
    header, rows = make_score_table({"noop": Evaluation(conditions, np.ones(4), np.ones(4), {})})
    assert header == ("epsilon", "episodes", "mean", "median", "IQM", "best")
    assert rows == [("0.001", "4", *["1 (1 to 1)"] * 3, "1")]


def test_scores_of_other_weights_are_omitted(run: Path, tmp_path: Path) -> None:
    results.write_evaluation(run, evaluation(9_000))
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 0
    assert "Not evaluated." in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "evaluation").exists()


def test_failed_export_changes_nothing(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert (out / "mine").read_text() == "keep"
    assert main(["export", str(tmp_path / "none"), "--out", str(tmp_path / "new")]) == 5

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("lookfurther.report.model_card.write_text", fail)
    assert main(["export", str(run), "--out", str(tmp_path / "new")]) == 2
    assert "no space left" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "run"]
