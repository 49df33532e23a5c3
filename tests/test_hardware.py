"""What "auto" in a configuration means; the GPU is simulated."""

import pytest
import torch
from torch.cuda._utils import _get_device_index

from lookfurther.presets import preset
from lookfurther.training.hardware import Hardware


@pytest.mark.parametrize(
    ("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)]
)
def test_configured_gpu_becomes_current(
    name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # Torch's own parsing of the argument, which needs a number, without a GPU to switch to.
    parse = _get_device_index
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(parse(device)))
    config = preset("apex-dqfd", env="ALE/Pong-v5", run__device=name, run__precision="float32")
    try:
        hardware = Hardware.resolve(config)
        hardware.configure_torch()
        assert hardware.device == torch.device(name.replace("auto", "cuda"))
        assert (hardware.precision, hardware.is_compiled) == (torch.float32, True)
        assert (hardware.threads, hardware.lane_groups) == (1, 2)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert current == [index]


@pytest.mark.parametrize(
    ("device", "processes", "is_concurrent"),
    [("cpu", 0, False), ("cpu", 1, True), ("cuda", 0, True)],
)
def test_learning_is_concurrent_only_on_other_cores(
    device: str, processes: int, is_concurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = preset(
        "apex-dqn", env="ALE/Pong-v5", run__device=device, run__precision="float32",
        environment__processes=processes,
    )  # fmt: skip
    assert Hardware.resolve(config).is_learning_concurrent == is_concurrent
