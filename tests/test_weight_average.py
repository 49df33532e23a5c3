"""The average of the weights that `learner.weight_average` makes the actors use."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lookfurther import Callback, train
from lookfurther.config import LearnerConfig
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.optimizers.weight_average import average_weight
from lookfurther.training.callbacks import RunContext
from lookfurther.training.checkpoints.best_checkpoint import BestCheckpoint
from lookfurther.training.checkpoints.saved_weights import warm_start
from lookfurther.training.run import TrainingRun
from tests.test_learner import CPU, make_batch, make_network, run_update
from tests.test_warm_start import SPEC
from tests.training_runs import assert_checkpoints_equal, newest_checkpoint, tiny_config

PERIOD, TIME_CONSTANT = 2, 6


def make_learner(weight_average: int, seed: int = 0) -> Learner:
    config = LearnerConfig(
        agent_items=8, expert_items=0, target_period=PERIOD, weight_average=weight_average
    )
    return Learner(make_network(seed), config, CPU, torch.float32)


def copy_parameters(learner: Learner) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in learner.online_network.parameters()])


def test_first_copies_are_averaged_evenly() -> None:
    """With a long time constant, n copies have the weight 1/n each."""
    shares = [average_weight(copies, 1, 10**9) for copies in range(5)]
    assert shares == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_old_copies_decay_with_the_time_constant() -> None:
    """After 3 target periods of a time constant of 3 periods, a copy has e^-1 of its weight."""
    kept = math.prod(1 - average_weight(copies, 250, 750) for copies in range(100, 103))
    assert kept == pytest.approx(math.exp(-1))


def test_average_is_the_weighted_sum_of_target_copies() -> None:
    learner, copies = make_learner(TIME_CONSTANT), []
    for k in range(7 * PERIOD):
        run_update(learner, make_batch(8, seed=k))
        if learner.updates % PERIOD == 0:
            copies.append(copy_parameters(learner))
    decay, expected = math.exp(-PERIOD / TIME_CONSTANT), copies[0]
    for n, parameters in enumerate(copies[1:], start=2):
        share = max(1 / n, 1 - decay)
        expected = (1 - share) * expected + share * parameters
    acting = [p.detach().flatten() for p in learner.acting_weights.network.parameters()]
    torch.testing.assert_close(torch.cat(acting), expected)
    assert not torch.allclose(expected, copies[-1], atol=1e-5)


def test_average_does_not_change_learning() -> None:
    averaged, plain = make_learner(TIME_CONSTANT), make_learner(0)
    assert plain.acting_weights is plain.online_weights
    for k in range(9):
        for learner in (averaged, plain):
            run_update(learner, make_batch(8, seed=k))
    assert torch.equal(copy_parameters(averaged), copy_parameters(plain))


def test_restored_learner_continues_its_average() -> None:
    one, two = make_learner(TIME_CONSTANT), make_learner(TIME_CONSTANT, seed=5)
    for k in range(5):
        run_update(one, make_batch(8, seed=k))
    saved = {f: {k: v.clone() for k, v in s.items()} for f, s in one.state().items()}
    two.load_state(saved, one.updates)
    for k in range(5, 11):
        for learner in (one, two):
            run_update(learner, make_batch(8, seed=k))
    assert {"weights", "online"} <= one.state().keys()
    for part, tensors in one.state().items():
        assert all(torch.equal(v, two.state()[part][k]) for k, v in tensors.items())


def test_run_acts_with_the_average_and_resumes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learner__weight_average": 40, "learner__target_period": 5}
    whole = train(tiny_config(tmp_path / "whole", **settings)).folder
    short: dict[str, Any] = {"run__steps": 200, **settings}
    train(tiny_config(tmp_path / "resumed", **short))
    resumed = train(tiny_config(tmp_path / "resumed", **settings), resume=True).folder
    assert_checkpoints_equal(newest_checkpoint(whole), newest_checkpoint(resumed))
    files = newest_checkpoint(whole).files
    actor = {k.removeprefix("network."): v for k, v in files["actor"].items() if "network" in k}
    names = [name for name in files["weights"] if files["weights"][name].is_floating_point()]
    assert any(not torch.equal(files["weights"][n], files["online"][n]) for n in names)

    def distance(part: str) -> float:
        return sum(float((actor[n] - files[part][n]).abs().sum()) for n in names)

    assert distance("weights") < distance("online")


def test_evaluations_and_callbacks_use_the_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[nn.Module] = []
    learners: list[Learner] = []
    start, evaluate = TrainingRun.__init__, BestCheckpoint.evaluate

    def record_run(self: TrainingRun, config: Any, run_dir: Any, loop: Any, *rest: Any) -> None:
        learners.append(loop.learner)
        start(self, config, run_dir, loop, *rest)

    def record_network(self: BestCheckpoint, network: nn.Module, *rest: Any) -> float:
        used.append(network)
        return evaluate(self, network, *rest)

    class NetworkCallback(Callback):
        def on_log(self, run: RunContext, row: Any) -> None:
            used.append(run.network)

    monkeypatch.setattr(TrainingRun, "__init__", record_run)
    monkeypatch.setattr(BestCheckpoint, "evaluate", record_network)
    settings: dict[str, Any] = {"learner__weight_average": 40, "run__evaluate_period": 200}
    config = tiny_config(tmp_path / "run", run__evaluate_episodes=1, **settings)
    train(config, callbacks=[NetworkCallback()], quiet=True)
    assert len(used) >= 2 + 4  # evaluations and rows
    (learner,) = learners
    assert all(network is learner.acting_weights.network for network in used)
    assert learner.acting_weights.network is not learner.online_network


def test_warm_start_begins_with_the_average(tmp_path: Path) -> None:
    """The new run learns from the averaged weights; its own average begins with them."""
    settings: dict[str, Any] = {"learner__weight_average": 40, "learner__target_period": 5}
    run = train(tiny_config(tmp_path / "run", **settings)).folder
    saved = newest_checkpoint(run).files["weights"]
    config = tiny_config(tmp_path / "new", **settings).learner
    for learner_config in (config, tiny_config(tmp_path / "plain").learner):
        network = make_network_builder(tiny_config(tmp_path).network)(SPEC)
        learner = Learner(network, learner_config, CPU, torch.float32)
        warm_start(learner, run)
        for weights in (learner.online_weights, learner.acting_weights):
            state = weights.network.state_dict()
            assert all(torch.equal(state[name], saved[name]) for name in saved)
