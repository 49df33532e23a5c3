"""A run folder has one lock holder, one configuration, and no incomplete file."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lookfurther import config
from lookfurther.errors import ConfigError, RunLocked
from lookfurther.system.cpu_info import find_cpu_model, read_cpu_flags
from lookfurther.training import run_dir
from lookfurther.training.config_json import from_json
from lookfurther.training.run_dir import (
    CHANGEABLE_SETTINGS,
    RunDir,
    collect_versions,
    package_version,
)

ROOT = Path(__file__).parents[1]
CONFIG = config.replace(config.Config(), env="CartPole-v1", demos=("a", "b"))


def changed_config(**overrides: Any) -> config.Config:
    return config.replace(CONFIG, **overrides)


# The lock


def hold_lock(path: str, fork: bool) -> None:
    """Hold the lock until killed; with `fork`, start a child that outlives this process."""
    with RunDir.open(Path(path), CONFIG, resume=False):
        if not fork:
            print(os.getpid(), os.getpid(), flush=True)
        elif os.fork() == 0:  # the child prints, after it has released the lock
            print(os.getppid(), os.getpid(), flush=True)
        signal.pause()


@contextmanager
def lock_holder(path: Path, fork: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock of `path`, and the id of its child."""
    call = f"from {__name__} import hold_lock; hold_lock({str(path)!r}, {fork})"
    process = subprocess.Popen(
        [sys.executable, "-c", call], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        pid, child = map(int, process.stdout.readline().split())
        assert pid == process.pid
        try:
            yield process, child
        finally:
            process.kill()
            if fork:
                os.kill(child, signal.SIGKILL)


def test_lock_is_refused_until_holder_dies(tmp_path: Path) -> None:
    with lock_holder(tmp_path) as (process, _):
        for resume in (False, True):
            with pytest.raises(RunLocked, match=f"process {process.pid} on {socket.gethostname()}"):
                RunDir.open(tmp_path, CONFIG, resume)
        process.kill()
        process.wait()
        RunDir.open(tmp_path, CONFIG, resume=True).close()


def test_forked_child_does_not_hold_lock(tmp_path: Path) -> None:
    with lock_holder(tmp_path, fork=True) as (process, child):
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is alive
        RunDir.open(tmp_path, CONFIG, resume=True).close()


def test_same_process_cannot_lock_twice(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, CONFIG, resume=False):
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
            RunDir.open(tmp_path, CONFIG, resume=True)
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    run = RunDir.open(tmp_path, CONFIG, resume=True)
    run.close()
    run.close()


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\x00", '{"pid": 1'])
def test_lock_with_unreadable_content_still_holds(tmp_path: Path, content: str) -> None:
    with RunDir.open(tmp_path, CONFIG, resume=False):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(RunLocked, match="another process"):
            RunDir.open(tmp_path, CONFIG, resume=True)


def test_refused_run_releases_lock(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    RunDir.open(tmp_path, CONFIG, resume=False).close()
    for _ in range(3):
        with pytest.raises(ConfigError):
            RunDir.open(tmp_path, CONFIG, resume=False)
    with RunDir.open(tmp_path, CONFIG, resume=True), pytest.raises(RunLocked):
        RunDir.open(tmp_path, CONFIG, resume=True)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not run_dir._lock_descriptors


# New and resumed runs


def test_new_run_writes_settings_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "new"
    with RunDir.open(path, CONFIG, resume=False) as run:
        assert from_json((path / "config.json").read_text()) == CONFIG
        versions = json.loads((path / "versions.json").read_text())
        assert versions == collect_versions() | {"gpu": None}
        assert sorted(os.listdir(path)) == ["config.json", "lock", "versions.json"]
        names = [
            p.relative_to(path) for p in (run.checkpoints_dir, run.metrics_file, run.curve_file)
        ]
        assert list(map(str, names)) == ["checkpoints", "metrics.jsonl", "curve.png"]


def test_existing_run_needs_resume(tmp_path: Path) -> None:
    RunDir.open(tmp_path, CONFIG, resume=False).close()
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match="already holds a run: add --resume"):
        RunDir.open(tmp_path, changed_config(run__seed=9), resume=False)
    assert (tmp_path / "config.json").read_text() == before


def test_resume_without_run_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/none holds no run to resume"):
        RunDir.open(tmp_path / "none", CONFIG, resume=True)
    assert os.listdir(tmp_path) == []


ALLOWED_CHANGES: dict[str, Any] = {
    "run__folder": "moved",
    "run__steps": 7,
    "run__minutes": 7.0,
    "run__keep_checkpoints": 7,
    "run__keep_final_replay": False,
    "run__log_period": 7,
    "run__loggers": ("csv",),
    "run__checkpoint_period": 7,
    "run__checkpoint_minutes": 7.0,
    "run__threads": 7,
    "run__device": "cpu",
    "environment__threads": 7,
    "environment__processes": 7,
    "environment__worker_timeout": 7.0,
}


def test_resume_accepts_changeable_settings(tmp_path: Path) -> None:
    assert {name.replace("__", ".") for name in ALLOWED_CHANGES} == CHANGEABLE_SETTINGS
    RunDir.open(tmp_path, CONFIG, resume=False).close()
    longer = changed_config(**ALLOWED_CHANGES)
    RunDir.open(tmp_path, longer, resume=True).close()
    assert from_json((tmp_path / "config.json").read_text()) == longer


@pytest.mark.parametrize(
    ("overrides", "difference"),
    [
        ({"learner__gamma": 0.5}, r"learner\.gamma = 0\.999, not 0\.5:"),
        ({"replay__horizons": (1,)}, r"replay\.horizons = \(1, 10\), not \(1,\):"),
        ({"env": "Acrobot-v1"}, r"env = 'CartPole-v1', not 'Acrobot-v1':"),
        ({"run__seed": 1, "run__steps": 5}, r"run\.seed = 0, not 1:"),
        ({"run__seed": 1, "actor__lanes": 5}, r"actor\.lanes = 128, not 5:"),
    ],
)
def test_resume_refuses_other_setting_changes(
    tmp_path: Path, overrides: dict[str, Any], difference: str
) -> None:
    RunDir.open(tmp_path, CONFIG, resume=False).close()
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ConfigError, match=difference):
        RunDir.open(tmp_path, changed_config(**overrides), resume=True)
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"env": 1}', b"\xff"])
def test_broken_config_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    RunDir.open(tmp_path, CONFIG, resume=False).close()
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        RunDir.open(tmp_path, CONFIG, resume=True)


