"""Checkpoints that are whole or absent: written aside, hashed, synced, then renamed.

step_000000123456/
  <name>.safetensors   the tensors of one part
  facts.json           counters
  manifest.json        line 1: SHA-256 of the rest; the rest: size and SHA-256 of every file
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lookfurther.errors import CheckpointError
from lookfurther.training.run_dir import sync, version
from lookfurther.training.serialization import serialise

FORMAT = 2
FACTS = "facts.json"
MANIFEST = "manifest.json"
SUFFIX = ".safetensors"

_STEP = re.compile(r"step_(\d{12,})", re.ASCII)
_FILE = re.compile(rf"{re.escape(FACTS)}|\w+\.safetensors", re.ASCII)
_LEFTOVER = (".writing-", ".removing-")
_LONGEST_MANIFEST = _LONGEST_FACTS = 1 << 20


class Checkpoint(NamedTuple):
    """A verified checkpoint, its tensors in host memory."""

    path: Path
    files: dict[str, dict[str, Tensor]]
    facts: dict[str, Any]


def save(
    folder: Path, step: int, files: dict[str, dict[str, Tensor]], facts: dict[str, Any], keep: int
) -> Path:
    """Publish folder/step_N and keep the newest `keep` checkpoints up to it.

    A step that already has a sound checkpoint is not written a second time: no order of renames
    could replace it without a moment in which there is none.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    target = folder / f"step_{step:012d}"
    with _saving(folder, target):
        if not _passes(verify, target):
            _publish(target, files, facts)
        _prune(folder, step, keep)
    return target


def save_only(
    folder: Path, step: int, files: dict[str, dict[str, Tensor]], facts: dict[str, Any]
) -> Path:
    """Publish a checkpoint of `step`, and then remove all others, whatever their step."""
    target = folder / f"step_{step:012d}"
    while target.exists():  # a rename cannot replace it: one more zero, and the same step
        target = target.with_name(target.name.replace("_", "_0"))
    with _saving(folder, target):
        _publish(target, files, facts)
        for _, path in _published(folder):
            if path != target:
                _remove(path)
    return target


def verify(path: Path, parts: Collection[str] | None = None) -> list[str]:
    """The parts of a checkpoint in which every bit is as it was written; those asked for alone."""
    entries = _inspect(path)["files"]
    held = [name.removesuffix(SUFFIX) for name in entries.keys() - {FACTS}]
    parts = sorted(held if parts is None else parts)
    if lacking := set(parts) - set(held):
        raise CheckpointError(f"{path} holds no {min(lacking)}")
    with _reading(path):
        for name in (FACTS, *(part + SUFFIX for part in parts)):
            if _digest(path / name) != entries[name]["sha256"]:
                raise CheckpointError(f"{path}: {name} is altered (SHA-256)")
    return parts


def load(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """A checkpoint, verified first; with `parts` these alone are read, whatever else it holds."""
    parts = verify(path, parts)
    with _reading(path):
        files = {part: load_file(path / (part + SUFFIX)) for part in parts}
    return read_facts(path)._replace(files=files)


def read_facts(path: Path) -> Checkpoint:
    """A checkpoint that is not verified, without its tensors."""
    with _reading(path), (path / FACTS).open("rb") as file:
        text = file.read(_LONGEST_FACTS + 1)
        if len(text) > _LONGEST_FACTS:
            raise CheckpointError(f"{path}: {FACTS} has more than {_LONGEST_FACTS:,} bytes")
        facts = json.loads(text)
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path}: {FACTS} is not an object")
    return Checkpoint(path, {}, facts)


