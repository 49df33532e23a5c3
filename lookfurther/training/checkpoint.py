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
from lookfurther.training.run_dir import package_version, sync_to_disk
from lookfurther.training.serialization import serialize_tensors

FORMAT_VERSION = 2
METADATA_FILE = "facts.json"
MANIFEST_FILE = "manifest.json"
TENSOR_SUFFIX = ".safetensors"

_CHECKPOINT_NAME = re.compile(r"step_(\d{12,})", re.ASCII)
_FILE_NAME = re.compile(rf"{re.escape(METADATA_FILE)}|\w+\.safetensors", re.ASCII)
_TEMPORARY_PREFIXES = (".writing-", ".removing-")
_MAX_MANIFEST_BYTES = _MAX_METADATA_BYTES = 1 << 20


class Checkpoint(NamedTuple):
    """A verified checkpoint, its tensors in host memory."""

    path: Path
    files: dict[str, dict[str, Tensor]]
    metadata: dict[str, Any]


def save(
    folder: Path,
    step: int,
    files: dict[str, dict[str, Tensor]],
    metadata: dict[str, Any],
    keep: int,
) -> Path:
    """Publish folder/step_N and keep the newest `keep` checkpoints up to it.

    A step that already has a sound checkpoint is not written a second time: no order of renames
    could replace it without a moment in which there is none.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    target = folder / f"step_{step:012d}"
    with _prepared_folder(folder, target):
        if not _is_valid(verify_hashes, target):
            _write_checkpoint(target, files, metadata)
        _remove_old_checkpoints(folder, step, keep)
    return target


def save_and_remove_others(
    folder: Path, step: int, files: dict[str, dict[str, Tensor]], metadata: dict[str, Any]
) -> Path:
    """Publish a checkpoint of `step`, and then remove all others, whatever their step."""
    target = folder / f"step_{step:012d}"
    while target.exists():  # a rename cannot replace it: one more zero, and the same step
        target = target.with_name(target.name.replace("_", "_0"))
    with _prepared_folder(folder, target):
        _write_checkpoint(target, files, metadata)
        for _, path in _list_checkpoints(folder):
            if path != target:
                _remove_checkpoint(path)
    return target


def verify_hashes(path: Path, parts: Collection[str] | None = None) -> list[str]:
    """The parts of a checkpoint in which every bit is as it was written; those asked for alone."""
    entries = _check_contents(path)["files"]
    held = [name.removesuffix(TENSOR_SUFFIX) for name in entries.keys() - {METADATA_FILE}]
    parts = sorted(held if parts is None else parts)
    if lacking := set(parts) - set(held):
        raise CheckpointError(f"{path} holds no {min(lacking)}")
    with _convert_read_errors(path):
        for name in (METADATA_FILE, *(part + TENSOR_SUFFIX for part in parts)):
            if _file_sha256(path / name) != entries[name]["sha256"]:
                raise CheckpointError(f"{path}: {name} is altered (SHA-256)")
    return parts


def load(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """A checkpoint, verified first; with `parts` these alone are read, whatever else it holds."""
    parts = verify_hashes(path, parts)
    with _convert_read_errors(path):
        files = {part: load_file(path / (part + TENSOR_SUFFIX)) for part in parts}
    return read_metadata(path)._replace(files=files)


def read_metadata(path: Path) -> Checkpoint:
    """A checkpoint that is not verified, without its tensors."""
    with _convert_read_errors(path), (path / METADATA_FILE).open("rb") as file:
        text = file.read(_MAX_METADATA_BYTES + 1)
        if len(text) > _MAX_METADATA_BYTES:
            raise CheckpointError(
                f"{path}: {METADATA_FILE} has more than {_MAX_METADATA_BYTES:,} bytes"
            )
        facts = json.loads(text)
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path}: {METADATA_FILE} is not an object")
    return Checkpoint(path, {}, facts)


def load_newest(
    folder: Path, parts: Collection[str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint, if there is any at all, and why newer ones were passed over."""
    return _load_first_valid(folder, [path for _, path in _list_checkpoints(folder)], parts)


