"""Evaluations: starts drawn from tapes, scores that repeat, and the command that keeps them."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lookfurther import Agent, Config, Spec, preset, rollout, train
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig, to_json
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
from lookfurther.networks import DuelingNetwork, make_network_builder
from lookfurther.rollout import QValueCache
from lookfurther.training import checkpoint
from tests.test_training import tiny_config

pytest.importorskip("ale_py")

GAME = "ALE/Breakout-v5"
SHORT = EnvConfig(max_episode_length=60)


class Guess(nn.Module):
    """Prefers an action by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 18, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x.float().mean((-2, -1)) @ self.weight


def random_play(seed: int, env: str = GAME) -> DemoSet:
    """Two short demonstrations, of 60 steps each unless the game ends before."""
    random = np.random.default_rng(seed)
    policy = ObservationPolicy(lambda _: random.integers(18))
    episodes, spec = collect_episodes(env, SHORT, policy, seeds=range(2))
    return DemoSet("mine", DemoSetDescription(spec, "", make_origin(spec, SHORT), ()), episodes)


@pytest.fixture(scope="module")
def demos() -> DemoSet:
    return random_play(0)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    """On Breakout, for episodes of 100 steps."""
    monkeypatch.setattr(evaluate, "MAX_EPISODE_FRAMES", 400)
    spec = Spec(GAME, (1, 84, 84), 4, "uint8", 18, 255.0)
    return Agent(Guess(), spec, preset("apex-dqfd", env=GAME, demos=("mine",)))


# Human starts


def tapes_of(held: DemoSet) -> list:
    return [episode.input_log for episode in held.episodes]


def test_as_many_starts_as_moments_are_every_moment_once(demos: DemoSet) -> None:
    """So each of them is as likely as any other; all look as in the demonstration."""
    lengths = [len(tape.frames) // 4 for tape in tapes_of(demos)]
    starts = draw_human_starts(GAME, [demos], EnvConfig(), 0, count=sum(lengths))
    emulator, seen = Emulator(GAME), []
    for start in starts:
        emulator.restore_state(start.state)
        seen.append(emulator.frame_number)
        assert not emulator.is_over
    assert seen == [4 * i for length in lengths for i in range(length)]
    bounds = np.cumsum([0, *lengths])
    for i, episode in enumerate(demos.episodes):
        for t, start in enumerate(starts[bounds[i] : bounds[i + 1]]):
            emulator.restore_state(start.state)
            assert np.array_equal(emulator.current_plane(), episode.planes[t])
            assert start.last_action == (episode.actions[t - 1] if t else 0)
    more = draw_human_starts(GAME, [demos], EnvConfig(), 0, count=10**6)
    assert [s.state for s in more] == [s.state for s in starts]


def test_starts_are_drawn_by_seed_and_lie_before_the_cap(demos: DemoSet) -> None:
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


def test_what_gives_no_starts_is_named(demos: DemoSet) -> None:
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in demos.episodes]
    for env, held, reason in (
        (GAME, [], f"human starts of {GAME} need demonstrations: give --demos SET"),
        ("ALE/Pong-v5", [demos], f"mine shows {GAME}, the agent plays ALE/Pong-v5"),
        (GAME, [demos._replace(episodes=bare)], "mine has no tapes to replay"),
    ):
        with pytest.raises(DemonstrationError, match=f"^{reason}"):
            draw_human_starts(env, held, EnvConfig(), 0)


# Scores


@pytest.mark.parametrize("starts", ["noop", pytest.param("human", marks=pytest.mark.slow)])
def test_the_same_seeds_give_the_same_scores(agent: Agent, demos: DemoSet, starts: Any) -> None:
    played = [
        run_evaluation(
            agent,
            EvaluationConditions(GAME, starts, 0.25, 0.5, seed=s),
            [demos],
            episodes=5,
            lanes=2,
        )
        for s in (3, 3, 4)
    ]
    kept = [(e.scores.tolist(), e.steps.tolist()) for e in played]
    assert kept[0] == kept[1] != kept[2]
    assert all(len(e.scores) == 5 for e in played)
    assert played[0].best_curves["agent"].returns[-1] == played[0].scores.max()
    assert ("expert" in played[0].best_curves) == (starts == "noop")
    if starts == "noop":
        assert played[0].expert_score() == max(e.score for e in demos.episodes)


