"""Worker processes that die, hang or stop are replaced."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs import subproc_worker
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.subproc_worker import Worker, WorkerLost, WorkerSetup, lane_dtype
from lookfurther.envs.sync import SyncEnvs
from lookfurther.errors import EnvironmentFault
from tests.faulty_envs import (
    Counting,
    Dying,
    Hanging,
    Orphaning,
    make_lanes,
    make_subproc_lanes,
    play_actions,
    select_lanes,
    steps_equal,
    worker_pid,
)

pytestmark = pytest.mark.usefixtures("no_processes_left")


@pytest.mark.parametrize("lane", [0, 2])
def test_killed_worker_error_names_its_lanes(lane):
    envs = make_subproc_lanes(Counting, 4, max_failures=1)
    envs.reset()
    os.kill(worker_pid(envs, lane), signal.SIGKILL)
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((2, 4), int))
    process = f"the process of lanes {lane} to {lane + 1}"
    assert str(error.value) == f"Counting: {process} died (exit code -9): failure 1 in a row"
    envs.close()


def test_killed_worker_is_replaced():
    """New episodes begin in its lanes, the old ones are dropped; the other lanes continue."""
    healthy, envs = make_lanes(Counting, 4), make_subproc_lanes(Counting, 4)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((6, 4), int))]
    trajectory = [envs.reset(), *play_actions(envs, np.ones((2, 4), int))]
    killed, other = worker_pid(envs, 0), worker_pid(envs, 2)
    os.kill(killed, signal.SIGKILL)
    trajectory += play_actions(envs, np.ones((4, 4), int))
    assert worker_pid(envs, 0) != killed
    assert worker_pid(envs, 2) == other
    assert all(
        steps_equal(select_lanes(a, [2, 3]), select_lanes(b, [2, 3]))
        for a, b in zip(expected, trajectory, strict=True)
    )
    assert [step.dropped.tolist() for step in trajectory] == [
        [k == 3, k == 3, False, False] for k in range(7)
    ]
    assert trajectory[3].first.tolist() == [True, True, False, False]
    assert trajectory[3].reward.tolist() == [0, 0, *expected[3].reward[2:].tolist()]
    seeds = {float(step.observation[lane, 2]) for step in trajectory for lane in (0, 1)}
    assert len(seeds) == 4  # two episodes in each lane, each with another seed
    assert (envs.dropped_episodes, envs.restarts) == (2, 0)
    line = "Counting: the process of lanes 0 to 1 died (exit code -9) and is replaced"
    assert envs.replacements == [line]
    envs.close()


def test_worker_killed_between_episodes_drops_nothing():
    """The episodes had ended; those that were about to begin are skipped."""
    envs, healthy = make_subproc_lanes(Counting, 2), make_lanes(Counting, 2)
    healthy.reset()
    third = play_actions(healthy, np.zeros((12, 2), int))[7]  # the episodes of number 2 begin
    envs.reset()
    assert play_actions(envs, np.zeros((3, 2), int))[-1].terminal.all()
    os.kill(worker_pid(envs, 0), signal.SIGKILL)
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert step.first.all()
    assert not step.dropped.any()
    assert envs.dropped_episodes == 0
    assert steps_equal(select_lanes(step, [0]), select_lanes(third, [0]))
    envs.close()


def test_worker_that_always_dies_stops_the_run():
    envs = make_subproc_lanes(partial(Dying, at=1), 1, max_failures=3)
    envs.reset()
    play_actions(envs, np.zeros((2, 1), int))
    with pytest.raises(EnvironmentFault, match=r"died \(exit code 9\): failure 3 in a row"):
        play_actions(envs, np.zeros((1, 1), int))
    assert len(envs.replacements) == 2
    envs.close()


def test_good_step_resets_worker_failure_count():
    """A good step between two deaths resets the count."""
    envs = make_subproc_lanes(partial(Dying, at=2), 1, max_failures=2)
    envs.reset()
    trajectory = play_actions(envs, np.zeros((4, 1), int))
    assert sum(step.dropped.sum() for step in trajectory) == envs.dropped_episodes == 2
    assert len(envs.replacements) == 2
    envs.close()


def test_worker_that_dies_at_start_is_retried():
    main_pid = os.getpid()

    def env() -> gymnasium.Env:
        if os.getpid() != main_pid:
            os._exit(7)
        return Counting()

    with pytest.raises(EnvironmentFault, match=r"died \(exit code 7\): failure 2 in a row"):
        make_subproc_lanes(env, 1, max_failures=2)


def test_state_with_lost_worker_restores_other_lanes():
    envs = make_subproc_lanes(Counting, 4)
    envs.reset()
    trajectory = play_actions(envs, np.ones((2, 4), int))
    os.kill(worker_pid(envs, 0), signal.SIGKILL)
    state = envs.state()
    assert play_actions(envs, np.ones((1, 4), int))[0].dropped.tolist() == [
        True,
        True,
        False,
        False,
    ]
    for again in (make_lanes(Counting, 4), make_subproc_lanes(Counting, 4)):
        step, continued = again.restore(state)
        assert continued.tolist() == [False, False, True, True]
        assert steps_equal(select_lanes(step, [2, 3]), select_lanes(trajectory[-1], [2, 3]))
        assert step.first.tolist() == [True, True, False, False]
        again.close()
    envs.close()


def test_worker_killed_before_restore_begins_new_episodes():
    envs = make_subproc_lanes(Counting, 4)
    envs.reset()
    play_actions(envs, np.ones((2, 4), int))
    state = envs.state()
    os.kill(worker_pid(envs, 0), signal.SIGKILL)
    step, continued = envs.restore(state)
    assert continued.tolist() == [False, False, True, True]
    assert step.first.tolist() == [True, True, False, False]
    assert not step.dropped.any()
    envs.close()


# The timeout is short: on a busy machine healthy processes may exceed it too. These tests allow any
# number of replacements.
SHORT_TIMEOUT = {"worker_timeout": 0.5, "max_failures": 1_000_000}


def test_stopped_worker_is_replaced():
    envs = make_subproc_lanes(Counting, 2, **SHORT_TIMEOUT)
    envs.reset()
    stopped = worker_pid(envs, 0)
    os.kill(stopped, signal.SIGSTOP)
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert (step.dropped[0], step.first[0]) == (True, True)
    assert worker_pid(envs, 0) != stopped
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)
    line = "Counting: the process of lanes 0 to 0 has not completed a step in 0.5 seconds"
    assert f"{line} and is replaced" in envs.replacements
    envs.close()


def test_hanging_environment_is_replaced(tmp_path: Path):
    """Only the first environment to step hangs: it creates the file that stops the others."""
    envs = make_subproc_lanes(partial(Hanging, tmp_path / "hung"), 2, **SHORT_TIMEOUT)
    envs.reset()
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert (tmp_path / "hung").exists()
    assert step.dropped.any()
    assert envs.replacements
    envs.close()


class FakePipe:
    """A pipe with an answer after some polls; during some polls an environment steps."""

    def __init__(self, worker: Worker, polls: int, steps: set[int]) -> None:
        self.worker, self.polls, self.steps, self.poll_count = worker, polls, steps, 0

    def poll(self, _: float) -> bool:
        self.poll_count += 1
        self.worker._records["progress"][0] += self.poll_count in self.steps
        return self.poll_count > self.polls

    def recv(self) -> str:
        return "done"

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("timeout", "polls", "steps", "lost_at"),
    [
        (4.0, 100, set(range(1, 101)), None),  # a long answer, such as a replay of episodes
        (4.0, 100, {3, 6, 50}, 10),
        (4.0, 100, set(), 4),
        (2.0, 100, set(), 4),  # in quarters
        (0.0, 10_000, set(), None),
    ],
)
def test_worker_without_progress_is_lost(timeout, polls, steps, lost_at, monkeypatch):
    monkeypatch.setattr(subproc_worker, "POLL_PERIOD", 1.0)
    spec = make_lanes(Counting).spec
    worker = Worker(WorkerSetup(bytearray(lane_dtype(spec).itemsize), spec, b"", 0), 0, 1)
    pipe: Any = FakePipe(worker, polls, steps)
    worker._pipe = pipe
    worker._process = FakeProcess()  # type: ignore[assignment]
    if lost_at is None:
        assert worker.receive_answer(timeout) == "done"
    else:
        with pytest.raises(WorkerLost, match=f"has not completed a step in {timeout:g} seconds"):
            worker.receive_answer(timeout)
        assert pipe.poll_count == lost_at


class FakeProcess:
    def is_alive(self) -> bool:
        return True

    def kill(self) -> None: ...

    def join(self, timeout: float) -> None: ...


def test_progress_counts_every_build_reset_and_step():
    """Including those of a restore, which may take longer than any step."""
    calls = []
    envs = SyncEnvs(EnvFactory(Counting, EnvConfig()), range(3), 0, lambda: calls.append(None))
    counts = [len(calls)]
    envs.reset()
    counts.append(len(calls))
    play_actions(envs, np.zeros((2, 3), int))
    counts.append(len(calls))
    envs.restore(envs.state())
    counts.append(len(calls))
    assert counts == [3, 6, 12, 21]


def test_dead_worker_with_open_pipe_is_detected(tmp_path: Path):
    try:
        envs = make_subproc_lanes(
            partial(Orphaning, tmp_path / "end"), 1, max_failures=1, worker_timeout=0.0
        )
        envs.reset()
        with pytest.raises(EnvironmentFault, match=r"died \(exit code 9\)"):
            play_actions(envs, np.zeros((1, 1), int))
        envs.close()
    finally:
        (tmp_path / "end").touch()
