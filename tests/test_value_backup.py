"""Value floors that are backed up along the demonstrations at each target copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther import replace, train
from lookfurther.returns import back_up_values, discounted_returns
from lookfurther.training.loop import TrainingLoop
from lookfurther.types import END, TERMINAL, TRUNCATED
from tests.test_operator import optimal_q, random_mdp
from tests.training_runs import assert_checkpoints_equal, newest_checkpoint, tiny_config

MARKS = st.sampled_from([0, 0, 0, TERMINAL, TRUNCATED])
BACKUP: dict[str, Any] = {"learner__value_floor": "backup", "learner__target_period": 5}
EPISODES = st.lists(st.tuples(st.floats(-10, 10), MARKS, st.floats(-50, 50)), min_size=1)


def split_columns(steps: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, marks and values; the last slot ends its episode, as in an expert replay."""
    reward, mark, value = zip(*steps, strict=True)
    marks = torch.tensor(mark, dtype=torch.uint8)
    marks[-1] |= TERMINAL
    return torch.tensor(reward, dtype=torch.float64), marks, torch.tensor(value).double()


def iterate_values(reward, mark, value, gamma: float) -> torch.Tensor:
    """Value iteration: y <- r + gamma max(V, y) of the next slot, until nothing changes."""
    is_terminal, is_end = (mark & TERMINAL) != 0, (mark & END) != 0
    value = torch.where(is_terminal, 0.0, value)
    y = torch.where(is_end, value, torch.full_like(value, -torch.inf))
    for _ in range(len(reward)):
        following = torch.maximum(value, y).roll(-1)
        y = torch.where(is_end, value, reward + gamma * following)
    return y


@given(EPISODES, st.floats(0, 1))
def test_backup_is_value_iteration_along_the_demonstration(steps: list, gamma: float) -> None:
    columns = split_columns(steps)
    expected = iterate_values(*columns, gamma)
    torch.testing.assert_close(back_up_values(*columns, gamma), expected, rtol=1e-12, atol=1e-12)


@given(EPISODES, st.floats(0, 1))
def test_backup_without_values_is_the_return(steps: list, gamma: float) -> None:
    """With terminal ends, and values that are never the better choice."""
    reward, mark, _ = split_columns(steps)
    mark = torch.where((mark & END) != 0, TERMINAL, 0).to(torch.uint8)
    lowest = torch.full_like(reward, -1e9)
    torch.testing.assert_close(
        back_up_values(reward, mark, lowest, gamma), discounted_returns(reward, mark, gamma)
    )


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.9))
def test_backup_never_exceeds_optimal_values(seed: int, gamma: float) -> None:
    """On a random path of a deterministic MDP, with values at or below V*."""
    mdp, rng = random_mdp(seed, gamma, deterministic=True), np.random.default_rng(seed)
    optimal = torch.where(mdp.terminal, 0.0, optimal_q(mdp).max(-1).values)
    x, path, rewards = 0, [0], []
    while len(path) < 20 and not (mdp.terminal[x] and rewards):
        action = int(rng.integers(mdp.reward.shape[1]))
        rewards.append(float(mdp.reward[x, action]))
        x = int(mdp.transition[x, action].argmax())
        path.append(x)
    marks = torch.zeros(len(path), dtype=torch.uint8)
    marks[-1] = TERMINAL if mdp.terminal[x] else TRUNCATED
    best = optimal_q(mdp).max(-1).values[path]  # also of a terminal first state, which is left
    best[-1] = optimal[x]
    value = best - torch.from_numpy(rng.exponential(3.0, len(path)))
    backups = back_up_values(
        torch.tensor([*rewards, 0.0], dtype=torch.float64), marks, value, gamma
    )
    assert (backups <= best + 1e-9 * (1 + best.abs())).all()


def backed_up_floors(loop: TrainingLoop) -> torch.Tensor:
    """The backup of h^-1(max f) of the target network."""
    replay, learner = loop.mixture.expert, loop.learner
    assert replay is not None
    x = replay.gather_states(torch.arange(len(replay.actions)))
    with torch.no_grad():
        f = learner.target_network(x.float()).max(-1).values
    value = learner.objective.value_transform.h_inv(f)
    return back_up_values(replay.rewards, replay.marks, value, replay.gamma)


def record_floors(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The floors before the first step of a run and after each; checks all of them."""
    checked = []
    run_step = TrainingLoop.run_step

    def check_floors(loop: TrainingLoop) -> None:
        assert loop.mixture.expert is not None
        floors = loop.mixture.expert.value_floors
        torch.testing.assert_close(floors.double(), backed_up_floors(loop), rtol=1e-4, atol=1e-4)
        checked.append(floors.clone())

    def run_checked_step(loop: TrainingLoop) -> None:
        if not checked:
            check_floors(loop)
        run_step(loop)
        check_floors(loop)

    monkeypatch.setattr(TrainingLoop, "run_step", run_checked_step)
    return checked


def test_floors_follow_the_target_network(
    tmp_path: Path, balance_demos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = record_floors(monkeypatch)
    train(replace(tiny_config(tmp_path / "run", balance_demos), **BACKUP), quiet=True)
    assert not torch.equal(checked[0], checked[-1])


def test_floors_follow_initial_weights(
    tmp_path: Path, balance_demos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of another run are loaded after the floors were set for the first time."""
    config = replace(tiny_config(tmp_path / "run", balance_demos), **BACKUP)
    train(config, quiet=True)
    record_floors(monkeypatch)
    new = replace(config, run__folder=str(tmp_path / "new"), run__seed=1, run__steps=40)
    train(new, init=tmp_path / "run", quiet=True)


def test_resumed_run_has_the_same_floors(tmp_path: Path, balance_demos: Path) -> None:
    whole = replace(tiny_config(tmp_path / "whole", balance_demos), **BACKUP)
    train(whole, quiet=True)
    resumed = replace(whole, run__folder=str(tmp_path / "resumed"))
    train(replace(resumed, run__steps=200), quiet=True)
    train(resumed, resume=True, quiet=True)
    assert_checkpoints_equal(
        newest_checkpoint(tmp_path / "whole"), newest_checkpoint(tmp_path / "resumed")
    )
