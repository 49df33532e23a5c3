"""Subprocesses import nothing from the working directory, whatever it contains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lookfurther.system import processes
from lookfurther.system.processes import python_command, safe_import_path, subprocess_environment
from lookfurther.types import Spec

# Modules that a Python process imports early: to start, to unpickle, to read demonstrations.
SHADOWED_MODULES = (
    "h5py",
    "json",
    "numpy",
    "pickle",
    "select",
    "signal",
    "socket",
    "struct",
    "threading",
)
MARKER_CODE = (
    "import pathlib, sys; pathlib.Path({!r}).open('a').write(__name__ + ' ' + str(sys.argv))"
)
CONSOLE_SCRIPT = "import sys; from lookfurther.cli.main import main; sys.exit(main())"
HELPER_COMMANDS = {
    "workers": """
    from lookfurther.config import EnvConfig
    from lookfurther.envs import make_envs
    envs = make_envs("CartPole-v1", EnvConfig(processes=1), 1, 0, 1)
    envs.reset()
    envs.close()
""",
    "pool": """
    from lookfurther.system import processes
    processes.count_cores = lambda: 2
    assert list(processes.parallel_map(abs, [-1, -2])) == [1, 2]
""",
    "search": """
    import numpy as np
    from lookfurther.demos.go_explore.workers import _start_worker
    with _start_worker(dict, np.random.SeedSequence(0)) as (pipe, process):
        pipe.send([None])
        assert "AttributeError" in pipe.recv()  # a dict is no game
""",
}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working directory with modules that have well-known names."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in SHADOWED_MODULES:
        (folder / f"{name}.py").write_text(MARKER_CODE.format(str(tmp_path / "marker")))
    return folder


def run_in_directory(hostile: Path, script: str, *words: str, **variables: str) -> str:
    """The output of a script that runs from its own folder, like a console script."""
    bin_dir = hostile.parent / "bin"
    bin_dir.mkdir()
    (bin_dir / "script").write_text(script)
    path = os.pathsep.join([str(processes.PACKAGE_FOLDER), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep), **variables}
    command = [sys.executable, str(bin_dir / "script"), *words]
    done = subprocess.run(
        command, cwd=hostile, env=environment, capture_output=True, text=True, timeout=600
    )
    marker = hostile.parent / "marker"
    assert not marker.exists(), f"imported from the working directory: {marker.read_text()}"
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("helper", HELPER_COMMANDS)
def test_subprocess_does_not_import_working_directory(hostile: Path, helper: str) -> None:
    run_in_directory(hostile, f"if __name__ == '__main__':{HELPER_COMMANDS[helper]}")


def test_command_reads_demos_in_hostile_directory(hostile: Path, tmp_path: Path) -> None:
    """The set is in the working directory, and a subprocess checks its HDF5 file."""
    import numpy as np

    from lookfurther.demos import storage
    from lookfurther.demos.episode import Episode

    spec = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)
    planes = np.zeros((2, 4), np.float32)
    episode = Episode(planes, np.array([0]), np.ones(1, np.float32), True, 1)
    storage.save_episodes("theirs-v0", [episode], spec, "them", root=hostile)
    output = run_in_directory(hostile, CONSOLE_SCRIPT, "demos", "show", str(hostile / "theirs-v0"))
    assert "CartPole-v1, 1 episode" in output


def test_subprocess_path_excludes_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `python -m lookfurther`, which has the working directory on its path."""
    monkeypatch.chdir(hostile)
    monkeypatch.syspath_prepend(str(hostile))
    monkeypatch.syspath_prepend("")
    code = "import sys, json, h5py; import lookfurther; print(sys.path)"
    done = subprocess.run(
        python_command("-c", code), env=subprocess_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(hostile) not in done.stdout
    assert not (hostile.parent / "marker").exists()
    inherited = subprocess_environment(user_modules=True)["PYTHONPATH"].split(os.pathsep)
    assert inherited[:2] == [str(hostile), str(hostile)]


@pytest.mark.parametrize("before", [None, "1", ""])
def test_safe_import_path_restores_environment(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(processes.SAFE_PATH_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(processes.SAFE_PATH_VARIABLE, before)
    with safe_import_path():
        assert os.environ[processes.SAFE_PATH_VARIABLE] == "1"
    assert os.environ.get(processes.SAFE_PATH_VARIABLE) == before
