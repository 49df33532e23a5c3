"""The convolutions of the paper's two Atari networks as Triton kernels.

cuDNN needs separate kernels for workspaces, biases, ReLU and space-to-depth, and takes images as
bfloat16. Here each layer is one kernel forward and two backward, and the first layer reads images
as the replay stores them.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookfurther.gpu import conv_kernels
from lookfurther.networks.dueling import DuelingNetwork
from lookfurther.networks.single_stream import ScaleGradient
from lookfurther.networks.torsos import SpaceToDepth

kernels: Any = conv_kernels  # type checkers do not know launches, kernel[grid](...)

MIN_SHARED_MEMORY = 200 << 10  # bytes that BLOCK_CONFIGS need; Hopper has 227 KiB
REDUCE_BLOCK_N = 32  # columns per program of `reduce_partials`
REDUCE_LOADS_PER_THREAD = 32
CONV1_FOLD, CONV2_FOLD = 4, 2  # space-to-depth factors before the layers of `atari_torso`


class BlockConfig(NamedTuple):
    """Launch configuration of one kernel."""

    block_m: int  # positions per iteration
    block_k: int = 0  # GEMM columns per iteration
    block_n: int = 0  # output channels per program
    num_splits: int = 0  # programs that each sum over a part of the positions
    num_warps: int = 4
    num_stages: int = 2

    @property
    def launch_options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def blocks_per_program(self, num_positions: int) -> int:
        """Blocks of positions that each of the `num_splits` programs sums over."""
        return ceil(num_positions / (self.num_splits * self.block_m))


# By the numbers of output channels. `python -m benchmarks.kernels --search` found them on an H200.
BLOCK_CONFIGS: dict[tuple[int, ...], dict[str, BlockConfig]] = {
    (32, 64, 64): {
        "conv1_relu": BlockConfig(64, num_stages=1),
        "conv2_relu": BlockConfig(128, 64),
        "conv3_relu": BlockConfig(128, 64, num_warps=8, num_stages=3),
        "conv1_grad_weight": BlockConfig(64, num_splits=256),
        "conv2_grad_weight": BlockConfig(128, 128, num_splits=66),
        "conv3_grad_weight": BlockConfig(128, 64, num_splits=29, num_stages=3),
        "conv2_grad_input": BlockConfig(64, 64, 128),
        "conv3_grad_input": BlockConfig(64, 64, 64),
    },
    (64, 128, 128): {
        "conv1_relu": BlockConfig(128, num_warps=8, num_stages=1),
        "conv2_relu": BlockConfig(128, 64, num_stages=3),
        "conv3_relu": BlockConfig(128, 64, num_warps=8, num_stages=3),
        "conv1_grad_weight": BlockConfig(32, num_splits=256, num_stages=3),
        "conv2_grad_weight": BlockConfig(128, 128, num_splits=33),
        "conv3_grad_weight": BlockConfig(128, 128, num_splits=29),
        "conv2_grad_input": BlockConfig(64, 32, 128, num_stages=4),
        "conv3_grad_input": BlockConfig(64, 64, 128, num_stages=3),
    },
}


def is_supported(network: nn.Module, precision: torch.dtype) -> bool:
    """Whether these kernels can run a network on its device in this precision."""
    if not isinstance(network, DuelingNetwork) or not isinstance(network.inlet, SpaceToDepth):
        return False
    if not network.head.is_one_product:
        return False
    if any(isinstance(layer, ScaleGradient) for layer in network.torso.children()):
        return False
    device, (planes, *sides) = network.head.value.weight.device, network.spec.observation_shape
    if device.type != "cuda" or precision != torch.bfloat16 or network.spec.dtype != "uint8":
        return False
    is_power_of_2 = planes & (planes - 1) == 0
    is_divisible = not any(side % CONV1_FOLD for side in sides)
    shared_memory = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    has_config = conv_widths(network) in BLOCK_CONFIGS and shared_memory >= MIN_SHARED_MEMORY
    return is_power_of_2 and is_divisible and has_config


def conv_layers(network: DuelingNetwork) -> list[nn.Conv2d]:
    return [layer for layer in network.torso.children() if isinstance(layer, nn.Conv2d)]


def conv_widths(network: DuelingNetwork) -> tuple[int, ...]:
    """The output channels of each layer."""
    return tuple(layer.out_channels for layer in conv_layers(network))


def allocate_outputs(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Empty channels-last outputs of the three layers, the first after space-to-depth."""
    w1, w2, w3 = weights
    height, width = ((n // CONV1_FOLD - w1.shape[-1] + 1) // CONV2_FOLD for n in x.shape[2:])
    shapes = [(height, width, len(w1) * CONV2_FOLD * CONV2_FOLD)]
    for w in (w2, w3):
        height, width = height - w.shape[-1] + 1, width - w.shape[-1] + 1
        shapes.append((height, width, len(w)))
    return [w1.new_empty(len(x), *shape) for shape in shapes]


@torch.library.custom_op("lookfurther::conv_forward", mutates_args=())
def conv_forward(x: Tensor, scale: float, parameters: list[Tensor]) -> list[Tensor]:
    """The outputs of the three layers after ReLU; parameters are w1, b1, w2, b2, w3, b3."""
    w1, b1, w2, b2, w3, b3 = parameters
    configs = BLOCK_CONFIGS[len(w1), len(w2), len(w3)]
    y1, y2, y3 = outputs = allocate_outputs(x, parameters[::2])
    launch_conv1_relu(x, scale, w1, b1, y1, configs["conv1_relu"])
    launch_conv_relu(y1, w2, b2, y2, configs["conv2_relu"])
    launch_conv_relu(y2, w3, b3, y3, configs["conv3_relu"])
    return outputs


@conv_forward.register_fake
def _(x: Tensor, scale: float, parameters: list[Tensor]) -> list[Tensor]:
    return allocate_outputs(x, parameters[::2])


def conv_backward(
    x: Tensor, scale: float, outputs: list[Tensor], grad_output: Tensor, weights: list[Tensor]
) -> list[Tensor]:
    """Gradients of w1, b1, w2, b2, w3, b3; `grad_output` is that of the third layer before ReLU."""
    (y1, y2, _), (w1, w2, w3) = outputs, weights
    configs = BLOCK_CONFIGS[len(w1), len(w2), len(w3)]
    flat1, flat2, flat3 = flat_gradients = allocate_gradients(weights)
    grad_y2, grad_y1 = torch.empty_like(y2), torch.empty_like(y1)
    launch_conv_grad_input(grad_output, w3, y2, grad_y2, configs["conv3_grad_input"])
    launch_conv_grad_input(grad_y2, w2, y1, grad_y1, configs["conv2_grad_input"])
    launch_conv1_grad_weight(x, scale, grad_y1, w1, flat1, configs["conv1_grad_weight"])
    launch_conv_grad_weight(y1, grad_y2, w2, flat2, configs["conv2_grad_weight"])
    launch_conv_grad_weight(y2, grad_output, w3, flat3, configs["conv3_grad_weight"])
    pairs = zip(flat_gradients, weights, strict=True)
    return [gradient for flat, w in pairs for gradient in _split_gradient(flat, w)]


def allocate_gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    """Empty flat gradients of each layer: weights [C_OUT, K, K, C_IN], then biases [C_OUT]."""
    return [w.new_empty(w.numel() + len(w)) for w in weights]


def _split_gradient(flat: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the weights, with the shape and strides of w, and that of the biases."""
    c_out, c_in, k, _ = w.shape
    grad_weight = flat[: w.numel()].view(c_out, k, k, c_in).permute(0, 3, 1, 2)
    return grad_weight, flat[w.numel() :]


def launch_conv1_relu(
    x: Tensor, scale: float, w: Tensor, bias: Tensor, out: Tensor, config: BlockConfig
) -> None:
    """First layer, ReLU, space-to-depth; out [B, H, W, 4 C_OUT], w [C_OUT, 16 planes, K, K]."""
    c_out, num_positions = len(w), out.numel() // len(w)
    w_by_byte = w.permute(2, 3, 1, 0).reshape(-1, CONV1_FOLD, c_out).transpose(0, 1).contiguous()
    grid = (ceil(num_positions / config.block_m),)
    kernels.conv1_relu[grid](
        *(x.view(torch.int32), w_by_byte, bias, out, num_positions, scale),
        **_conv1_sizes(x, w, out),
        BLOCK_M=config.block_m,
        **config.launch_options,
    )


def _conv1_sizes(x: Tensor, w: Tensor, y: Tensor) -> dict[str, int]:
    """Sizes of the first layer: W in words of four pixels, H_OUT and W_OUT before folding."""
    _, planes, height, width = x.shape
    return {
        "PLANES": planes,
        "H": height,
        "W": width // CONV1_FOLD,
        "K": w.shape[-1],
        "H_OUT": y.shape[1] * CONV2_FOLD,
        "W_OUT": y.shape[2] * CONV2_FOLD,
        "C_OUT": len(w),
        "FOLD": CONV2_FOLD,
    }


def launch_conv_relu(x: Tensor, w: Tensor, bias: Tensor, out: Tensor, config: BlockConfig) -> None:
    """A layer and ReLU; x [B, H, W, C_IN], w [C_OUT, C_IN, K, K], out [B, H', W', C_OUT]."""
    sizes = _conv_sizes(x, w)
    num_positions = out.numel() // len(w)
    assert sizes["K"] * sizes["C_IN"] % config.block_k == 0
    grid = (ceil(num_positions / config.block_m),)
    kernels.conv_relu[grid](
        *(x, w, bias, out, num_positions),
        **sizes,
        BLOCK_M=config.block_m,
        BLOCK_K=config.block_k,
        **config.launch_options,
    )


def _conv_sizes(x: Tensor, w: Tensor) -> dict[str, int]:
    """Sizes of the second and third layers."""
    _, height, width, c_in = x.shape
    return {"H": height, "W": width, "C_IN": c_in, "K": w.shape[-1], "C_OUT": len(w)}


def launch_conv_grad_input(
    grad_output: Tensor, w: Tensor, x: Tensor, out: Tensor, config: BlockConfig
) -> None:
    """dL/dx of a layer, before the ReLU that gave x: 0 where x is 0."""
    sizes = _conv_sizes(x, w)
    c_in, num_positions = sizes["C_IN"], x.numel() // sizes["C_IN"]
    assert len(w) % config.block_k == 0 == c_in % config.block_n
    grid = (ceil(num_positions / config.block_m), c_in // config.block_n)
    kernels.conv_grad_input[grid](
        *(grad_output, w, x, out, num_positions),
        **sizes,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        **config.launch_options,
    )


def launch_conv_grad_weight(
    x: Tensor, grad_output: Tensor, w: Tensor, flat_gradient: Tensor, config: BlockConfig
) -> None:
    """dL/dw [C_OUT, K, K, C_IN] and dL/dbias [C_OUT] of a layer, into `flat_gradient`."""
    sizes = _conv_sizes(x, w)
    c_in, k = sizes["C_IN"], sizes["K"]
    num_positions, partials = (
        grad_output.numel() // len(w),
        _allocate_partials(flat_gradient, config),
    )
    assert k * c_in % config.block_k == 0
    grid = (k * k * c_in // config.block_k, config.num_splits)
    kernels.conv_grad_weight[grid](
        *(x, grad_output, partials, num_positions),
        BLOCKS_PER_PROGRAM=config.blocks_per_program(num_positions),
        **sizes,
        BLOCK_M=config.block_m,
        BLOCK_K=config.block_k,
        **config.launch_options,
    )
    launch_reduce_partials(partials, flat_gradient)


def launch_conv1_grad_weight(
    x: Tensor,
    scale: float,
    grad_output: Tensor,
    w: Tensor,
    flat_gradient: Tensor,
    config: BlockConfig,
) -> None:
    """The same for the first layer."""
    num_positions, partials = (
        grad_output.numel() // len(w),
        _allocate_partials(flat_gradient, config),
    )
    kernels.conv1_grad_weight[(config.num_splits,)](
        *(x.view(torch.int32), grad_output, partials, num_positions),
        BLOCKS_PER_PROGRAM=config.blocks_per_program(num_positions),
        **_conv1_sizes(x, w, grad_output),
        BLOCK_M=config.block_m,
        **config.launch_options,
    )
    launch_reduce_partials(partials, flat_gradient, scale, num_bytes=CONV1_FOLD, c_out=len(w))


def _allocate_partials(flat_gradient: Tensor, config: BlockConfig) -> Tensor:
    """Empty partial gradients, one row for each of the programs that sum over the positions."""
    return flat_gradient.new_empty(config.num_splits, len(flat_gradient), dtype=torch.float32)


def launch_reduce_partials(
    partials: Tensor, out: Tensor, scale: float = 1.0, num_bytes: int = 1, c_out: int = 1
) -> None:
    """The sum of partials [splits, n] over the splits, into out [n].

    Weights [num_bytes, words, c_out] are scaled and written as [c_out, words, num_bytes].
    """
    block_splits = 1 << (len(partials) - 1).bit_length()
    kernels.reduce_partials[(ceil(len(out) / REDUCE_BLOCK_N),)](
        *(partials, out, len(out), scale),
        NUM_SPLITS=len(partials),
        BYTES=num_bytes,
        WORDS=(len(out) - c_out) // (num_bytes * c_out),
        C_OUT=c_out,
        BLOCK_N=REDUCE_BLOCK_N,
        BLOCK_SPLITS=block_splits,
        num_warps=max(1, block_splits * REDUCE_BLOCK_N // (32 * REDUCE_LOADS_PER_THREAD)),
    )
