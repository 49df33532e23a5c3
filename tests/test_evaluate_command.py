"""`lookfurther evaluate` plays, prints and stores results."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from lookfurther import Agent, Config, Spec, preset, train
from lookfurther.cli.evaluate import format_evaluation_summary
from lookfurther.cli.main import main
from lookfurther.demos import storage
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import Episode
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation import results
from lookfurther.evaluation.evaluate import evaluate
from lookfurther.evaluation.results import Evaluation, EvaluationConditions
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import to_json
from tests.training_runs import tiny_config

pytest.importorskip("ale_py")
from tests.evaluation_samples import GAME, SHORT


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("evaluate") / "run")).folder


@pytest.fixture
def breakout(tmp_path: Path, breakout_demos: DemoSet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with random weights, its demonstrations in Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setattr(evaluation, "MAX_EPISODE_FRAMES", 400)
    spec = breakout_demos.description.spec
    storage.save_episodes("mine-v0", breakout_demos.episodes, spec, "random play", env_config=SHORT)
    return write_run(tmp_path / "run", spec, ("mine",))


def write_run(folder: Path, spec: Spec, demos: tuple[str, ...], env: str = "") -> Path:
    """A run folder with random weights as its best."""
    config: Config = preset(
        "apex-dqfd" if demos else "no-demos",
        env=env or spec.env,
        demos=demos,
        network__convolutions=(4, 4, 4),
        network__hidden=(8,),
    )
    folder.mkdir()
    (folder / "config.json").write_text(to_json(config))
    weights = {"weights": dict(make_network_builder(config.network)(spec).state_dict())}
    metadata = {"step": 42, "spec": spec._asdict(), "config": asdict(config), "score": 0.0}
    checkpoint.save(folder / "best", 42, weights, metadata, keep=1)
    return folder


def test_evaluate_command_writes_results(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["evaluate", str(cartpole), "--episodes", "7", "--lanes", "3", "--seed", "5"]
    args += ["--device", "cpu"]
    assert main([*args, "--json", str(tmp_path / "out.json")]) == 0
    expected = evaluate(Agent.load(cartpole), 7, lanes=3, seed=5)
    stored = results.read_evaluations(cartpole)["noop"]
    assert stored.scores.tolist() == [episode.score for episode in expected]
    assert stored.steps.tolist() == [episode.steps for episode in expected]
    assert stored.conditions == EvaluationConditions("CartPole-v1", step=400, seed=5)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["scores"] == stored.scores.tolist()
    assert written["mean"]["value"] == stored.scores.mean()
    assert written["starts"] == "noop"
    output = capsys.readouterr().out
    assert "CartPole-v1: 7 episodes, ε 0.001, step 400" in output
    assert f"{stored.scores.mean():,.1f}" in output
    assert str(cartpole / "evaluation" / "noop") in output


def test_small_scores_have_two_decimals() -> None:
    conditions = EvaluationConditions("FrozenLake-v1")
    scores = np.array([0.0, 1.0, 1.0])
    summary = format_evaluation_summary(Evaluation(conditions, scores, np.full(3, 9), {}))
    assert re.search(r"mean +0\.67 +95% 0\.00 to 1\.00\n", summary)


def test_human_and_noop_results_are_stored_separately(breakout: Path) -> None:
    args = ["evaluate", str(breakout), "--episodes", "4", "--lanes", "4"]
    assert main([*args, "--starts", "human", "--demos", "mine-v0"]) == 0
    assert main([*args, "--sticky", "0.25"]) == 0
    stored = results.read_evaluations(breakout)
    assert set(stored) == {"human", "noop-sticky-0.25"}
    assert stored["noop-sticky-0.25"].best_curves["expert"].frames[-1] <= 240
    assert all(len(e.scores) == 4 and e.conditions.step == 42 for e in stored.values())


def test_random_cartpole_lasts_22_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["evaluate", "random", "--env", "CartPole-v1", "--json", str(out)]) == 0
    facts = json.loads(out.read_text())
    assert facts["episodes"] == 200
    assert facts["mean"]["value"] == pytest.approx(22.3, abs=4 * 11.8 / 200**0.5)
    output, counted = capsys.readouterr()
    assert "CartPole-v1: 200 episodes, ε 1\n" in output
    assert counted.splitlines() == [f"{n} of 200 episodes" for n in range(20, 201, 20)]


def error_line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one error line of a command."""
    assert main(["evaluate", *args]) > 0
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    return output


def test_evaluate_command_refuses_invalid_options(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(cartpole)
    for args, reason in (
        ([str(tmp_path)], f"{tmp_path} holds no checkpoint"),
        ([f"{run}/checkpoints/step_000000000400"], "is a checkpoint: give the run folder"),
        ([run, "--starts", "human"], "--starts human needs an Atari game; CartPole-v1 is not one"),
        ([run, "--sticky", "0.25"], "--sticky needs an Atari game; CartPole-v1 is not one"),
        ([run, "--demos", "none"], "no demonstrations named none"),
        ([run, "--env", "CartPole-v1"], "--env ENV is only for random play"),
        (["random"], "--env ENV is only for random play"),
        (["random", "--env", "CartPole-v1", "--starts", "human"], "random play uses no-op starts"),
        (["random", "--env", "CartPool-v1"], "CartPool"),
        ([run, "--episodes", "0"], "--episodes must be at least 1, not 0"),
        ([run, "--lanes", "0"], "--lanes must be at least 1, not 0"),
        ([run, "--device", "gpu"], "device 'gpu' is none of auto, cpu, cuda, cuda:N"),
        ([run, "--device", "cuda:99"], "device cuda:99 is not on this machine: use --device cpu"),
        ([run, "--epsilon", "1.5"], "--epsilon must be 0 ... 1, not 1.5"),
        ([run, "--sticky", "1"], "--sticky must be 0 or more and below 1, not 1"),
        ([run, "--seed", "-1"], "--seed must be 0"),
    ):
        assert reason in error_line(capsys, *args), args
    assert not (tmp_path / "evaluation").exists()


def test_environment_with_module_has_expert_curve(
    breakout: Path,
    breakout_demos: DemoSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A set names the environment without the module that registers it."""
    run = write_run(
        tmp_path / "named", breakout_demos.description.spec, ("mine",), env=f"ale_py:{GAME}"
    )
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "  expert  " in capsys.readouterr().out


def test_evaluate_command_refuses_demos_without_starts(
    breakout: Path, breakout_demos: DemoSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = breakout_demos.description.spec
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in breakout_demos.episodes]
    storage.save_episodes("bare-v0", bare, spec, "", env_config=SHORT)
    alone = write_run(tmp_path / "alone", spec, ())
    gone = write_run(tmp_path / "gone", spec, ("gone",))
    other = write_run(tmp_path / "other", spec._replace(env="ALE/Pong-v5"), ("mine",))
    human = ("--starts", "human")
    assert "no input logs" in error_line(capsys, str(breakout), *human, "--demos", "bare-v0")
    assert "need demonstrations: give --demos SET" in error_line(capsys, str(alone), *human)
    assert "no demonstrations named gone" in error_line(capsys, str(gone), *human)
    assert f"mine contains {GAME}, but the agent plays ALE/Pong-v5" in error_line(
        capsys, str(other), *human
    )
    assert main(["evaluate", str(gone), "--episodes", "1"]) == 0
    assert "no expert curve: no demonstrations named gone" in capsys.readouterr().err
