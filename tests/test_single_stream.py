"""Networks with one stream, as in DQN and C51, and rescaled gradients into the convolutions."""

from __future__ import annotations

import math
from operator import attrgetter

import pytest
import torch

from lookfurther.config import NetworkConfig
from lookfurther.networks.dueling import (
    head_outputs,
    make_head,
    make_network_builder,
    prepare_inputs,
)
from lookfurther.networks.single_stream import ScaleGradient
from lookfurther.types import Spec

VECTOR = Spec("x", (3,), 1, "float32", 4, 1.0)
IMAGE = Spec("y", (1, 6, 6), 2, "uint8", 4, 255.0)


def test_single_stream_is_a_chain_of_linear_layers() -> None:
    network = make_network_builder(NetworkConfig(hidden=(8, 5), dueling=False))(VECTOR)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    tensors = list(network.parameters())
    assert [tuple(p.shape) for p in tensors] == [(8, 3), (8,), (5, 8), (5,), (4, 5), (4,)]
    w1, b1, w2, b2, w3, b3 = tensors
    expected = ((x @ w1.T + b1).relu() @ w2.T + b2).relu() @ w3.T + b3
    assert torch.allclose(network(x), expected, atol=1e-6)


CATEGORICAL = NetworkConfig(
    hidden=(5,), dueling=False, head="categorical", atoms=3, v_min=-1.0, v_max=2.0
)


def test_distributions_of_single_stream_match_slow_reference() -> None:
    """Atoms -1, 0.5 and 2: Q is their mean, weighted by the softmax of each action's logits."""
    network = make_network_builder(CATEGORICAL)(VECTOR)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    tensors = list(network.parameters())
    assert [tuple(p.shape) for p in tensors] == [(5, 3), (5,), (4 * 3, 5), (4 * 3,)]
    w1, b1, w2, b2 = tensors
    rows = (x @ w1.T + b1).relu() @ w2.T + b2
    logits, q = head_outputs(network, prepare_inputs(network, x)), network(x)
    for i, row in enumerate(rows.tolist()):
        for a in range(4):
            expected = row[3 * a : 3 * a + 3]
            assert logits[i, a].tolist() == pytest.approx(expected, abs=1e-6)
            low, middle, high = (math.exp(logit) for logit in expected)
            value = (-1 * low + 0.5 * middle + 2 * high) / (low + middle + high)
            assert q[i, a].item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    "config", [NetworkConfig(dueling=False), CATEGORICAL], ids=attrgetter("head")
)
def test_heads_of_single_stream_compute_in_float32(config: NetworkConfig) -> None:
    head = make_head(config, 5, 4)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = head(x)
    assert outputs.dtype == torch.float32
    assert torch.equal(outputs, head(x.float()))


def test_scale_gradient_is_the_identity_with_a_smaller_gradient() -> None:
    x = torch.randn(5, requires_grad=True, generator=torch.Generator().manual_seed(0))
    y = ScaleGradient(0.25)(x)
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad((y**2).sum(), x)
    assert torch.allclose(gradient, 0.25 * 2 * x)


@pytest.mark.parametrize("dueling", [True, False])
def test_only_convolutions_get_rescaled_gradients(dueling: bool) -> None:
    """The values are equal in every bit, and so are the gradients of streams and head."""
    images = torch.randint(256, (3, 2, 6, 6), generator=torch.Generator().manual_seed(0))
    found = []
    for scale in (1.0, 0.5):
        torch.manual_seed(0)
        config = NetworkConfig(dueling=dueling, torso_gradient_scale=scale)
        network = make_network_builder(config)(IMAGE)
        q = network(images.to(torch.uint8))
        names = [name for name, _ in network.named_parameters()]
        gradients = torch.autograd.grad(q.square().sum(), list(network.parameters()))
        found.append((q, dict(zip(names, gradients, strict=True))))
    (q, plain), (q_scaled, scaled) = found
    assert torch.equal(q, q_scaled)
    for name, gradient in plain.items():
        factor = 0.5 if name.startswith("torso") else 1.0
        assert torch.allclose(scaled[name], factor * gradient, atol=1e-7), name
