"""Lanes in worker processes: the same results as in one process, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lookfurther.config import EnvConfig
from lookfurther.envs import subproc, subproc_worker
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.envs.subproc_worker import (
    Worker,
    WorkerLost,
    WorkerSetup,
    WorkerTraceback,
    lane_dtype,
)
from lookfurther.envs.sync import SyncEnvs
from lookfurther.errors import CheckpointError, ConfigError, EnvironmentFault
from tests.faulty_envs import (
    Counting,
    Dying,
    Faulty,
    Hanging,
    Orphaning,
    Waiting,
    fault_at,
    make_lanes,
    play_actions,
    random_actions,
    select_lanes,
    steps_equal,
)
from tests.process_group import (
    session_processes,
    stop_at_numpy,
    wait_until_gone,
    wait_until_stopped,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _no_processes_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
    assert list(Path("/dev/shm").glob(f"*-{os.getpid()}-*")) == []


def make_subproc_lanes(env: Any, m: int, **settings: Any) -> SubprocEnvs:
    envs = make_lanes(env, m, processes=2, **settings)
    assert isinstance(envs, SubprocEnvs)
    return envs


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


# Lost processes


def worker_pid(envs: SubprocEnvs, lane: int) -> int:
    """The process that steps a lane."""
    (found,) = (w.pid for w in envs._workers if w.low <= lane < w.high)
    assert found is not None
    return found


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


# A run in its own interpreter, as a terminal starts it

SCRIPT = """
import os, signal, sys
import numpy as np
from tests.faulty_envs import make_lanes, play_actions

if __name__ == "__main__":
    signals = []
    if "term" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: signals.append(True))
    envs = make_lanes("CartPole-v1", 4, processes=2)
    envs.reset()
    if "stopped" in sys.argv:
        os.kill(envs._workers[0].pid, signal.SIGSTOP)
    print("ready", flush=True)
    while not signals and "leave" not in sys.argv:
        play_actions(envs, np.zeros((10, 4), int))
    play_actions(envs, np.zeros((10, 4), int))
"""


@contextmanager
def run_script(
    folder: Path, mode: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), mode],
        env=env or os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A process started in the background may ignore interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:  # after a failed test too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [
        ("interrupt", signal.SIGINT, -signal.SIGINT),  # Ctrl-C goes to all processes
        ("term", signal.SIGTERM, 0),  # goes to all: the run handles it and can still step
        ("leave", None, 0),  # a script that ends without close()
    ],
)
def test_run_ends_with_its_workers(tmp_path: Path, mode, number, code):
    with run_script(tmp_path, mode) as process:
        wait_until_ready(process)
        if number:
            os.killpg(process.pid, number)
        _, errors = process.communicate()
        assert process.returncode == code, errors
        assert errors.count("Traceback") == (mode == "interrupt"), errors
        wait_until_gone(process.pid)


def test_starting_workers_ignore_interrupt(tmp_path: Path):
    """The signal arrives during their imports, before they can ignore it themselves."""
    with run_script(tmp_path, "interrupt", stop_at_numpy(tmp_path)) as process:
        wait_until_stopped(process, 2)
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGCONT)
        _, errors = process.communicate()
        assert errors.count("Traceback") == 1, errors
        wait_until_gone(process.pid)


@pytest.mark.parametrize("mode", ["interrupt", "stopped"])
def test_workers_do_not_outlive_killed_run(tmp_path: Path, mode: str):
    """Not even a stopped one."""
    with run_script(tmp_path, mode) as process:
        wait_until_ready(process)
        # the run, multiprocessing's resource tracker, two workers
        assert len(session_processes(process.pid)) == 4
        process.kill()
        process.wait()
        wait_until_gone(process.pid)
