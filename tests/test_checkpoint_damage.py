"""Damaged and forged checkpoints are refused, and the previous one is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther.errors import CheckpointError
from lookfurther.training.checkpoints.checkpoint import load, load_newest
from lookfurther.training.checkpoints.checkpoint_manifest import verify_hashes
from tests.saved_checkpoints import flip_bit, is_checkpoint_of, save_step


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit a manifest and update its hash, as an attacker would."""
    manifest = json.loads((path / "manifest.json").read_text().partition("\n")[2])
    edit(manifest)
    body = json.dumps(manifest)
    (path / "manifest.json").write_text(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)


@pytest.mark.parametrize("name", ["agent_replay.safetensors", "facts.json", "manifest.json"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_truncated_file_falls_back_to_previous_checkpoint(
    tmp_path: Path, name: str, share: float
) -> None:
    save_step(tmp_path, 1)
    file = save_step(tmp_path, 2) / name
    full_size = file.stat().st_size
    size = int(share * full_size)
    os.truncate(file, size)
    saved, reasons = load_newest(tmp_path)
    assert is_checkpoint_of(saved, 1)
    fault = "cut or altered" if name == "manifest.json" else f"cut: {size} of {full_size} bytes"
    assert [fault in r and name in r and "step_000000000002" in r for r in reasons] == [True]
    shutil.rmtree(tmp_path / "step_000000000001")
    with pytest.raises(CheckpointError, match=f"no valid checkpoint.*{name}"):
        load_newest(tmp_path)


def test_flipped_bit_is_detected(tmp_path: Path) -> None:
    path, rng = save_step(tmp_path, 1), random.Random(0)
    for _ in range(200):
        file = rng.choice(sorted(path.iterdir()))
        bit = rng.randrange(8 * file.stat().st_size)
        flip_bit(file, bit)
        for read in (verify_hashes, load):
            with pytest.raises(CheckpointError, match=rf"{file.name} is .*altered \(SHA-256\)"):
                read(path)
        flip_bit(file, bit)
    assert is_checkpoint_of(load(path), 1)


def test_flipped_manifest_bit_is_detected(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    for bit in range(8 * (path / "manifest.json").stat().st_size):
        flip_bit(path / "manifest.json", bit)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            verify_hashes(path)
        flip_bit(path / "manifest.json", bit)


def test_missing_or_extra_file_is_refused(tmp_path: Path) -> None:
    path = save_step(tmp_path, 1)
    (path / "extra").touch()
    with pytest.raises(CheckpointError, match="extra does not belong"):
        load(path)
    (path / "extra").unlink()
    with (path / "learner.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"learner\.safetensors is too long: "):
        load(path)
    for name in ("learner.safetensors", "manifest.json"):
        (path / name).unlink()
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            load(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)])
def test_special_files_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = save_step(tmp_path, 1)
    for name in ("learner.safetensors", "manifest.json"):
        (path / name).unlink()
        make(path / name)
        with pytest.raises(CheckpointError, match=f"{name} is not a plain file"):
            load(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=3), "its format is 3, this version reads 2"),
        (lambda m: m.pop("format"), "is not a manifest"),
        (lambda m: m["files"].pop("facts.json"), "is not a manifest"),
        (lambda m: m.update(files=[]), "is not a manifest"),
        (
            lambda m: m["files"].update({"../x.safetensors": {"size": 0, "sha256": ""}}),
            "invalid.*x",
        ),
        (lambda m: m["files"].update({"/x.safetensors": {"size": 0, "sha256": ""}}), "invalid.*x"),
        (lambda m: m["files"].update({"x.pickle": {"size": 0, "sha256": ""}}), "invalid.*pickle"),
        (lambda m: m["files"]["facts.json"].update(size="1"), "invalid.*facts"),
        (lambda m: m["files"].update({"facts.json": None}), "invalid.*facts"),
        (lambda m: m["files"].update({"y.safetensors": {"size": 0, "sha256": ""}}), "y.*missing"),
    ],
)
def test_forged_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    path = save_step(tmp_path, 1)
    edit_manifest(path, change)
    with pytest.raises(CheckpointError, match=reason):
        load(path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_step(tmp_path_factory.mktemp("sample"), 1)


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Replace a file and update its hash."""
    (path / name).write_bytes(content)
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(path, lambda manifest: manifest["files"].update({name: entry}))


@st.composite
def mangled_bytes(draw: st.DrawFn, source: bytes) -> bytes:
    """A file with some bytes replaced by others: from one byte to all of them."""
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(source))] * 2)))
    return source[:start] + draw(st.binary(max_size=40)) + source[end:]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["learner.safetensors", "facts.json", "manifest.json"]))
def test_fuzzed_file_raises_only_checkpoint_error(
    sample: Path, data: st.DataObject, name: str
) -> None:
    original = (sample / name).read_bytes()
    content = data.draw(mangled_bytes(original))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(sample, Path(folder) / sample.name))
        (path / name).write_bytes(content)
        if content != original:
            with pytest.raises(CheckpointError, match=name):
                load(path)
        if name != "manifest.json":
            replace_file(path, name, content)
            with suppress(CheckpointError):
                load(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("facts.json", b"[" * 100_000),
        ("facts.json", b"\xff"),
        ("facts.json", b"[]"),
        ("facts.json", b"1" * 10_000),
        ("learner.safetensors", b""),
        ("learner.safetensors", b"\x80\x04}."),
        ("learner.safetensors", (2**62).to_bytes(8, "little") + b"{}"),
    ],
)
def test_hostile_file_with_valid_hash_is_refused(
    sample: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    path = Path(shutil.copytree(sample, tmp_path / "copy"))
    replace_file(path, name, content)
    with pytest.raises(CheckpointError, match="copy"):
        load(path)
