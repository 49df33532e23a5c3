"""GPU kernels under Triton's interpreter: same results as torch, no access outside their tensors.

On a GPU, `benchmarks.gpu` compares them with the CPU and with updates that do not use them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lookfurther.config import NetworkConfig
from lookfurther.networks.dueling import make_network_builder
from lookfurther.types import Spec

pytest.importorskip("triton", reason="triton is not installed: its interpreter checks the kernels")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a minute each on an idle machine, much longer under load
@pytest.mark.parametrize(
    "check",
    [
        "standard_network",
        "deeper_network",
        "heads",
        "compiled",
        "reduction",
        "adam_steps",
        "sampling",
        "batches",
        "updates",
        "bounds_checking",
    ],
)
def test_interpreted_kernels_equal_torch(check: str) -> None:
    """In a subprocess: Triton decides at import whether it interprets."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.triton_interpreter_checks", check],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_conv_kernels_are_not_supported_on_cpu() -> None:
    from lookfurther.gpu import conv

    spec = Spec("x", (1, 84, 84), 4, "uint8", 18, 255.0)
    network = make_network_builder(NetworkConfig(name="dueling"))(spec)
    assert not conv.is_supported(network, torch.bfloat16)
    assert conv.conv_widths(network) in conv.BLOCK_CONFIGS  # type: ignore[arg-type]
