"""The folder of one run: its lock, its configuration, and the paths of its files."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from lookfurther.config import Config, flatten_settings
from lookfurther.errors import ConfigError, LookFurtherError, RunLocked
from lookfurther.system.cpu_info import find_cpu_model
from lookfurther.system.files import write_text
from lookfurther.system.printable import make_printable
from lookfurther.training.config_json import from_json, to_json
from lookfurther.training.signals import CheckpointSignal

RECORDED_PACKAGES = (
    "lookfurther",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "minigrid",
    "minari",
    "ray",
)

# Settings that a resumed run may change: its folder, its length and its machine.
CHANGEABLE_SETTINGS = frozenset(
    {
        "run.folder",
        "run.steps",
        "run.minutes",
        "run.keep_checkpoints",
        "run.keep_final_replay",
        "run.log_period",
        "run.loggers",
        "run.checkpoint_period",
        "run.checkpoint_minutes",
        "run.threads",
        "run.device",
        "environment.threads",
        "environment.processes",
        "environment.worker_timeout",
    }
)

MAX_CONFIG_CHARACTERS = 2**20  # of a config.json

_lock_descriptors: set[int] = set()


def _close_inherited_locks() -> None:
    """Release the parent's locks in a forked child, which may outlive the parent."""
    for descriptor in _lock_descriptors:
        os.close(descriptor)
    _lock_descriptors.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


class RunDir:
    """A run's folder, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_signal = CheckpointSignal()
        self._lock_descriptor: int | None = None

    @classmethod
    def open(cls, path: Path, config: Config, resume: bool) -> RunDir:
        """Lock the folder of a new or resumed run, and write its settings."""
        check_run_dir(path, config, resume)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path)
            try:
                run._acquire_dir()
                _check_config_file(path, config, resume)  # a process may have used it by now
                run._write_settings(config)
            except BaseException:
                run.close()
                raise
        except OSError as error:
            raise ConfigError(f"{path} cannot be a run folder: {error}") from error
        return run

    def _acquire_dir(self) -> None:
        self.checkpoint_signal.__enter__()  # before the lock file announces it
        self._lock_descriptor = _acquire_lock(
            self.path / "lock", self.checkpoint_signal.is_installed
        )

    def _write_settings(self, config: Config) -> None:
        versions = collect_versions() | {"gpu": _find_gpu(config)}
        write_text(self.path / "versions.json", json.dumps(versions, indent=2) + "\n")
        write_text(self.path / "config.json", to_json(config))

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best_dir(self) -> Path:
        return self.path / "best"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curve_file(self) -> Path:
        return self.path / "curve.png"

    def close(self) -> None:
        """Release the lock."""
        if self._lock_descriptor is not None:
            _lock_descriptors.discard(self._lock_descriptor)
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        self.checkpoint_signal.__exit__()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_run_dir(path: Path, config: Config, resume: bool) -> None:
    """Raise if a run with this configuration cannot start or resume in a folder."""
    try:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError("it is a file")
        _check_unlocked(path / "lock")
        _check_config_file(path, config, resume)
    except OSError as error:
        raise ConfigError(f"{path} cannot be a run folder: {error}") from None


def _check_unlocked(lock: Path) -> None:
    if lock.exists():
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunLocked(_locked_message(lock)) from None


def _check_config_file(path: Path, config: Config, resume: bool) -> None:
    config_file = path / "config.json"
    has_run = config_file.exists()
    if resume and not has_run:
        raise ConfigError(f"{path} holds no run to resume: drop --resume to start one there")
    if resume:
        _check_same_settings(config_file, config)
    elif has_run:
        raise ConfigError(
            f"{path} already holds a run: add --resume to continue, or choose another --run.folder"
        )


def package_version(package: str) -> str | None:
    """The installed version of a package, if any."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def collect_versions() -> dict[str, str | None]:
    """The versions and the machine that a result depends on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": find_cpu_model(),
        **{package: package_version(package) for package in RECORDED_PACKAGES},
        "commit": find_git_commit(Path(__file__).parents[2]),
    }


def _find_gpu(config: Config) -> str | None:
    """The name of the GPU that a run uses, if any."""
    from lookfurther.training import hardware  # imports torch, which a report does not need

    return hardware.find_gpu_model(hardware.resolve_device(config.run.device))


def read_versions(path: Path) -> dict[str, str]:
    """The known versions of a versions.json, as printable text; empty if there is no file."""
    if not path.exists():
        return {}
    try:
        versions = json.loads(path.read_text(encoding="utf-8")).items()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise LookFurtherError(f"{path} cannot be read: {error}") from None
    return {make_printable(name): make_printable(value) for name, value in versions if value}


def find_git_commit(checkout: Path) -> str | None:
    """The commit of a git checkout, with -dirty if files differ from it."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    except FileNotFoundError:  # no git on this machine
        return None
    return answer.stdout.strip() or None


def _acquire_lock(path: Path, has_checkpoint_signal: bool) -> int:
    """Take an exclusive lock, which the kernel releases when this process ends in any way.

    The lock file names the process, and whether it saves a checkpoint on a signal.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
        holder["checkpoint_signal"] = has_checkpoint_signal
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise RunLocked(_locked_message(path)) from None
        raise
    _lock_descriptors.add(descriptor)
    return descriptor


def _locked_message(lock: Path) -> str:
    try:
        content = json.loads(lock.read_text())
        holder = f"process {content['pid']} on {content['host']} since {content['started']}"
    except (ValueError, KeyError, TypeError, RecursionError):  # it is not written yet
        holder = "another process"
    return f"{lock.parent} is held by {holder}: stop it, or choose another --run.folder"


def read_config(path: Path) -> Config:
    """The configuration in a file; raises a ConfigError that names the file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CONFIG_CHARACTERS + 1)
        if len(text) > MAX_CONFIG_CHARACTERS:
            raise ValueError(f"it has more than {MAX_CONFIG_CHARACTERS:,} characters")
        return from_json(text)
    except (OSError, ConfigError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _check_same_settings(config_file: Path, config: Config) -> None:
    """Raise ConfigError if a resumed run has other settings than it started with."""
    started = read_config(config_file)
    given = flatten_settings(config)
    for name, value in flatten_settings(started).items():
        if name not in CHANGEABLE_SETTINGS and given[name] != value:
            raise ConfigError(
                f"{config_file.parent} was started with {name} = {value!r}, not {given[name]!r}:"
                " give the same, or choose another --run.folder"
            )
