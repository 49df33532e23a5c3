"""The sandbox process that reads files from other people: its limits and its errors."""

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
def sandbox_process() -> Iterator[Sandbox]:
    process = Sandbox()
    yield process
    process.stop()


def unpack_hostile(name: str, folder: Path) -> Path:
    path = folder / "main_data.hdf5"
    path.write_bytes(gzip.decompress((HOSTILE / f"{name}.hdf5.gz").read_bytes()))
    return path


def write_sound_file(folder: Path) -> Path:
    path = folder / "sound.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a/b", data=np.arange(10))
        file.create_dataset("a/c", data=np.arange(10_000), chunks=(100,), compression="gzip")
        file["a"].attrs["seed"] = 3
        file["there"] = h5py.ExternalLink("elsewhere.hdf5", "/x")
    return path


def visit_task(path: Path) -> SandboxTask:
    return SandboxTask("hdf5:visit_all", (str(path),), path.name, path.stat().st_size)


def read_task(path: Path, max_bytes: int) -> SandboxTask:
    """Read all rows of a deflated array of 80,000 bytes."""
    requests = [["a/c", [10_000], "i", 0, 10_000]]
    return SandboxTask(
        "hdf5:read_arrays", (str(path), requests), path.name, path.stat().st_size, max_bytes
    )


def test_endless_header_is_an_error(tmp_path: Path, sandbox_process: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"memory allocation failed|needs more than"):
        sandbox_process.call(visit_task(unpack_hostile("endless_header", tmp_path)))
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))  # the next file is read as before


def test_chunks_of_other_rank_are_an_error(tmp_path: Path) -> None:
    path = unpack_hostile("chunks_of_other_rank", tmp_path)
    with pytest.raises(ValueError, match=r"shape \(4, 4\) has chunks of \(4,\)"):
        episode_hdf5.check_file(path)


def test_sandbox_returns_arrays_as_written(tmp_path: Path, sandbox_process: Sandbox) -> None:
    result = sandbox_process.call(read_task(write_sound_file(tmp_path), 80_000))
    assert [array.tolist() for array in result.arrays] == [[*range(10_000)]]


def test_response_over_limit_is_an_error(tmp_path: Path, sandbox_process: Sandbox) -> None:
    with pytest.raises(ValueError, match="cannot be read within"):
        sandbox_process.call(read_task(write_sound_file(tmp_path), 79_999))
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))


def test_task_over_cpu_limit_is_killed(tmp_path: Path, sandbox_process: Sandbox) -> None:
    """The task would take minutes of CPU time and little memory."""
    path = write_sound_file(tmp_path)
    sandbox_process.call(visit_task(path))
    first = sandbox_process._process
    assert first is not None
    requests = [["a/c", [10_000], "i", 5050, 5050]] * 300_000
    with pytest.raises(ValueError, match="MiB and 2 seconds of CPU time: it is damaged"):
        sandbox_process.call(SandboxTask("hdf5:read_arrays", (str(path), requests), path.name, 0))
    assert first.returncode == -signal.SIGXCPU


def test_stopped_process_is_killed_and_replaced(
    tmp_path: Path, sandbox_process: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))
    stopped = sandbox_process._process
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(
            sandbox, "BASE_WALL_SECONDS", -20.0
        )  # so the limit is ten per CPU second - 20
        with pytest.raises(ValueError, match="within 64 MiB and 2 seconds of CPU time"):
            sandbox_process.call(visit_task(tmp_path / "sound.hdf5")._replace(file_bytes=0))
    assert stopped.returncode == -signal.SIGKILL
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))


def test_killed_process_is_replaced(tmp_path: Path, sandbox_process: Sandbox) -> None:
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))
    first = sandbox_process._process
    assert first is not None
    first.kill()
    first.wait()
    sandbox_process.call(visit_task(write_sound_file(tmp_path)))
    assert sandbox_process._process is not first


def test_interrupted_call_leaves_no_partial_response(
    tmp_path: Path, sandbox_process: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sound_file(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_receive_array", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sandbox_process.call(read_task(path, 80_000))
    assert sandbox_process.call(visit_task(path)).value is None


def test_sandbox_errors_are_one_line(tmp_path: Path, sandbox_process: Sandbox) -> None:
    path = tmp_path / "no.hdf5"
    path.write_bytes(b"no\nHDF5 file")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        sandbox_process.call(visit_task(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="FileNotFoundError"):
        sandbox_process.call(visit_task(path)._replace(arguments=(str(tmp_path / "absent.hdf5"),)))


def test_named_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.hdf5")  # opening it would block without a writer
    with pytest.raises(ValueError, match=r"endless\.hdf5 is not a file"):
        episode_hdf5.check_file(tmp_path / "endless.hdf5")
