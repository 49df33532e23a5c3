"""Evaluations: starts from demonstrations, repeatable scores, and the evaluate command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther import Agent, Config, Spec, preset, train
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.collect import ObservationPolicy, collect_episodes
from lookfurther.demos.episode import Episode
from lookfurther.demos.metadata import DemoSetDescription, make_origin
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import DemonstrationError
from lookfurther.evaluation import evaluate as evaluation
from lookfurther.evaluation import results
from lookfurther.evaluation.evaluate import (
    draw_human_starts,
    evaluate,
    evaluation_env_config,
    run_evaluation,
)
from lookfurther.evaluation.results import EvaluationConditions
from lookfurther.networks.dueling import make_network_builder
from lookfurther.training.checkpoints import checkpoint
from lookfurther.training.config_json import to_json
from tests.training_runs import tiny_config

pytest.importorskip("ale_py")

GAME = "ALE/Breakout-v5"
SHORT = EnvConfig(max_episode_length=60)


class MeanPixelNetwork(nn.Module):
    """A network whose best action depends on the mean of each plane."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 18, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x.float().mean((-2, -1)) @ self.weight


def random_play(seed: int, env: str = GAME) -> DemoSet:
    """Two short demonstrations, of 60 steps each unless the game ends earlier."""
    random = np.random.default_rng(seed)
    policy = ObservationPolicy(lambda _: random.integers(18))
    episodes, spec = collect_episodes(env, SHORT, policy, seeds=range(2))
    return DemoSet("mine", DemoSetDescription(spec, "", make_origin(spec, SHORT), ()), episodes)


@pytest.fixture(scope="module")
def demos() -> DemoSet:
    return random_play(0)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent on Breakout, with episodes of at most 100 steps."""
    monkeypatch.setattr(evaluation, "MAX_EPISODE_FRAMES", 400)
    spec = Spec(GAME, (1, 84, 84), 4, "uint8", 18, 255.0)
    return Agent(MeanPixelNetwork(), spec, preset("apex-dqfd", env=GAME, demos=("mine",)))


# Human starts


def input_logs(demo_set: DemoSet) -> list:
    return [episode.input_log for episode in demo_set.episodes]


def test_all_starts_cover_every_step_once(demos: DemoSet) -> None:
    """All steps are equally likely; each state has the plane of the demonstration."""
    lengths = [len(log.frame_actions) // 4 for log in input_logs(demos)]
    starts = draw_human_starts(GAME, [demos], EnvConfig(), 0, count=sum(lengths))
    emulator, frames = Emulator(GAME), []
    for start in starts:
        emulator.restore_state(start.state)
        frames.append(emulator.frame_number)
        assert not emulator.is_over
    assert frames == [4 * i for length in lengths for i in range(length)]
    bounds = np.cumsum([0, *lengths])
    for i, episode in enumerate(demos.episodes):
        for t, start in enumerate(starts[bounds[i] : bounds[i + 1]]):
            emulator.restore_state(start.state)
            assert np.array_equal(emulator.current_plane(), episode.planes[t])
            assert start.last_action == (episode.actions[t - 1] if t else 0)
    more = draw_human_starts(GAME, [demos], EnvConfig(), 0, count=10**6)
    assert [s.state for s in more] == [s.state for s in starts]


def test_starts_depend_on_seed_and_respect_max_length(demos: DemoSet) -> None:
    settings = EnvConfig(max_episode_length=80, episode_length_unit="frames")
    first, again, other = (
        draw_human_starts(GAME, [demos], settings, s, count=9) for s in (1, 1, 2)
    )
    assert first == again != other
    assert len({start.state for start in first}) == 9
    emulator = Emulator(GAME)
    for start in first + other:
        emulator.restore_state(start.state)
        assert emulator.frame_number < 80


def test_demos_without_starts_raise(demos: DemoSet) -> None:
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in demos.episodes]
    for env, demo_sets, reason in (
        (GAME, [], f"human starts of {GAME} need demonstrations: give --demos SET"),
        ("ALE/Pong-v5", [demos], f"mine contains {GAME}, but the agent plays ALE/Pong-v5"),
        (GAME, [demos._replace(episodes=bare)], "mine has no input logs to replay"),
    ):
        with pytest.raises(DemonstrationError, match=f"^{reason}"):
            draw_human_starts(env, demo_sets, EnvConfig(), 0)


# Scores


@pytest.mark.parametrize("starts", ["noop", pytest.param("human", marks=pytest.mark.slow)])
def test_same_conditions_give_same_scores(agent: Agent, demos: DemoSet, starts: Any) -> None:
    evaluations = [
        run_evaluation(
            agent,
            EvaluationConditions(GAME, starts, 0.25, 0.5, seed=seed),
            [demos],
            episodes=5,
            lanes=2,
        )
        for seed in (3, 3, 4)
    ]
    outcomes = [(e.scores.tolist(), e.steps.tolist()) for e in evaluations]
    assert outcomes[0] == outcomes[1] != outcomes[2]
    assert all(len(e.scores) == 5 for e in evaluations)
    first = evaluations[0]
    assert first.best_curves["agent"].returns[-1] == first.scores.max()
    assert ("expert" in first.best_curves) == (starts == "noop")
    if starts == "noop":
        assert first.expert_score() == max(e.score for e in demos.episodes)


def test_evaluation_env_config_replaces_training_settings() -> None:
    training = EnvConfig(
        noop_max=0,
        max_episode_length=77,
        processes=3,
        sticky_prob=0.25,
        action_repeat=2,
        full_actions=False,
    )
    expected = replace(
        training,
        noop_max=30,
        max_episode_length=108_000,
        episode_length_unit="frames",
        processes=0,
    )
    assert evaluation_env_config(training) == expected
    assert evaluation_env_config(training, 0.0) == replace(expected, sticky_prob=0.0)


@pytest.mark.parametrize(
    ("episodes", "lanes", "device", "count"),
    [
        (200, None, "cpu", 20),
        (7, None, "cpu", 7),
        (200, None, "cuda", 200),
        (1000, None, "cuda:1", 256),
        (200, 8, "cpu", 8),
        (200, 8, "cuda", 8),
        (4, 8, "cuda", 4),
    ],
)
def test_gpu_has_one_lane_per_episode(
    episodes: int, lanes: int | None, device: str, count: int
) -> None:
    assert evaluation.count_lanes(episodes, lanes, torch.device(device)) == count


# The command


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("evaluate") / "run")).folder


@pytest.fixture
def breakout(tmp_path: Path, demos: DemoSet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with random weights, its demonstrations in Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setattr(evaluation, "MAX_EPISODE_FRAMES", 400)
    spec = demos.description.spec
    storage.save_episodes("mine-v0", demos.episodes, spec, "random play", env_config=SHORT)
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
    assert "CartPole-v1: 7 episodes, no-op starts, ε 0.001, step 400" in output
    assert f"{stored.scores.mean():,.1f}" in output
    assert str(cartpole / "evaluation" / "noop") in output


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
    assert "CartPole-v1: 200 episodes, no-op starts, ε 1\n" in output
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
    demos: DemoSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A set names the environment without the module that registers it."""
    run = write_run(tmp_path / "named", demos.description.spec, ("mine",), env=f"ale_py:{GAME}")
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "  expert  " in capsys.readouterr().out


def test_evaluate_command_refuses_demos_without_starts(
    breakout: Path, demos: DemoSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = demos.description.spec
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in demos.episodes]
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
