"""Lanes in processes: the results of one process, and nothing left behind."""

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
from lookfurther.envs import subproc as workers_module
from lookfurther.envs import subproc_worker as worker_module
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
def _nothing_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
    assert list(Path("/dev/shm").glob(f"*-{os.getpid()}-*")) == []


def workers(env: Any, m: int, **settings: Any) -> SubprocEnvs:
    envs = make_lanes(env, m, processes=2, **settings)
    assert isinstance(envs, SubprocEnvs)
    return envs


def test_processes_change_nothing():
    """Every Step, the state and what follows a restore are those of one process, also from a
    state that the other kind has written."""
    one, three = (make_lanes("CartPole-v1", 5, frame_stack=2) for _ in range(2))
    two = workers("CartPole-v1", 5, frame_stack=2)
    actions = random_actions(one, 100)
    assert one.spec == two.spec
    assert steps_equal(one.reset(), two.reset())
    films = play_actions(one, actions[:70]), play_actions(two, actions[:70])
    assert all(steps_equal(a, b) for a, b in zip(*films, strict=True))
    states = one.state(), two.state()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    for envs, state in zip((two, three), states, strict=True):
        step, going = envs.restore(state)
        assert going.all()
        assert steps_equal(step, films[0][-1])
    films = [play_actions(envs, actions[70:]) for envs in (one, two, three)]
    assert all(steps_equal(a, b) and steps_equal(a, c) for a, b, c in zip(*films, strict=True))
    with pytest.raises(CheckpointError, match="holds 4 lanes, this run has 5"):
        two.restore({"episode": np.zeros(4, int)})
    two.close()
    two.close()


def test_send_does_not_wait(tmp_path: Path):
    """The environments cannot step before the file exists, and it is made after `send`."""
    envs = workers(partial(Waiting, tmp_path / "go"), 2)
    envs.reset()
    envs.send(np.array([1, 2]))
    (tmp_path / "go").touch()
    assert envs.recv().reward.tolist() == [11, 12]
    envs.close()