def newest(
    folder: Path, parts: Collection[str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint, if there is any at all, and why newer ones were passed over."""
    return _first_sound(folder, [path for _, path in _published(folder)], parts)


def best(folder: Path, parts: Collection[str] | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The sound checkpoint with the highest score, of equal ones the newest; as `newest`."""
    paths = [path for _, path in _published(folder)]
    return _first_sound(folder, sorted(paths, key=_score, reverse=True), parts)


def _score(path: Path) -> float:
    """The score of a checkpoint; without one it comes last."""
    with (
        suppress(OSError, ValueError, RecursionError, TypeError, KeyError, OverflowError),
        open(path / FACTS, "rb") as file,
    ):
        score = float(json.loads(file.read(_LONGEST_FACTS))["score"])
        return score if math.isfinite(score) else -math.inf
    return -math.inf


def _first_sound(
    folder: Path, paths: Sequence[Path], parts: Collection[str] | None
) -> tuple[Checkpoint | None, list[str]]:
    """The first sound checkpoint of `paths`, and why those before it were passed over."""
    reasons: list[str] = []
    for path in paths:
        try:
            return load(path, parts), reasons
        except CheckpointError as error:
            reasons.append(str(error))
    if reasons:
        raise CheckpointError(f"{folder} has no sound checkpoint: {'; '.join(reasons)}")
    return None, reasons


def _published(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, newest first, sound or not."""
    names = os.listdir(folder) if folder.is_dir() else []
    found = ((_STEP.fullmatch(name), folder / name) for name in names)
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


# Writing


@contextmanager
def _saving(folder: Path, target: Path) -> Iterator[None]:
    """A folder without leftovers of interrupted saves; a disk's error is a CheckpointError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        yield
    except OSError as error:
        raise CheckpointError(f"{target} could not be saved: {error}") from error


def _publish(target: Path, files: dict[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
    counters = json.dumps(facts, indent=2, allow_nan=False).encode()
    writing = target.with_name(_LEFTOVER[0] + target.name)
    try:
        writing.mkdir()
        entries = {FACTS: _write(writing / FACTS, [counters])}
        for part, tensors in files.items():
            name = part + SUFFIX
            if not _FILE.fullmatch(name):
                raise ValueError(f"{part!r} cannot name a file of a checkpoint")
            entries[name] = _write(writing / name, serialise(tensors))
        manifest = {"format": FORMAT, "lookfurther": version("lookfurther"), "files": entries}
        body = json.dumps(manifest, indent=2).encode()
        _write(writing / MANIFEST, [hashlib.sha256(body).hexdigest().encode(), b"\n", body])
        sync(writing)
        if target.exists():
            _remove(target)
        os.rename(writing, target)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)  # what stays is swept by the next save
        raise
    sync(target.parent)


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and sync a file; its entry in the manifest."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove what is older than the newest `keep` whole checkpoints up to `step`.

    One beyond `step` was refused when the run resumed from behind it; it must not count.
    """
    kept = 0
    for _, path in (found for found in _published(folder) if found[0] <= step):
        if kept == keep:
            _remove(path)
        elif _passes(_inspect, path):
            kept += 1


def _remove(path: Path) -> None:
    """Unpublish first, so that a removal cut short leaves no torn checkpoint."""
    removing = path.with_name(_LEFTOVER[1] + path.name)
    os.rename(path, removing)
    shutil.rmtree(removing)


def _sweep(folder: Path) -> None:
    """Remove what interrupted saves have left."""
    for path in folder.iterdir():
        if path.name.startswith(_LEFTOVER):
            shutil.rmtree(path)


# Reading


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a hostile or vanishing file raises is a CheckpointError."""
    try:
        yield
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _passes(check: Callable[[Path], Any], path: Path) -> bool:
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def _inspect(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that holds exactly its files, each as long as it should be.

    This is what can be known without reading all of it.
    """
    with _reading(path):
        present = {name: (path / name).lstat() for name in os.listdir(path)}
        for name, status in present.items():
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: {name} is not a plain file")
        if MANIFEST not in present:
            raise CheckpointError(f"{path}: {MANIFEST} is missing")
        manifest = _manifest(path)
    files = manifest["files"]
    if missing := files.keys() - present.keys():
        raise CheckpointError(f"{path}: {min(missing)} is missing")
    if strange := present.keys() - files.keys() - {MANIFEST}:
        raise CheckpointError(f"{path}: {min(strange)} does not belong to it")
    for name, entry in files.items():
        size, whole = present[name].st_size, entry["size"]
        if size != whole:
            fault = "cut" if size < whole else "too long"
            raise CheckpointError(f"{path}: {name} is {fault}: {size} of {whole} bytes")
    return manifest


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest, which vouches for itself and names nothing outside its folder."""
    with (path / MANIFEST).open("rb") as file:
        seal, _, body = file.read(_LONGEST_MANIFEST).partition(b"\n")
    if seal != hashlib.sha256(body).hexdigest().encode():
        raise CheckpointError(f"{path}: {MANIFEST} is cut or altered (SHA-256)")
    manifest = json.loads(body)
    match manifest:
        case {"format": int(number)} if number != FORMAT:
            raise CheckpointError(
                f"{path}: its format is {number}, this version reads {FORMAT}: train anew, or use"
                " the version of lookfurther that wrote it"
            )
        case {"format": int(), "files": dict(files)} if FACTS in files:
            pass
        case _:
            raise CheckpointError(f"{path}: {MANIFEST} is not a manifest")
    for name, entry in files.items():
        match entry:
            case {"size": int(), "sha256": str()} if _FILE.fullmatch(name):
                continue
        raise CheckpointError(f"{path}: {MANIFEST} has an unfit entry {name!r}")
    return manifest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
