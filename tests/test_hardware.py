"""What a configuration's "auto" stands for; the GPU is only claimed."""

import pytest
import torch
from torch.cuda._utils import _get_device_index

from lookfurther.config import replace
from lookfurther.presets import preset
from lookfurther.training import hardware


@pytest.mark.parametrize(
    ("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)]
)
def test_the_gpu_that_is_named_is_made_current(
    name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # Torch's own reading of what it is given, which wants a number, but no GPU to switch to.
    read = _get_device_index
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(read(device)))
    config = preset("apex-dqfd", env="ALE/Pong-v5", run__device=name, run__precision="float32")
    try:
        assert hardware.configure_torch(config) == (torch.device(name.replace("auto", "cuda")),
                                               torch.float32, True)  # fmt: skip
    finally:
        torch.set_float32_matmul_precision("highest")
    assert current == [index]


@pytest.mark.parametrize(
    ("device", "processes", "beside"), [("cpu", 0, False), ("cpu", 1, True), ("cuda", 0, True)]
)
def test_a_learner_learns_beside_environments_on_other_cores_than_its_own(
    device: str, processes: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = preset("apex-dqn", env="ALE/Pong-v5", run__device=device)
    assert (
        hardware.is_learning_concurrent(replace(config, environment__processes=processes)) == beside
    )
