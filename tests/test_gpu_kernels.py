"""The GPU kernels by Triton's interpreter: the same values, gradients, steps and draws as torch's,
and nothing read or written outside their tensors.

On a GPU `benchmarks.gpu` holds them against the CPU and against updates without them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lookfurther.config import NetworkConfig
from lookfurther.networks import make_network_builder
from lookfurther.types import Spec

pytest.importorskip("triton", reason="triton is not installed: its interpreter checks the kernels")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a minute of work, many of them on a machine with other work to do
@pytest.mark.parametrize(
    "name",
    [
        "standard",
        "deeper",
        "heads",
        "compiled",
        "sums",
        "steps",
        "draws",
        "batches",
        "updates",
        "outside",
    ],
)
def test_kernels_give_what_torch_gives(name: str) -> None:
    """In a process of its own: Triton decides at import whether it interprets."""
    surroundings = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.triton_interpreter_checks", name],
        env=surroundings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_kernels_are_for_gpus_alone() -> None:
    from lookfurther.gpu import conv

    network = make_network_builder(NetworkConfig(name="dueling"))(
        Spec("x", (1, 84, 84), 4, "uint8", 18, 255.0)
    )
    assert not conv.is_supported(network, torch.bfloat16)
    assert conv.conv_widths(network) in conv.BLOCK_CONFIGS  # type: ignore[arg-type]
