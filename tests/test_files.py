"""Files and folders are replaced completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lookfurther.system.files import atomic_replace, write_text


def raise_disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_write_text_is_atomic(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.md"
    write_text(path, "old ü\n")
    assert path.read_bytes() == "old ü\n".encode()
    monkeypatch.setattr(os, call, raise_disk_full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old ü\n"
    assert os.listdir(tmp_path) == ["report.md"]
    write_text(path, "new")
    assert path.read_text() == "new"


def write_and_interrupt(path: Path) -> None:
    with atomic_replace(path) as temporary:
        temporary.write_text("new")
        raise KeyboardInterrupt


def test_failed_block_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def write_folder(target: Path, name: str) -> None:
    """Replace a folder by one with a file, and check that it is hidden until it is complete."""
    before = [path for path in target.parent.glob("*") if not path.name.startswith(".")]
    with atomic_replace(target) as temporary:
        temporary.mkdir()
        (temporary / name).touch()
        assert [path for path in target.parent.glob("*") if path.name[0] != "."] == before


def test_folder_is_hidden_until_complete(tmp_path: Path) -> None:
    write_folder(tmp_path / "parent" / "folder", "file")
    assert os.listdir(tmp_path / "parent") == ["folder"]
    assert os.listdir(tmp_path / "parent" / "folder") == ["file"]


def test_folder_does_not_replace_non_empty_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", "old")
    with pytest.raises(OSError, match="not empty"):
        write_folder(tmp_path / "folder", "new")
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["old"]