def test_faults_come_back_with_their_cause():
    """Of three lanes the second process has two; the second environment built there is lane 2."""
    envs = workers(
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


def test_dropped_episodes_and_restarts_are_counted_together():
    fault = fault_at("step", 1, {"reward": float("nan")}, number=1)
    envs = workers(partial(Faulty, fault), 4, on_fault="drop")
    envs.reset()
    film = play_actions(envs, np.zeros((3, 4), int))
    assert [step.dropped.tolist() for step in film] == [[True, False] * 2, [False] * 4, [False] * 4]
    assert (envs.dropped_episodes, envs.restarts) == (2, 2)
    envs.close()


# Lost processes


def pid(envs: SubprocEnvs, lane: int) -> int:
    """The process that steps a lane."""
    (found,) = (w.pid for w in envs._workers if w.low <= lane < w.high)
    assert found is not None
    return found


@pytest.mark.parametrize("lane", [0, 2])
def test_a_killed_worker_is_named_by_its_lanes(lane):
    envs = workers(Counting, 4, max_failures=1)
    envs.reset()
    os.kill(pid(envs, lane), signal.SIGKILL)
    with pytest.raises(EnvironmentFault) as error:
        play_actions(envs, np.zeros((2, 4), int))
    process = f"the process of lanes {lane} to {lane + 1}"
    assert str(error.value) == f"Counting: {process} died (exit code -9): failure 1 in a row"
    envs.close()


def test_killed_worker_is_replaced():
    """New episodes begin in its lanes, the old ones are dropped; the other lanes go on."""
    healthy, envs = make_lanes(Counting, 4), workers(Counting, 4)
    expected = [healthy.reset(), *play_actions(healthy, np.ones((6, 4), int))]
    film = [envs.reset(), *play_actions(envs, np.ones((2, 4), int))]
    killed, other = pid(envs, 0), pid(envs, 2)
    os.kill(killed, signal.SIGKILL)
    film += play_actions(envs, np.ones((4, 4), int))
    assert pid(envs, 0) != killed
    assert pid(envs, 2) == other
    assert all(
        steps_equal(select_lanes(a, [2, 3]), select_lanes(b, [2, 3]))
        for a, b in zip(expected, film, strict=True)
    )
    assert [step.dropped.tolist() for step in film] == [
        [k == 3, k == 3, False, False] for k in range(7)
    ]
    assert film[3].first.tolist() == [True, True, False, False]
    assert film[3].reward.tolist() == [0, 0, *expected[3].reward[2:].tolist()]
    seeds = {float(step.observation[lane, 2]) for step in film for lane in (0, 1)}
    assert len(seeds) == 4  # two episodes in each lane, each with a seed of its own
    assert (envs.dropped_episodes, envs.restarts) == (2, 0)
    line = "Counting: the process of lanes 0 to 1 died (exit code -9) and is replaced"
    assert envs.replacements == [line]
    envs.close()


def test_a_worker_killed_at_the_end_of_its_episodes_drops_nothing():
    """They have ended well; the episodes that were about to begin are passed over."""
    envs, healthy = workers(Counting, 2), make_lanes(Counting, 2)
    healthy.reset()
    third = play_actions(healthy, np.zeros((12, 2), int))[7]  # the episodes of number 2 begin
    envs.reset()
    assert play_actions(envs, np.zeros((3, 2), int))[-1].terminal.all()
    os.kill(pid(envs, 0), signal.SIGKILL)
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert step.first.all()
    assert not step.dropped.any()
    assert envs.dropped_episodes == 0
    assert steps_equal(select_lanes(step, [0]), select_lanes(third, [0]))
    envs.close()


def test_a_worker_that_always_dies_is_given_up():
    envs = workers(partial(Dying, at=1), 1, max_failures=3)
    envs.reset()
    play_actions(envs, np.zeros((2, 1), int))
    with pytest.raises(EnvironmentFault, match=r"died \(exit code 9\): failure 3 in a row"):
        play_actions(envs, np.zeros((1, 1), int))
    assert len(envs.replacements) == 2
    envs.close()


def test_workers_fail_only_in_a_row():
    """A good step between two deaths clears the count."""
    envs = workers(partial(Dying, at=2), 1, max_failures=2)
    envs.reset()
    film = play_actions(envs, np.zeros((4, 1), int))
    assert sum(step.dropped.sum() for step in film) == envs.dropped_episodes == 2
    assert len(envs.replacements) == 2
    envs.close()


def test_a_worker_that_dies_at_its_start_is_tried_again():
    home = os.getpid()

    def env() -> gymnasium.Env:
        if os.getpid() != home:
            os._exit(7)
        return Counting()

    with pytest.raises(EnvironmentFault, match=r"died \(exit code 7\): failure 2 in a row"):
        workers(env, 1, max_failures=2)


def test_a_checkpoint_of_a_lost_worker_restores_the_others():
    envs = workers(Counting, 4)
    envs.reset()
    film = play_actions(envs, np.ones((2, 4), int))
    os.kill(pid(envs, 0), signal.SIGKILL)
    state = envs.state()
    assert play_actions(envs, np.ones((1, 4), int))[0].dropped.tolist() == [
        True,
        True,
        False,
        False,
    ]
    for again in (make_lanes(Counting, 4), workers(Counting, 4)):
        step, going = again.restore(state)
        assert going.tolist() == [False, False, True, True]
        assert steps_equal(select_lanes(step, [2, 3]), select_lanes(film[-1], [2, 3]))
        assert step.first.tolist() == [True, True, False, False]
        again.close()
    envs.close()


def test_a_worker_killed_before_a_restore_begins_new_episodes():
    envs = workers(Counting, 4)
    envs.reset()
    play_actions(envs, np.ones((2, 4), int))
    state = envs.state()
    os.kill(pid(envs, 0), signal.SIGKILL)
    step, going = envs.restore(state)
    assert going.tolist() == [False, False, True, True]
    assert step.first.tolist() == [True, True, False, False]
    assert not step.dropped.any()
    envs.close()


# The limit below is short, and a busy machine may exceed it in healthy processes too: these tests
# hold however many of them are replaced.
SHORT = {"worker_timeout": 0.5, "max_failures": 1_000_000}


def test_stopped_worker_is_replaced():
    envs = workers(Counting, 2, **SHORT)
    envs.reset()
    stopped = pid(envs, 0)
    os.kill(stopped, signal.SIGSTOP)
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert (step.dropped[0], step.first[0]) == (True, True)
    assert pid(envs, 0) != stopped
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)
    line = "Counting: the process of lanes 0 to 0 has not completed a step in 0.5 seconds"
    assert f"{line} and is replaced" in envs.replacements
    envs.close()


def test_hanging_environment_is_replaced(tmp_path: Path):
    """It hangs until its file exists, which is made by the first that hangs."""
    envs = workers(partial(Hanging, tmp_path / "hung"), 2, **SHORT)
    envs.reset()
    (step,) = play_actions(envs, np.zeros((1, 2), int))
    assert (tmp_path / "hung").exists()
    assert step.dropped.any()
    assert envs.replacements
    envs.close()


