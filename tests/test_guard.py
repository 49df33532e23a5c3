"""Files on which the HDF5 library itself would never end, found by fuzzing (F12)."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from lookfurther.demos import guard, pieces
from lookfurther.demos.guard import Guard

HOSTILE = Path(__file__).parent / "hostile"


@pytest.fixture
def watch() -> Iterator[Guard]:
    watch = Guard()
    yield watch
    watch.stop()


def unpacked(name: str, folder: Path) -> Path:
    path = folder / "main_data.hdf5"
    path.write_bytes(gzip.decompress((HOSTILE / f"{name}.hdf5.gz").read_bytes()))
    return path


def sound(folder: Path) -> Path:
    path = folder / "sound.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a/b", data=np.arange(10))
        file.create_dataset("a/c", data=np.arange(10_000), chunks=(100,), compression="gzip")
        file["a"].attrs["seed"] = 3
        file["there"] = h5py.ExternalLink("elsewhere.hdf5", "/x")
    return path


def test_a_header_that_has_no_end_is_refused(
    tmp_path: Path, watch: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bound on memory; which allocation it refuses first differs between machines."""
    monkeypatch.setattr(guard, "SECONDS", 3600.0)
    with pytest.raises(ValueError, match="RuntimeError: Link iteration failed"):
        watch.check(unpacked("endless_header", tmp_path))
    watch.check(sound(tmp_path))  # and the next file is looked at as ever


def test_pieces_that_do_not_fit_their_array_are_refused(tmp_path: Path) -> None:
    path = unpacked("pieces_of_other_rank", tmp_path)
    with pytest.raises(ValueError, match=r"shape \(4, 4\) is in pieces of \(4,\)"):
        pieces.opened(path).__enter__()


def test_what_does_not_answer_in_time_is_refused(
    tmp_path: Path, watch: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless.hdf5"
    os.mkfifo(endless)  # who opens it waits for a writer, and there is none
    watch.check(sound(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(guard, "SECONDS", 0.25)
        with pytest.raises(ValueError, match=r"within 2 GiB and 0\.25 seconds: it is damaged"):
            watch.check(endless)
    watch.check(sound(tmp_path))


def test_a_guard_that_was_killed_is_replaced(tmp_path: Path, watch: Guard) -> None:
    watch.check(sound(tmp_path))
    first = watch._process
    assert first is not None
    first.kill()
    first.wait()
    watch.check(sound(tmp_path))
    assert watch._process is not first


def test_reasons_are_one_line(tmp_path: Path, watch: Guard) -> None:
    path = tmp_path / "no.hdf5"
    path.write_bytes(b"nothing\nof the kind")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        watch.check(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="FileNotFoundError"):
        watch.check(tmp_path / "absent.hdf5")
