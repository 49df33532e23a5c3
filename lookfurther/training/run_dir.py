"""The folder of one run: its lock, its configuration, and where everything else lies."""

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

from lookfurther.config import Config, flatten_settings, from_json, to_json
from lookfurther.errors import ConfigError, RunLocked
from lookfurther.training.signals import CheckpointSignal

RECORDED_PACKAGES = ("lookfurther", "torch", "numpy", "gymnasium", "ale-py", "minigrid", "minari")

# What a resumed run may change: where it lies, how long it goes on and on what machine.
CHANGEABLE_SETTINGS = frozenset(
    {
        "run.folder",
        "run.steps",
        "run.minutes",
        "run.keep_checkpoints",
        "run.log_period",
        "run.checkpoint_period",
        "run.checkpoint_minutes",
        "run.threads",
        "run.device",
        "environment.threads",
        "environment.processes",
        "environment.worker_timeout",
    }
)

MAX_CONFIG_CHARACTERS = 2**20  # characters of a config.json

_lock_descriptors: set[int] = set()


def _close_inherited_locks() -> None:
    """A forked child must not hold its parent's locks: it may outlive it."""
    for descriptor in _lock_descriptors:
        os.close(descriptor)
    _lock_descriptors.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


class RunDir:
    """A run's folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint_signal = CheckpointSignal()
        self._lock_descriptor: int | None = None

    @classmethod
    def open(cls, path: Path, config: Config, resume: bool) -> RunDir:
        """Lock the folder of a new run, or of the one to resume, and write down its settings."""
        if resume and not (path / "config.json").exists():
            raise ConfigError(f"{path} holds no run to resume: drop --resume to start one there")
        try:
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path)
            try:
                run._acquire_dir()
                run._write_settings(config, resume)
            except BaseException:
                run.close()
                raise
        except OSError as error:
            raise ConfigError(f"{path} cannot be a run folder: {error}") from error
        return run

    def _acquire_dir(self) -> None:
        self.checkpoint_signal.__enter__()  # before the lock invites others to send it
        self._lock_descriptor = _acquire_lock(
            self.path / "lock", self.checkpoint_signal.is_installed
        )

    def _write_settings(self, config: Config, resume: bool) -> None:
        record = self.path / "config.json"
        if resume:
            _check_same_settings(record, config)
        elif record.exists():
            raise ConfigError(
                f"{self.path} already holds a run: add --resume to go on,"
                " or choose another --run.folder"
            )
        write_text(self.path / "versions.json", json.dumps(collect_versions(), indent=2) + "\n")
        write_text(record, to_json(config))

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
    def events_dir(self) -> Path:
        return self.path / "events"

    @property
    def curve_file(self) -> Path:
        return self.path / "curve.png"

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock_descriptor is not None:
            _lock_descriptors.discard(self._lock_descriptor)
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        self.checkpoint_signal.__exit__()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    writing = path.with_name(f".writing-{path.name}")
    try:
        writing.write_text(text, encoding="utf-8")
        sync_to_disk(writing)
        os.rename(writing, path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def package_version(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def collect_versions() -> dict[str, str | None]:
    """What a result depends on besides its configuration."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **{package: package_version(package) for package in RECORDED_PACKAGES},
        "commit": _git_commit(Path(__file__).parents[2]),
    }


def _git_commit(checkout: Path) -> str | None:
    """The commit of a git checkout, marked -dirty where files differ from it."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    except FileNotFoundError:  # no git on this machine
        return None
    return answer.stdout.strip() or None


def _acquire_lock(path: Path, has_checkpoint_signal: bool) -> int:
    """An exclusive lock that the kernel lets go when this process ends, however it ends.

    Its file says who holds it, and whether that process saves a checkpoint on a signal.
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
        holder = json.loads(lock.read_text())
        who = f"process {holder['pid']} on {holder['host']} since {holder['started']}"
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):  # the holder has not yet written its name
        who = "another process"
    return f"{lock.parent} is held by {who}: stop it, or choose another --run.folder"


def read_config(path: Path) -> Config:
    """The settings in a file, or a ConfigError that names the file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CONFIG_CHARACTERS + 1)
        if len(text) > MAX_CONFIG_CHARACTERS:
            raise ValueError(f"it has more than {MAX_CONFIG_CHARACTERS:,} characters")
        return from_json(text)
    except (OSError, ConfigError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _check_same_settings(record: Path, config: Config) -> None:
    """Refuse to resume a run with other settings than it began with."""
    begun = read_config(record)
    given = flatten_settings(config)
    for name, value in flatten_settings(begun).items():
        if name not in CHANGEABLE_SETTINGS and given[name] != value:
            raise ConfigError(
                f"{record.parent} was begun with {name} = {value!r}, not {given[name]!r}:"
                " give the same, or choose another --run.folder"
            )
