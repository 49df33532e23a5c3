"""Waiting threads release their cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lookfurther.system.openmp import BRIEF_WAITS, WAIT_VARIABLES, set_brief_waits

ROOT = Path(__file__).parents[1]
TORCH = Path(torch.__file__).parent / "lib"


def run_fresh_python(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a new Python of this checkout without variables that set how threads wait."""
    environment = {name: value for name, value in os.environ.items() if name not in WAIT_VARIABLES}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"} | variables
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "chosen", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "200"}]
)
def test_user_wait_policy_is_kept(chosen: dict[str, str]) -> None:
    environment = dict(chosen)
    set_brief_waits(environment)
    assert environment == chosen


def test_import_sets_brief_waits_before_torch() -> None:
    code = "import lookfurther, sys; assert 'torch' not in sys.modules; import os"
    shown = "; print(*(f'{n}={os.environ.get(n)}' for n in sys.argv[1:]), sep='\\n')"
    printed = run_fresh_python("-c", code + shown, *BRIEF_WAITS).stdout.split()
    assert dict(line.split("=") for line in printed) == BRIEF_WAITS


@pytest.mark.skipif(not list(TORCH.glob("libgomp*")), reason="torch has another OpenMP than GNU's")
@pytest.mark.parametrize(
    "words",
    [
        ("-c", "import lookfurther, torch"),
        ("-m", "lookfurther", "evaluate", "no-such-run"),
        ("-m", "examples.unlock_pickup", "--help"),
    ],
    ids=["import", "command", "main job"],
)
def test_openmp_spins_briefly(words: tuple[str, ...]) -> None:
    """The library prints the variables that it read when it was loaded."""
    output = run_fresh_python(*words, OMP_DISPLAY_ENV="VERBOSE").stderr
    assert f"GOMP_SPINCOUNT = '{BRIEF_WAITS['GOMP_SPINCOUNT']}'" in output


@pytest.mark.skipif(not list(TORCH.glob("libopenblas.so*")), reason="torch has no OpenBLAS")
def test_openblas_uses_one_thread_with_torch_two() -> None:
    """Before every product OpenBLAS uses OpenMP's number of threads, up to a limit."""
    code = """
import ctypes, pathlib, torch
from lookfurther import preset
from lookfurther.training.hardware import Hardware
Hardware.resolve(preset("no-demos", run__threads=2)).limit_threads()
torch.ones(512, 512) @ torch.ones(512, 512)
(path,) = pathlib.Path(torch.__file__).with_name("lib").glob("libopenblas.so*")
print(torch.get_num_threads(), ctypes.CDLL(str(path)).openblas_get_num_threads())
"""
    assert run_fresh_python("-c", code).stdout.split() == ["2", "1"]
