"""Environments in worker processes give the results of those in one process."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from lookfurther.envs import subproc
from lookfurther.envs.subproc_worker import WorkerTraceback
from lookfurther.errors import CheckpointError, ConfigError, EnvironmentFault
from tests.faulty_envs import (
    Counting,
    Faulty,
    Waiting,
    fault_at,
    make_lanes,
    make_subproc_lanes,
    play_actions,
    random_actions,
    steps_equal,
    worker_pid,
)

pytestmark = pytest.mark.usefixtures("no_processes_left")


def test_subproc_envs_match_sync_envs():
    """Steps, states and restored episodes are equal, also from a state of the other kind."""
    sync, restored_sync = (make_lanes("CartPole-v1", 5, frame_stack=2) for _ in range(2))
    subproc_envs = make_subproc_lanes("CartPole-v1", 5, frame_stack=2)
    actions = random_actions(sync, 100)
    assert sync.spec == subproc_envs.spec
    assert steps_equal(sync.reset(), subproc_envs.reset())
    trajectories = [play_actions(envs, actions[:70]) for envs in (sync, subproc_envs)]
    assert all(steps_equal(a, b) for a, b in zip(*trajectories, strict=True))
    states = sync.state(), subproc_envs.state()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    for envs, state in zip((subproc_envs, restored_sync), states, strict=True):
        step, continued = envs.restore(state)
        assert continued.all()
        assert steps_equal(step, trajectories[0][-1])
    kinds = (sync, subproc_envs, restored_sync)
    trajectories = [play_actions(envs, actions[70:]) for envs in kinds]
    assert all(
        steps_equal(a, b) and steps_equal(a, c) for a, b, c in zip(*trajectories, strict=True)
    )
    with pytest.raises(CheckpointError, match="holds 4 lanes, this run has 5"):
        subproc_envs.restore({"episode": np.zeros(4, int)})
    subproc_envs.close()
    subproc_envs.close()


def test_send_does_not_wait(tmp_path: Path):
    """The environments cannot step before the file exists, which is created after `send`."""
    envs = make_subproc_lanes(partial(Waiting, tmp_path / "go"), 2)
    envs.reset()
    envs.send(np.array([1, 2]))
    (tmp_path / "go").touch()
    assert envs.recv().reward.tolist() == [11, 12]
    envs.close()


def test_worker_fault_carries_its_cause():
    """The second process has lanes 1 and 2; its second environment is lane 2."""
    envs = make_subproc_lanes(
        partial(Faulty, fault_at("step", 2, ValueError("boom"), number=2)), 3, max_failures=1
    )
    envs.reset()
    play_actions(envs, np.zeros((1, 3), int))
    envs.send(np.zeros(3, int))
    with pytest.raises(EnvironmentFault) as error:
        envs.recv()
    assert str(error.value) == (
        "Faulty, lane 2, episode 0, step 2: failure 1 in a row, the last is ValueError: boom"
    )
    assert isinstance(error.value.__cause__, WorkerTraceback)
    assert "Traceback" in str(error.value.__cause__)
    envs.close()


def test_worker_counts_are_summed():
    fault = fault_at("step", 1, {"reward": float("nan")}, number=1)
    envs = make_subproc_lanes(partial(Faulty, fault), 4, on_fault="drop")
    envs.reset()
    trajectory = play_actions(envs, np.zeros((3, 4), int))
    assert [step.dropped.tolist() for step in trajectory] == [
        [True, False] * 2,
        [False] * 4,
        [False] * 4,
    ]
    assert (envs.dropped_episodes, envs.restarts) == (2, 2)
    envs.close()


def test_close_kills_hanging_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(subproc, "CLOSE_TIMEOUT", 0.0)
    envs = make_subproc_lanes(partial(Waiting, tmp_path / "never"), 2)
    envs.reset()
    envs.send(np.zeros(2, int))
    found = [worker_pid(envs, lane) for lane in (0, 1)]
    envs.close()
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_worker_that_cannot_start_leaves_nothing():
    """The functions work in this process and fail in a worker."""
    main_pid = os.getpid()

    def raises_in_worker() -> gymnasium.Env:
        if os.getpid() != main_pid:
            raise ValueError("boom")
        return Counting()

    def wrong_type_in_worker() -> gymnasium.Env:
        return Counting() if os.getpid() == main_pid else 3  # type: ignore[return-value]

    with pytest.raises(
        EnvironmentFault, match=r"raises_in_worker, lane 0, when built: .*ValueError: boom"
    ):
        make_subproc_lanes(raises_in_worker, 2)
    with pytest.raises(
        ConfigError, match=r"wrong_type_in_worker must give a gymnasium.Env, not int"
    ):
        make_subproc_lanes(wrong_type_in_worker, 2)
