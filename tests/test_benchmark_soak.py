"""What the soak of a cluster measures."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from benchmarks.cluster_soak import (
    classify_process,
    compare_quarters,
    find_shared_files,
    list_descendants,
    measure_heap,
)


def test_growth_compares_second_with_last_quarter() -> None:
    samples = [
        {"seconds": float(i), "memory": float(m)} for i, m in enumerate([1, 9, 4, 4, 7, 8, 5, 5])
    ]
    assert compare_quarters(samples) == {
        "memory": {"second_quarter": 4.0, "last_quarter": 5.0, "growth_percent": 25.0}
    }


def test_descendants_include_children_of_children() -> None:
    code = "import subprocess, sys; subprocess.run(['cat'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        while not any(
            command.startswith("cat") for command in list_descendants(child.pid).values()
        ):
            assert child.poll() is None
        assert child.pid in list_descendants(os.getpid())
        assert os.getpid() not in list_descendants(child.pid)


def test_shared_files_are_those_with_a_name() -> None:
    path = Path(f"/dev/shm/lookfurther-test-{os.getpid()}")
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        assert str(path) in find_shared_files([os.getpid()])
        path.unlink()
        assert str(path) not in find_shared_files([os.getpid()])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_heap_is_what_is_allocated_and_not_freed() -> None:
    before = measure_heap()
    block = bytearray(64 * 2**20)
    assert 63 <= measure_heap() - before <= 66
    del block
    assert -1 <= measure_heap() - before <= 2


def test_kind_of_a_process_follows_from_its_command() -> None:
    commands = {
        "ray::RayActor.play": "actors",
        "/lib/ray/core/src/ray/raylet/raylet\0--raylet_socket_name=a": "raylet",
        "/lib/ray/core/src/ray/gcs/gcs_server\0--log_dir=b": "gcs",
        "ray::DashboardAgent": "other_ray",
    }
    assert {command: classify_process(command) for command in commands} == commands
