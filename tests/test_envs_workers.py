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

from lookfurther.envs.workers import Workers, WorkerTraceback
from lookfurther.errors import CheckpointError, ConfigError, EnvironmentFault
from tests.faulty_envs import Counting, Faulty, Waiting, at, choices, lanes, play, same
from tests.sessions import members, stop_at_numpy, wait_until_gone, wait_until_stopped

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
    assert list(Path("/dev/shm").glob(f"*-{os.getpid()}-*")) == []


def workers(env: Any, m: int, **settings: Any) -> Workers:
    envs = lanes(env, m, processes=2, **settings)
    assert isinstance(envs, Workers)
    return envs


def test_processes_change_nothing():
    """Every Step, the state and what follows a restore are those of one process, also from a
    state that the other kind has written."""
    one, three = (lanes("CartPole-v1", 5, stack=2) for _ in range(2))
    two = workers("CartPole-v1", 5, stack=2)
    actions = choices(one, 100)
    assert one.spec == two.spec
    assert same(one.reset(), two.reset())
    films = play(one, actions[:70]), play(two, actions[:70])
    assert all(same(a, b) for a, b in zip(*films, strict=True))
    states = one.state(), two.state()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    for envs, state in zip((two, three), states, strict=True):
        step, going = envs.restore(state)
        assert going.all()
        assert same(step, films[0][-1])
    films = [play(envs, actions[70:]) for envs in (one, two, three)]
    assert all(same(a, b) and same(a, c) for a, b, c in zip(*films, strict=True))
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
    envs = workers(partial(Faulty, at("step", 2, ValueError("boom"), number=2)), 3, max_failures=1)
    envs.reset()
    play(envs, np.zeros((1, 3), int))
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
    fault = at("step", 1, {"reward": float("nan")}, number=1)
    envs = workers(partial(Faulty, fault), 4, on_fault="drop")
    envs.reset()
    film = play(envs, np.zeros((3, 4), int))
    assert [step.dropped.tolist() for step in film] == [[True, False] * 2, [False] * 4, [False] * 4]
    assert (envs.dropped_episodes, envs.restarts) == (2, 2)
    envs.close()


@pytest.mark.parametrize("lane", [0, 2])
def test_a_killed_worker_is_named_by_its_lanes(lane):
    envs = workers(Counting, 4)
    envs.reset()
    os.kill(envs._workers[lane // 2].process.pid or 0, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match=f"lanes {lane} to {lane + 1} died .exit code -9"):
        play(envs, np.zeros((2, 4), int))
    envs.close()


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
from tests.faulty_envs import lanes, play

if __name__ == "__main__":
    told = []
    if "term" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    envs = lanes("CartPole-v1", 4, processes=2)
    envs.reset()
    print("ready", flush=True)
    while not told and "leave" not in sys.argv:
        play(envs, np.zeros((10, 4), int))
    play(envs, np.zeros((10, 4), int))
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


def test_workers_do_not_outlive_a_killed_run(tmp_path: Path):
    with run(tmp_path, "interrupt") as process:
        wait_until_ready(process)
        assert len(members(process.pid)) == 4  # the run, multiprocessing's tracker, two workers
        process.kill()
        process.wait()
        wait_until_gone(process.pid)
