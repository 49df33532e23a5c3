"""Checkpoints are complete or absent after kills, full disks and signals."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lookfurther.errors import CheckpointError
from lookfurther.system import files
from lookfurther.training.checkpoints import checkpoint, checkpoint_manifest
from lookfurther.training.checkpoints.checkpoint import load, load_newest
from lookfurther.training.checkpoints.checkpoint_manifest import verify_hashes
from lookfurther.training.signals import StopSignals
from tests.saved_checkpoints import (
    is_checkpoint_of,
    list_leftovers,
    list_steps,
    load_best_score,
    run_in_subprocess,
    save_best,
    save_step,
)

# Kills while saving


# The modules that a save executes.
SAVING_MODULES = {module.__file__ for module in (checkpoint, checkpoint_manifest, files)}


def act_at_line(number: int, act: Callable[[], None]) -> None:
    """Act before the number-th line that the modules of checkpoints execute from now on."""
    count = iter(range(1, sys.maxsize))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in SAVING_MODULES:
            return None
        if event == "line" and next(count) == number:
            act()
        return trace

    sys.settrace(trace)


def save_until_killed(folder: Path, step: int) -> None:
    while True:
        save_step(folder, step := step + 1, size=20_000)


def kill_at_random_times(root: str, kills: int) -> None:
    """Kill a process in its save loop repeatedly; print (newest step, interrupted saves)."""
    folder, rng, reached, interrupted = Path(root), random.Random(5), 0, 0
    for _ in range(kills):
        line = rng.randrange(1_000)  # a save takes about 300
        if (child := os.fork()) == 0:
            act_at_line(line + 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save_until_killed(folder, reached)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        interrupted += bool(list_leftovers(folder))
        for path in folder.glob("step_*"):
            verify_hashes(path)
        saved, reasons = load_newest(folder)
        step = saved.metadata["step"] if saved else 0
        assert step >= reached
        assert not reasons
        reached = step
    print(reached, interrupted)


def test_random_kills_leave_checkpoints_valid(tmp_path: Path) -> None:
    """The kills are at random lines of the first few saves of a process."""
    answer = run_in_subprocess(kill_at_random_times, str(tmp_path), 25)
    assert answer.returncode == 0, answer.stderr
    reached, interrupted = map(int, answer.stdout.split())
    assert reached > 0
    assert interrupted > 0


def act_at_call(number: int, act: Callable[[], None]) -> None:
    """Act before (odd) or after (even) the (number / 2)-th call that changes the disk."""
    count = iter(range(1, sys.maxsize))

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(count) == number:
                act()
            answer = function(*arguments, **options)
            if next(count) == number:
                act()
            return answer

        return call

    for name in ("mkdir", "fsync", "replace", "rename", "unlink", "rmdir"):
        setattr(os, name, watched(getattr(os, name)))


def save_and_act_at_call(root: str, number: int) -> None:
    """Save once per stage with a signal at that stage; each folder stays as it was left."""
    before = Path(root) / "before"
    save_step(before, 1)
    save_step(before, 2)
    for call in range(1, sys.maxsize):
        folder = Path(shutil.copytree(before, Path(root) / f"{call:03d}"))
        if (child := os.fork()) == 0:
            with StopSignals() as signals:
                act_at_call(call, lambda: os.kill(os.getpid(), number))
                save_step(folder, 3)
            os._exit(20 if signals.received_signal is None else 10)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code)
        if code == 20:
            return


def test_kill_at_any_stage_leaves_checkpoints_valid(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_and_act_at_call, str(tmp_path), int(signal.SIGKILL))
    assert answer.returncode == 0, answer.stderr
    assert set(answer.stdout.split()[:-1]) == {"-9"}
    found = []
    for folder in sorted(tmp_path.glob("[0-9]*")):
        found.append((list_steps(folder), list_leftovers(folder)))
        saved, reasons = load_newest(folder)
        assert is_checkpoint_of(saved, max(list_steps(folder)))
        assert not reasons
        for path in folder.glob("step_*"):
            assert is_checkpoint_of(load(path), int(path.name[-1]))
        save_step(folder, 4)
        assert list_steps(folder) == [found[-1][0][-1], 4]
        assert list_leftovers(folder) == []
    stages = [stage for i, stage in enumerate(found) if i == 0 or stage != found[i - 1]]
    assert stages == [
        ([1, 2], []),
        ([1, 2], [".writing-step_000000000003"]),
        ([1, 2, 3], []),
        ([2, 3], [".removing-step_000000000001"]),
        ([2, 3], []),
    ]


# The best checkpoint


def save_best_and_kill_at_calls(root: str) -> None:
    """Save over the same step once per stage, killed at that stage, each in its own folder."""
    for call in range(1, sys.maxsize):
        folder = Path(root) / f"{call:03d}"
        save_best(folder, 7, 1.0)
        if (child := os.fork()) == 0:
            act_at_call(call, lambda: os.kill(os.getpid(), signal.SIGKILL))
            save_best(folder, 7, 2.0)
            os._exit(20)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20:
            return


def test_kill_during_best_save_leaves_old_or_new(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_best_and_kill_at_calls, str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    scores = [load_best_score(folder) for folder in sorted(tmp_path.iterdir())]
    assert scores == sorted(scores)
    assert set(scores) == {1.0, 2.0}


# Full disks


def save_on_full_disk(root: str) -> None:
    """Save with a limit on file sizes, which a write exceeds in the middle of a file."""
    folder, (_, hard) = Path(root), resource.getrlimit(resource.RLIMIT_FSIZE)
    save_step(folder, 1)
    for limit in (0, 300, 3_000, 90_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(
            CheckpointError, match=r"step_000000000002 could not be saved: .*too large"
        ):
            save_step(folder, 2, size=100_000)
        assert list_steps(folder) == [1]
        assert list_leftovers(folder) == []
        assert is_checkpoint_of(load_newest(folder)[0], 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    save_step(folder, 2)
    assert list_steps(folder) == [1, 2]
    assert is_checkpoint_of(load_newest(folder)[0], 2)


def test_full_disk_loses_only_new_checkpoint(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_on_full_disk, str(tmp_path))
    assert answer.returncode == 0, answer.stderr


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make the n-th call of a function of `os` fail."""

    def arrange(name: str, number: int) -> None:
        function, count = getattr(os, name), iter(range(1, sys.maxsize))

        def call(*arguments: Any, **options: Any) -> Any:
            if next(count) == number:
                raise OSError(28, "No space left on device")
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    return arrange


