"""The helper process that reads other people's files: it ends before it takes all there is."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from lookfurther.demos import episode_hdf5, sandbox
from lookfurther.demos.sandbox import Sandbox, SandboxTask

HOSTILE = Path(__file__).parent / "hostile"


@pytest.fixture
def helper() -> Iterator[Sandbox]:
    helper = Sandbox()
    yield helper
    helper.stop()


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


def walk(path: Path) -> SandboxTask:
    return SandboxTask("hdf5:walk", (str(path),), path.name, path.stat().st_size)


def part(path: Path, most: int) -> SandboxTask:
    """All of a deflated array of 80,000 bytes."""
    wanted = [["a/c", [10_000], "i", 0, 10_000]]
    return SandboxTask("hdf5:parts", (str(path), wanted), path.name, path.stat().st_size, most)


def test_header_without_end_is_refused(tmp_path: Path, helper: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"memory allocation failed|needs more than"):
        helper.call(walk(unpacked("endless_header", tmp_path)))
    helper.call(walk(sound(tmp_path)))  # and the next file is read as before


def test_pieces_that_do_not_fit_their_array_are_refused(tmp_path: Path) -> None:
    path = unpacked("pieces_of_other_rank", tmp_path)
    with pytest.raises(ValueError, match=r"shape \(4, 4\) is in pieces of \(4,\)"):
        episode_hdf5.check_file(path)


def test_arrays_come_back_as_they_were_written(tmp_path: Path, helper: Sandbox) -> None:
    answer = helper.call(part(sound(tmp_path), 80_000))
    assert [array.tolist() for array in answer.arrays] == [[*range(10_000)]]


def test_answer_larger_than_allowed_is_refused_unread(tmp_path: Path, helper: Sandbox) -> None:
    with pytest.raises(ValueError, match="cannot be read within"):
        helper.call(part(sound(tmp_path), 79_999))
    helper.call(walk(sound(tmp_path)))


def test_call_ends_with_its_cpu_time(tmp_path: Path, helper: Sandbox) -> None:
    """Minutes of work, in which no memory is taken."""
    path = sound(tmp_path)
    helper.call(walk(path))
    first = helper._process
    assert first is not None
    wanted = [["a/c", [10_000], "i", 5050, 5050]] * 300_000
    with pytest.raises(ValueError, match="MiB and 2 seconds of CPU time: it is damaged"):
        helper.call(SandboxTask("hdf5:parts", (str(path), wanted), path.name, 0))
    assert first.returncode == -signal.SIGXCPU


def test_stopped_helper_is_killed_and_replaced(
    tmp_path: Path, helper: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.call(walk(sound(tmp_path)))
    stopped = helper._process
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(
            sandbox, "BASE_WALL_SECONDS", -20.0
        )  # so that all it gets is the CPU seconds' share
        with pytest.raises(ValueError, match="within 64 MiB and 2 seconds of CPU time"):
            helper.call(walk(tmp_path / "sound.hdf5")._replace(file_bytes=0))
    assert stopped.returncode == -signal.SIGKILL
    helper.call(walk(sound(tmp_path)))


def test_killed_helper_is_replaced(tmp_path: Path, helper: Sandbox) -> None:
    helper.call(walk(sound(tmp_path)))
    first = helper._process
    assert first is not None
    first.kill()
    first.wait()
    helper.call(walk(sound(tmp_path)))
    assert helper._process is not first


def test_interrupted_call_leaves_no_half_answer(
    tmp_path: Path, helper: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sound(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_receive_array", interrupted)
        with pytest.raises(KeyboardInterrupt):
            helper.call(part(path, 80_000))
    assert helper.call(walk(path)).value is None


def test_reasons_are_one_line(tmp_path: Path, helper: Sandbox) -> None:
    path = tmp_path / "no.hdf5"
    path.write_bytes(b"nothing\nof the kind")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        helper.call(walk(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="FileNotFoundError"):
        helper.call(walk(path)._replace(arguments=(str(tmp_path / "absent.hdf5"),)))


def test_pipe_is_refused_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.hdf5")  # opening it would wait for a writer, and there is none
    with pytest.raises(ValueError, match=r"endless\.hdf5 is not a file"):
        episode_hdf5.check_file(tmp_path / "endless.hdf5")