def test_evaluation_has_settings_of_its_own() -> None:
    trained = EnvConfig(
        noop_max=0,
        max_episode_length=77,
        processes=3,
        sticky_prob=0.25,
        action_repeat=2,
        full_actions=False,
    )
    seen = evaluation_env_config(trained)
    assert (seen.noop_max, seen.max_episode_length, seen.episode_length_unit, seen.processes) == (
        30,
        108_000,
        "frames",
        0,
    )
    assert (seen.sticky_prob, seen.action_repeat, seen.full_actions) == (0.25, 2, False)
    assert evaluation_env_config(trained, 0.0).sticky_prob == 0


# The command


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("evaluate") / "run")).folder


@pytest.fixture
def breakout(tmp_path: Path, demos: DemoSet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with random weights, its demonstrations in Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setattr(evaluate, "MAX_EPISODE_FRAMES", 400)
    spec = demos.description.spec
    storage.save_episodes("mine-v0", demos.episodes, spec, "random play", env_config=SHORT)
    return put(tmp_path / "run", spec, ("mine",))


def put(folder: Path, spec: Spec, demos: tuple[str, ...], env: str = "") -> Path:
    """A run folder that holds random weights as its best."""
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
    facts = {"step": 42, "spec": spec._asdict(), "config": asdict(config), "score": 0.0}
    checkpoint.save(folder / "best", 42, weights, facts, keep=1)
    return folder


def test_the_command_keeps_what_evaluate_gives(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(cartpole), "--episodes", "7", "--lanes", "3", "--seed", "5"]
    assert main([*words, "--json", str(tmp_path / "out.json")]) == 0
    played = evaluate(Agent.load(cartpole), 7, lanes=3, seed=5)
    kept = results.read_evaluations(cartpole)["noop"]
    assert kept.scores.tolist() == [episode.score for episode in played]
    assert kept.steps.tolist() == [episode.steps for episode in played]
    assert kept.conditions == EvaluationConditions("CartPole-v1", step=400, seed=5)
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["scores"] == kept.scores.tolist()
    assert facts["mean"]["value"] == kept.scores.mean()
    assert facts["starts"] == "noop"
    said = capsys.readouterr().out
    assert "CartPole-v1: 7 episodes, no-op starts, ε 0.001, step 400" in said
    assert f"{kept.scores.mean():,.1f}" in said
    assert str(cartpole / "evaluation" / "noop") in said


def test_human_and_no_op_starts_lie_side_by_side(breakout: Path) -> None:
    words = ["evaluate", str(breakout), "--episodes", "4", "--lanes", "4"]
    assert main([*words, "--starts", "human", "--demos", "mine-v0"]) == 0
    assert main([*words, "--sticky", "0.25"]) == 0
    kept = results.read_evaluations(breakout)
    assert set(kept) == {"human", "noop-sticky-0.25"}
    assert kept["noop-sticky-0.25"].best_curves["expert"].frames[-1] <= 240
    assert all(len(e.scores) == 4 and e.conditions.step == 42 for e in kept.values())


def test_random_play_of_cartpole_lasts_22_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    assert main(["evaluate", "random", "--env", "CartPole-v1", "--json", str(out)]) == 0
    facts = json.loads(out.read_text())
    assert facts["episodes"] == 200
    assert facts["mean"]["value"] == pytest.approx(22.3, abs=4 * 11.8 / 200**0.5)
    said, counted = capsys.readouterr()
    assert "CartPole-v1: 200 episodes, no-op starts, ε 1\n" in said
    assert counted.splitlines() == [f"{n} of 200 episodes" for n in range(20, 201, 20)]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command ends with."""
    assert main(["evaluate", *words]) > 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_cannot_be_evaluated_is_named(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(cartpole)
    for words, reason in (
        ([str(tmp_path)], f"{tmp_path} holds no checkpoint"),
        ([f"{run}/checkpoints/step_000000000400"], "is a checkpoint: give the run folder"),
        ([run, "--starts", "human"], "--starts human needs an Atari game; CartPole-v1 is not one"),
        ([run, "--sticky", "0.25"], "--sticky is for Atari games, CartPole-v1 is none"),
        ([run, "--demos", "none"], "no demonstrations named none"),
        ([run, "--env", "CartPole-v1"], "--env ENV is only for random play"),
        (["random"], "--env ENV is only for random play"),
        (["random", "--env", "CartPole-v1", "--starts", "human"], "from no-op starts"),
        (["random", "--env", "CartPool-v1"], "CartPool"),
        ([run, "--episodes", "0"], "--episodes must be at least 1, not 0"),
        ([run, "--lanes", "0"], "--lanes must be at least 1, not 0"),
        ([run, "--epsilon", "1.5"], "--epsilon must be 0 ... 1, not 1.5"),
        ([run, "--sticky", "1"], "--sticky must be 0 or more and below 1, not 1"),
        ([run, "--seed", "-1"], "--seed must be 0"),
    ):
        assert reason in refusal(capsys, *words), words
    assert not (tmp_path / "evaluation").exists()


def test_environment_named_with_its_module_has_the_curve_of_its_demonstrations(
    breakout: Path,
    demos: DemoSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A set names the environment without the module that registers it."""
    run = put(tmp_path / "named", demos.description.spec, ("mine",), env=f"ale_py:{GAME}")
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    assert "  expert  " in capsys.readouterr().out


def test_demonstrations_that_give_no_starts_are_named(
    breakout: Path, demos: DemoSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = demos.description.spec
    bare = [Episode(e.planes, e.actions, e.rewards, e.terminal) for e in demos.episodes]
    storage.save_episodes("bare-v0", bare, spec, "", env_config=SHORT)
    alone = put(tmp_path / "alone", spec, ())
    gone = put(tmp_path / "gone", spec, ("gone",))
    other = put(tmp_path / "other", spec._replace(env="ALE/Pong-v5"), ("mine",))
    human = ("--starts", "human")
    assert "no tapes" in refusal(capsys, str(breakout), *human, "--demos", "bare-v0")
    assert "need demonstrations: give --demos SET" in refusal(capsys, str(alone), *human)
    assert "no demonstrations named gone" in refusal(capsys, str(gone), *human)
    assert f"mine shows {GAME}, the agent plays ALE/Pong-v5" in refusal(capsys, str(other), *human)
    assert main(["evaluate", str(gone), "--episodes", "1"]) == 0
    assert "no expert curve: no demonstrations named gone" in capsys.readouterr().err


# Values computed once


class Counted(nn.Module):
    """Says what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(x.clone())
        return x.float() @ torch.eye(3)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12))
def test_values_are_the_networks_own_and_computed_once_for_each_observation(
    turns: list[list[int]],
) -> None:
    network, seen = Counted(), set()
    recall = QValueCache(network)
    for turn in turns:
        x = torch.eye(3, dtype=torch.uint8)[turn]
        assert torch.equal(recall(x), x.float())
        seen |= set(turn)
    assert sum(len(x) for x in network.asked) == len(seen)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 6))
def test_what_is_forgotten_for_want_of_room_is_computed_again(turns: list[int], limit: int) -> None:
    recall = QValueCache(nn.Identity(), limit)
    for start in turns:
        x = torch.arange(start, start + 4)[:, None].float()
        assert torch.equal(recall(x), x)
        assert len(recall.row_by_digest) <= max(limit, 4)


def test_an_evaluation_with_values_computed_once_plays_the_same_episodes(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    agent.network = make_network_builder(replace(agent.config.network, convolutions=(4, 4, 4)))(
        agent.spec
    )
    found = []
    for kind in (DuelingNetwork, Guess):  # of what no values are kept every one is computed
        monkeypatch.setattr(rollout, "DuelingNetwork", kind)
        found.append([list(played.rewards) for played in evaluate(agent, 6, lanes=3, epsilon=0.2)])
    assert found[0] == found[1]


def test_lanes_that_have_played_their_share_are_not_asked_again() -> None:
    asked = []

    def policy(observations: np.ndarray) -> np.ndarray:
        asked.append(len(observations))
        return np.zeros(len(observations), np.int64)

    with closing(
        evaluation.make_noop_envs(GAME, EnvConfig(max_episode_length=50, noop_max=0), 2, 0)
    ) as envs:
        played = rollout.play_episodes(policy, envs, 3)
    assert [p.steps for p in played] == [50] * 3
    assert asked == [2] * 50 + [1] * 51  # the reset between two episodes takes a turn