class Pipe:
    """A pipe on which an answer arrives after a number of polls, with a step at some of them."""

    def __init__(self, worker: Worker, polls: int, steps: set[int]) -> None:
        self.worker, self.polls, self.steps, self.asked = worker, polls, steps, 0

    def poll(self, _: float) -> bool:
        self.asked += 1
        self.worker._records["progress"][0] += self.asked in self.steps
        return self.asked > self.polls

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
def test_a_worker_without_progress_is_lost(timeout, polls, steps, lost_at, monkeypatch):
    monkeypatch.setattr(worker_module, "POLL_PERIOD", 1.0)
    spec = make_lanes(Counting).spec
    worker = Worker(WorkerSetup(bytearray(lane_dtype(spec).itemsize), spec, b"", 0), 0, 1)
    pipe: Any = Pipe(worker, polls, steps)
    worker._pipe = pipe
    worker._process = Alive()  # type: ignore[assignment]
    if lost_at is None:
        assert worker.receive_answer(timeout) == "done"
    else:
        with pytest.raises(WorkerLost, match=f"has not completed a step in {timeout:g} seconds"):
            worker.receive_answer(timeout)
        assert pipe.asked == lost_at


class Alive:
    def is_alive(self) -> bool:
        return True

    def kill(self) -> None: ...

    def join(self, timeout: float) -> None: ...


def test_lanes_report_every_build_reset_and_step():
    """Also those of a restore, which may take longer than any step."""
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


def test_a_dead_worker_is_noticed_although_its_child_keeps_the_pipe_open(tmp_path: Path):
    try:
        envs = workers(partial(Orphaning, tmp_path / "end"), 1, max_failures=1, worker_timeout=0.0)
        envs.reset()
        with pytest.raises(EnvironmentFault, match=r"died \(exit code 9\)"):
            play_actions(envs, np.zeros((1, 1), int))
        envs.close()
    finally:
        (tmp_path / "end").touch()


def test_close_ends_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(workers_module, "CLOSE_TIMEOUT", 0.0)
    envs = workers(partial(Waiting, tmp_path / "never"), 2)
    envs.reset()
    envs.send(np.zeros(2, int))
    found = [pid(envs, lane) for lane in (0, 1)]
    envs.close()
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_worker_that_cannot_start_leaves_nothing():
    """The function behaves in this process and fails in every other one."""
    home = os.getpid()

    def homesick() -> gymnasium.Env:
        if os.getpid() != home:
            raise ValueError("boom")
        return Counting()

    def impostor() -> gymnasium.Env:
        return Counting() if os.getpid() == home else 3  # type: ignore[return-value]

    with pytest.raises(EnvironmentFault, match=r"homesick, lane 0, when built: .*ValueError: boom"):
        workers(homesick, 2)
    with pytest.raises(ConfigError, match=r"impostor must give a gymnasium.Env, not int"):
        workers(impostor, 2)


# A run in an interpreter of its own, as a terminal would start it.

SCRIPT = """
import os, signal, sys
import numpy as np
from tests.faulty_envs import make_lanes, play_actions

if __name__ == "__main__":
    told = []
    if "term" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    envs = make_lanes("CartPole-v1", 4, processes=2)
    envs.reset()
    if "stopped" in sys.argv:
        os.kill(envs._workers[0].pid, signal.SIGSTOP)
    print("ready", flush=True)
    while not told and "leave" not in sys.argv:
        play_actions(envs, np.zeros((10, 4), int))
    play_actions(envs, np.zeros((10, 4), int))
"""


@contextmanager
def run(
    folder: Path, how: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), how],
        env=env or os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What is started in the background may ignore interrupts, and so would all it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:  # a failed test leaves nothing either
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("interrupt", signal.SIGINT, -signal.SIGINT),  # Ctrl-C: to all processes of the terminal
        ("term", signal.SIGTERM, 0),  # to all: the run decides, and can still step
        ("leave", None, 0),  # a script that ends without close()
    ],
)
def test_a_run_ends_with_its_workers(tmp_path: Path, how, number, code):
    with run(tmp_path, how) as process:
        wait_until_ready(process)
        if number:
            os.killpg(process.pid, number)
        _, errors = process.communicate()
        assert process.returncode == code, errors
        assert errors.count("Traceback") == (how == "interrupt"), errors
        wait_until_gone(process.pid)


def test_an_interrupt_while_workers_start_is_not_theirs(tmp_path: Path):
    """It comes while they import, before they could have turned a deaf ear to it."""
    with run(tmp_path, "interrupt", stop_at_numpy(tmp_path)) as process:
        wait_until_stopped(process, 2)
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGCONT)
        _, errors = process.communicate()
        assert errors.count("Traceback") == 1, errors
        wait_until_gone(process.pid)


@pytest.mark.parametrize("how", ["interrupt", "stopped"])
def test_workers_do_not_outlive_a_killed_run(tmp_path: Path, how: str):
    """Not even one that cannot notice it."""
    with run(tmp_path, how) as process:
        wait_until_ready(process)
        assert (
            len(session_processes(process.pid)) == 4
        )  # the run, multiprocessing's tracker, two workers
        process.kill()
        process.wait()
        wait_until_gone(process.pid)
