"""The manifest of a checkpoint: which files it has, with their sizes and SHA-256 hashes.

Line 1 of manifest.json is the SHA-256 of the rest. The rest is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from lookfurther.errors import CheckpointError
from lookfurther.training.checkpoints.serialization import serialize_tensors
from lookfurther.training.run_dir import package_version

FORMAT_VERSION = 2
METADATA_FILE = "facts.json"
MANIFEST_FILE = "manifest.json"
TENSOR_SUFFIX = ".safetensors"

_FILE_NAME = re.compile(rf"{re.escape(METADATA_FILE)}|\w+\.safetensors", re.ASCII)
_MAX_MANIFEST_BYTES = 1 << 20


def write_files(
    folder: Path, files: dict[str, dict[str, Tensor]], metadata: dict[str, Any]
) -> None:
    """Write and sync the files of a checkpoint and their manifest."""
    text = json.dumps(metadata, indent=2, allow_nan=False).encode()
    entries = {METADATA_FILE: _write_hashed(folder / METADATA_FILE, [text])}
    for part, tensors in files.items():
        name = part + TENSOR_SUFFIX
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{part!r} cannot name a file of a checkpoint")
        entries[name] = _write_hashed(folder / name, serialize_tensors(tensors))
    manifest = {
        "format": FORMAT_VERSION,
        "lookfurther": package_version("lookfurther"),
        "files": entries,
    }
    body = json.dumps(manifest, indent=2).encode()
    hash_line = hashlib.sha256(body).hexdigest().encode() + b"\n"
    _write_hashed(folder / MANIFEST_FILE, [hash_line, body])


def _write_hashed(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write and sync a file; returns its entry in the manifest."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def verify_hashes(path: Path, parts: Collection[str] | None = None) -> list[str]:
    """Check every bit of a checkpoint, or of these parts; returns the names of the parts."""
    entries = check_contents(path)["files"]
    present = [name.removesuffix(TENSOR_SUFFIX) for name in entries.keys() - {METADATA_FILE}]
    parts = sorted(present if parts is None else parts)
    if missing := set(parts) - set(present):
        raise CheckpointError(f"{path} holds no {min(missing)}")
    with convert_read_errors(path):
        for name in (METADATA_FILE, *(part + TENSOR_SUFFIX for part in parts)):
            if _file_sha256(path / name) != entries[name]["sha256"]:
                raise CheckpointError(f"{path}: {name} is altered (SHA-256)")
    return parts


def check_contents(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that has exactly its files, each of the right size.

    This does not read the tensors, so it is fast.
    """
    with convert_read_errors(path):
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
    if extra := present.keys() - files.keys() - {MANIFEST_FILE}:
        raise CheckpointError(f"{path}: {min(extra)} does not belong to it")
    for name, entry in files.items():
        size, expected = present[name].st_size, entry["size"]
        if size != expected:
            fault = "cut" if size < expected else "too long"
            raise CheckpointError(f"{path}: {name} is {fault}: {size} of {expected} bytes")
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, if its own hash is right and it names no file outside its folder."""
    with (path / MANIFEST_FILE).open("rb") as file:
        digest, _, body = file.read(_MAX_MANIFEST_BYTES).partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise CheckpointError(f"{path}: {MANIFEST_FILE} is cut or altered (SHA-256)")
    manifest = json.loads(body)
    match manifest:
        case {"format": int(number)} if number != FORMAT_VERSION:
            raise CheckpointError(
                f"{path}: its format is {number}, this version reads {FORMAT_VERSION}: train again,"
                " or use the version of lookfurther that wrote it"
            )
        case {"format": int(), "files": dict(files)} if METADATA_FILE in files:
            pass
        case _:
            raise CheckpointError(f"{path}: {MANIFEST_FILE} is not a manifest")
    for name, entry in files.items():
        match entry:
            case {"size": int(), "sha256": str()} if _FILE_NAME.fullmatch(name):
                continue
        raise CheckpointError(f"{path}: {MANIFEST_FILE} has an invalid entry {name!r}")
    return manifest


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    """Raise CheckpointError for any error that a hostile or vanishing file causes."""
    try:
        yield
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
