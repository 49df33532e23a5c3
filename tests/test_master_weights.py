"""The compute network in another precision, and copies between networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lookfurther.config import NetworkConfig
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.networks.heads import DuelingHead
from lookfurther.types import Spec

SPEC = Spec("toy", (5,), 1, "float32", 4, 1.0)


def make_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make_network_builder(NetworkConfig(hidden=(16, 8)))(SPEC)


def test_float32_computes_with_master_network() -> None:
    weights = MasterWeights(make_network(), torch.float32)
    assert weights.compute_network is weights.network
    assert not weights.master_tensors


def test_compute_network_is_rounded_except_heads() -> None:
    weights = MasterWeights(make_network(), torch.bfloat16)
    computed = dict(weights.compute_network.named_parameters())
    heads = {f"head.{n}" for n, _ in weights.network.head.named_parameters()}  # type: ignore[union-attr, operator]
    assert len(heads) == 4
    for name, p in weights.network.named_parameters():
        if name in heads:
            assert computed[name] is p
        else:
            assert computed[name].dtype == torch.bfloat16
            assert torch.equal(computed[name], p.to(torch.bfloat16))


def test_compute_network_changes_on_refresh_only() -> None:
    weights = MasterWeights(make_network(), torch.bfloat16)
    before = copy.deepcopy(weights.compute_network.state_dict())
    with torch.no_grad():
        for p in weights.network.parameters():
            p.add_(1.0)
    stale = weights.compute_network.state_dict()
    assert torch.equal(stale["streams.first.weight"], before["streams.first.weight"])
    weights.refresh_compute_network()
    for master, compute in zip(weights.master_tensors, weights.compute_tensors, strict=True):
        assert torch.equal(compute, master.to(torch.bfloat16))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_copy_is_independent_of_source(precision: torch.dtype) -> None:
    one, two = MasterWeights(make_network(0), precision), MasterWeights(make_network(1), precision)
    two.copy_(one)
    x = torch.randn(3, 5)
    with one.autocast():
        assert torch.equal(one.compute_network(x), two.compute_network(x))
    with torch.no_grad():
        next(one.network.parameters()).add_(1.0)
    one.refresh_compute_network()
    with one.autocast():
        assert not torch.equal(one.compute_network(x), two.compute_network(x))


def test_buffers_are_shared() -> None:
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4))
    weights = MasterWeights(module, torch.bfloat16)
    module[0].running_mean.fill_(7.0)  # type: ignore[union-attr, operator]
    assert weights.compute_network[0].running_mean is module[0].running_mean  # type: ignore[index]


def test_heads_resolve_large_values_in_bfloat16() -> None:
    """Near 200, bfloat16 alone could represent only whole numbers."""
    head = DuelingHead(2, 1)
    with torch.no_grad():
        head.value.weight.copy_(torch.tensor([[200.0, 0.25]]))
        head.value.bias.zero_()
    x = torch.tensor([[1.0, 0.0, 9, 9], [1.0, 1.0, 9, 9]], dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(x).flatten().tolist() == [200.0, 200.25]