@pytest.mark.parametrize(
    ("name", "number", "saved_steps"),
    [
        *[("fsync", n, [1, 2]) for n in range(1, 6)],  # four files and their folder
        ("fsync", 6, [1, 2, 3]),  # the parent
        ("mkdir", 3, [1, 2]),
        ("replace", 1, [1, 2]),
        ("rename", 1, [1, 2, 3]),  # the removal of an old one
    ],
)
def test_failed_system_call_leaves_no_temporary_files(
    tmp_path: Path,
    refusing: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    saved_steps: list[int],
) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    refusing(name, number)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_step(tmp_path, 3)
    monkeypatch.undo()
    assert list_steps(tmp_path) == saved_steps
    assert list_leftovers(tmp_path) == []
    assert is_checkpoint_of(load_newest(tmp_path)[0], saved_steps[-1])
    save_step(tmp_path, 4)
    assert is_checkpoint_of(load_newest(tmp_path)[0], 4)


# Signals


def test_save_completes_after_sigint_at_any_stage(tmp_path: Path) -> None:
    answer = run_in_subprocess(save_and_act_at_call, str(tmp_path), int(signal.SIGINT))
    assert answer.returncode == 0, answer.stderr
    assert set(answer.stdout.split()[:-1]) == {"10"}
    for folder in tmp_path.glob("[0-9]*"):
        assert list_steps(folder) == [2, 3]
        assert list_leftovers(folder) == []
        assert is_checkpoint_of(load_newest(folder)[0], 3)