def load_best(
    folder: Path, parts: Collection[str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The sound checkpoint with the highest score, of equal ones the newest; as `newest`."""
    paths = [path for _, path in _list_checkpoints(folder)]
    return _load_first_valid(folder, sorted(paths, key=_read_score, reverse=True), parts)


def _read_score(path: Path) -> float:
    """The score of a checkpoint; without one it comes last."""
    with (
        suppress(OSError, ValueError, RecursionError, TypeError, KeyError, OverflowError),
        open(path / METADATA_FILE, "rb") as file,
    ):
        score = float(json.loads(file.read(_MAX_METADATA_BYTES))["score"])
        return score if math.isfinite(score) else -math.inf
    return -math.inf


def _load_first_valid(
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


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, newest first, sound or not."""
    names = os.listdir(folder) if folder.is_dir() else []
    found = ((_CHECKPOINT_NAME.fullmatch(name), folder / name) for name in names)
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


# Writing


@contextmanager
def _prepared_folder(folder: Path, target: Path) -> Iterator[None]:
    """A folder without leftovers of interrupted saves; a disk's error is a CheckpointError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_temporary_folders(folder)
        yield
    except OSError as error:
        raise CheckpointError(f"{target} could not be saved: {error}") from error


def _write_checkpoint(
    target: Path, files: dict[str, dict[str, Tensor]], metadata: dict[str, Any]
) -> None:
    counters = json.dumps(metadata, indent=2, allow_nan=False).encode()
    writing = target.with_name(_TEMPORARY_PREFIXES[0] + target.name)
    try:
        writing.mkdir()
        entries = {METADATA_FILE: _write_hashed(writing / METADATA_FILE, [counters])}
        for part, tensors in files.items():
            name = part + TENSOR_SUFFIX
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"{part!r} cannot name a file of a checkpoint")
            entries[name] = _write_hashed(writing / name, serialize_tensors(tensors))
        manifest = {
            "format": FORMAT_VERSION,
            "lookfurther": package_version("lookfurther"),
            "files": entries,
        }
        body = json.dumps(manifest, indent=2).encode()
        _write_hashed(
            writing / MANIFEST_FILE, [hashlib.sha256(body).hexdigest().encode(), b"\n", body]
        )
        sync_to_disk(writing)
        if target.exists():
            _remove_checkpoint(target)
        os.rename(writing, target)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)  # what stays is swept by the next save
        raise
    sync_to_disk(target.parent)


def _write_hashed(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and sync a file; its entry in the manifest."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def _remove_old_checkpoints(folder: Path, step: int, keep: int) -> None:
    """Remove what is older than the newest `keep` whole checkpoints up to `step`.

    One beyond `step` was refused when the run resumed from behind it; it must not count.
    """
    kept = 0
    for _, path in (found for found in _list_checkpoints(folder) if found[0] <= step):
        if kept == keep:
            _remove_checkpoint(path)
        elif _is_valid(_check_contents, path):
            kept += 1


def _remove_checkpoint(path: Path) -> None:
    """Unpublish first, so that a removal cut short leaves no torn checkpoint."""
    removing = path.with_name(_TEMPORARY_PREFIXES[1] + path.name)
    os.rename(path, removing)
    shutil.rmtree(removing)


def _remove_temporary_folders(folder: Path) -> None:
    """Remove what interrupted saves have left."""
    for path in folder.iterdir():
        if path.name.startswith(_TEMPORARY_PREFIXES):
            shutil.rmtree(path)


# Reading


@contextmanager
def _convert_read_errors(path: Path) -> Iterator[None]:
    """Whatever a hostile or vanishing file raises is a CheckpointError."""
    try:
        yield
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _is_valid(check: Callable[[Path], Any], path: Path) -> bool:
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def _check_contents(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that holds exactly its files, each as long as it should be.

    This is what can be known without reading all of it.
    """
    with _convert_read_errors(path):
        present = {name: (path / name).lstat() for name in os.listdir(path)}
        for name, status in present.items():
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: {name} is not a plain file")
        if MANIFEST_FILE not in present:
            raise CheckpointError(f"{path}: {MANIFEST_FILE} is missing")
        manifest = _read_manifest(path)
    files = manifest["files"]
    if missing := files.keys() - present.keys():
        raise CheckpointError(f"{path}: {min(missing)} is missing")
    if strange := present.keys() - files.keys() - {MANIFEST_FILE}:
        raise CheckpointError(f"{path}: {min(strange)} does not belong to it")
    for name, entry in files.items():
        size, whole = present[name].st_size, entry["size"]
        if size != whole:
            fault = "cut" if size < whole else "too long"
            raise CheckpointError(f"{path}: {name} is {fault}: {size} of {whole} bytes")
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, which vouches for itself and names nothing outside its folder."""
    with (path / MANIFEST_FILE).open("rb") as file:
        seal, _, body = file.read(_MAX_MANIFEST_BYTES).partition(b"\n")
    if seal != hashlib.sha256(body).hexdigest().encode():
        raise CheckpointError(f"{path}: {MANIFEST_FILE} is cut or altered (SHA-256)")
    manifest = json.loads(body)
    match manifest:
        case {"format": int(number)} if number != FORMAT_VERSION:
            raise CheckpointError(
                f"{path}: its format is {number}, this version reads {FORMAT_VERSION}:"
                " train again, or use"
                " the version of lookfurther that wrote it"
            )
        case {"format": int(), "files": dict(files)} if METADATA_FILE in files:
            pass
        case _:
            raise CheckpointError(f"{path}: {MANIFEST_FILE} is not a manifest")
    for name, entry in files.items():
        match entry:
            case {"size": int(), "sha256": str()} if _FILE_NAME.fullmatch(name):
                continue
        raise CheckpointError(f"{path}: {MANIFEST_FILE} has an unfit entry {name!r}")
    return manifest


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
