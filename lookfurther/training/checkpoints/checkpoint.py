"""Checkpoints that are complete or absent: written to a temporary folder, synced, then renamed.

step_000000123456/
  <name>.safetensors   the tensors of one part
  facts.json           metadata: counters, configuration, spec
  manifest.json        sizes and hashes of these files
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from lookfurther.errors import CheckpointError
from lookfurther.system.files import TEMPORARY_PREFIX, atomic_replace
from lookfurther.training.checkpoints.checkpoint_manifest import (
    MANIFEST_FILE,
    METADATA_FILE,
    TENSOR_SUFFIX,
    check_contents,
    convert_read_errors,
    verify_hashes,
    write_files,
)

_CHECKPOINT_NAME = re.compile(r"step_(\d{12,})", re.ASCII)
_REMOVING_PREFIX = ".removing-"
_MAX_METADATA_BYTES = 1 << 20


class Checkpoint(NamedTuple):
    """A verified checkpoint, with its tensors in host memory."""

    path: Path
    files: dict[str, dict[str, Tensor]]
    metadata: dict[str, Any]


# Saving


def save(
    folder: Path,
    step: int,
    files: dict[str, dict[str, Tensor]],
    metadata: dict[str, Any],
    keep: int,
) -> Path:
    """Save folder/step_N and keep the newest `keep` checkpoints up to it.

    A step that already has a valid checkpoint is not written again: no order of renames could
    replace it without a moment in which there is none.
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
    """Save a checkpoint of `step`, then remove all others, whatever their step."""
    target = folder / f"step_{step:012d}"
    while target.exists():  # a rename cannot replace it: add a zero to the same step
        target = target.with_name(target.name.replace("_", "_0"))
    with _prepared_folder(folder, target):
        _write_checkpoint(target, files, metadata)
        for _, path in _list_checkpoints(folder):
            if path != target:
                _remove_checkpoint(path)
    return target


@contextmanager
def _prepared_folder(folder: Path, target: Path) -> Iterator[None]:
    """Make the folder, remove temporary folders, and convert disk errors to CheckpointError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name.startswith((TEMPORARY_PREFIX, _REMOVING_PREFIX)):
                shutil.rmtree(path)  # an interrupted save left it
        yield
    except OSError as error:
        raise CheckpointError(f"{target} could not be saved: {error}") from error


def _write_checkpoint(
    target: Path, files: dict[str, dict[str, Tensor]], metadata: dict[str, Any]
) -> None:
    with atomic_replace(target) as temporary:
        temporary.mkdir()
        write_files(temporary, files, metadata)
        if target.exists():
            _remove_checkpoint(target)


def _remove_old_checkpoints(folder: Path, step: int, keep: int) -> None:
    """Remove checkpoints older than the newest `keep` complete ones up to `step`.

    A checkpoint after `step` was invalid when the run resumed from an earlier one. It does not
    count.
    """
    kept = 0
    for _, path in (found for found in _list_checkpoints(folder) if found[0] <= step):
        if kept == keep:
            _remove_checkpoint(path)
        elif _is_valid(check_contents, path):
            kept += 1


def _remove_checkpoint(path: Path) -> None:
    """Rename first, so that an interrupted removal leaves no incomplete checkpoint."""
    removing = path.with_name(_REMOVING_PREFIX + path.name)
    os.rename(path, removing)
    shutil.rmtree(removing)


# Loading


def load(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Verify and load a checkpoint; with `parts`, only these are verified and loaded."""
    parts = verify_hashes(path, parts)
    with convert_read_errors(path):
        files = {part: load_file(path / (part + TENSOR_SUFFIX)) for part in parts}
    return read_metadata(path)._replace(files=files)


def read_metadata(path: Path) -> Checkpoint:
    """A checkpoint without its tensors; its hashes are not verified."""
    with convert_read_errors(path), (path / METADATA_FILE).open("rb") as file:
        text = file.read(_MAX_METADATA_BYTES + 1)
        if len(text) > _MAX_METADATA_BYTES:
            raise CheckpointError(
                f"{path}: {METADATA_FILE} has more than {_MAX_METADATA_BYTES:,} bytes"
            )
        metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: {METADATA_FILE} is not an object")
    return Checkpoint(path, {}, metadata)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, valid or not."""
    return (path / MANIFEST_FILE).exists()


def load_newest(
    folder: Path, parts: Collection[str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, and why newer ones were skipped; None without checkpoints."""
    return _load_first_valid(folder, [path for _, path in _list_checkpoints(folder)], parts)


def load_best(
    folder: Path, parts: Collection[str] | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The valid checkpoint with the highest score (the newest of equals); see `load_newest`."""
    paths = [path for _, path in _list_checkpoints(folder)]
    return _load_first_valid(folder, sorted(paths, key=_read_score, reverse=True), parts)


def _read_score(path: Path) -> float:
    """The score of a checkpoint, or minus infinity."""
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
    """The first valid checkpoint of `paths`, and why those before it were skipped."""
    reasons: list[str] = []
    for path in paths:
        try:
            return load(path, parts), reasons
        except CheckpointError as error:
            reasons.append(str(error))
    if reasons:
        raise CheckpointError(f"{folder} has no valid checkpoint: {'; '.join(reasons)}")
    return None, reasons


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every checkpoint, newest first, valid or not."""
    names = os.listdir(folder) if folder.is_dir() else []
    matches = ((_CHECKPOINT_NAME.fullmatch(name), folder / name) for name in names)
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _is_valid(check: Callable[[Path], Any], path: Path) -> bool:
    try:
        check(path)
    except CheckpointError:
        return False
    return True