def test_impossible_run_dir_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"file.* cannot be a run folder"):
            RunDir.open(path, CONFIG, resume=False)


# Versions


def test_collect_versions_lists_packages() -> None:
    assert package_version("no-such-package") is None
    versions = collect_versions()
    assert versions["numpy"] == numpy.__version__
    assert versions["python"] == platform.python_version()
    assert {"platform", "machine", "lookfurther", "ale-py", "minari", "commit"} <= versions.keys()


def test_cpu_model_is_that_of_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert find_cpu_model(tmp_path) is None
    monkeypatch.setattr(platform, "processor", lambda: "x86_64")
    assert find_cpu_model(tmp_path) == "x86_64"
    (tmp_path / "proc").mkdir()
    core = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Example CPU @ 2 GHz\nflags\t\t: sse amx\n"
    (tmp_path / "proc/cpuinfo").write_text(f"{core}\n{core}")
    assert find_cpu_model(tmp_path) == "Example CPU @ 2 GHz"
    assert read_cpu_flags(tmp_path) == {"sse", "amx"}
    assert collect_versions()["cpu"] == find_cpu_model()


def test_versions_name_gpu_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Example GPU {device.index}")
    with RunDir.open(tmp_path / "gpu", changed_config(run__device="cuda:1"), resume=False) as run:
        assert json.loads((run.path / "versions.json").read_text())["gpu"] == "Example GPU 1"
    with RunDir.open(tmp_path / "cpu", changed_config(run__device="cpu"), resume=False) as run:
        assert json.loads((run.path / "versions.json").read_text())["gpu"] is None


def test_git_commit_is_that_of_checkout(tmp_path: Path) -> None:
    assert run_dir.find_git_commit(tmp_path) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", *identity, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    assert run_dir.find_git_commit(tmp_path) is None
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD")
    assert run_dir.find_git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert run_dir.find_git_commit(tmp_path) == commit + "-dirty"
