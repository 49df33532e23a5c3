"""The convolutions of the paper's two Atari networks on a GPU, by kernels of their own.

cuDNN sets up workspaces for gradients, adds biases, rectifies and folds in kernels apart, and takes
images as bfloat16. Here a layer is one kernel forward and two backward, and images are taken as
replays hold them.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from lookfurther.gpu import conv_kernels
from lookfurther.networks import DuelingNetwork, SpaceToDepth

MIN_SHARED_MEMORY = (
    200 << 10
)  # bytes of shared memory that the blocks below are made for: Hopper's 227 KiB
REDUCE_COLUMNS, REDUCE_LOADS_PER_THREAD = (
    32,
    32,
)  # of a sum: columns of one program, and numbers that a thread loads at once
CONV2_FOLD, CONV1_FOLD = (
    2,
    4,
)  # the folds of `networks.atari_torso`: before its second and its first layer


class BlockConfig(NamedTuple):
    """The part of a product that one program makes, and how."""

    rows: int  # positions at a time
    inner: int = 0  # columns at a time
    width: int = 0  # of what comes out
    splits: int = 0  # programs that share a sum over all positions
    warps: int = 4
    stages: int = 2  # loads under way at once


# By the torso's widths; found by trying them all on an H200.
BLOCK_CONFIGS: dict[tuple[int, ...], dict[str, BlockConfig]] = {
    (32, 64, 64): {
        "first": BlockConfig(64, stages=1),
        "layer_2": BlockConfig(128, 64),
        "layer_3": BlockConfig(128, 64, warps=8, stages=3),
        "slope_1": BlockConfig(64, splits=256),
        "slope_2": BlockConfig(128, 128, splits=66),
        "slope_3": BlockConfig(128, 64, splits=29, stages=3),
        "image_2": BlockConfig(64, 64, 128),
        "image_3": BlockConfig(64, 64, 64),
    },
    (64, 128, 128): {
        "first": BlockConfig(128, warps=8, stages=1),
        "layer_2": BlockConfig(128, 64, stages=3),
        "layer_3": BlockConfig(128, 64, warps=8, stages=3),
        "slope_1": BlockConfig(32, splits=256, stages=3),
        "slope_2": BlockConfig(128, 128, splits=33),
        "slope_3": BlockConfig(128, 128, splits=29),
        "image_2": BlockConfig(64, 32, 128, stages=4),
        "image_3": BlockConfig(64, 64, 128, stages=3),
    },
}


def fit(network: nn.Module, precision: torch.dtype) -> bool:
    """Whether a network on a GPU is one that these kernels are for."""
    if not isinstance(network, DuelingNetwork) or not isinstance(network.inlet, SpaceToDepth):
        return False
    where, (planes, *sides) = network.head.value.weight.device, network.spec.observation_shape
    if where.type != "cuda" or precision != torch.bfloat16 or network.spec.dtype != "uint8":
        return False
    powers = planes & (planes - 1) == 0 and not any(side % CONV1_FOLD for side in sides)
    room = torch.cuda.get_device_properties(where).shared_memory_per_block_optin
    return powers and conv_widths(network) in BLOCK_CONFIGS and room >= MIN_SHARED_MEMORY


def conv_layers(network: DuelingNetwork) -> list[nn.Conv2d]:
    return [layer for layer in network.torso.children() if isinstance(layer, nn.Conv2d)]


def conv_widths(network: DuelingNetwork) -> tuple[int, ...]:
    return tuple(layer.out_channels for layer in conv_layers(network))


def allocate_outputs(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Room for what the layers give, channels last; the first folded for the second."""
    (w1, w2, w3), sides = weights, x.shape[2:]
    rows, columns = ((side // CONV1_FOLD - w1.shape[-1] + 1) // CONV2_FOLD for side in sides)
    shapes = [(rows, columns, len(w1) * CONV2_FOLD * CONV2_FOLD)]
    for w in (w2, w3):
        rows, columns = rows - w.shape[-1] + 1, columns - w.shape[-1] + 1
        shapes.append((rows, columns, len(w)))
    return [w1.new_empty(len(x), *shape) for shape in shapes]


@torch.library.custom_op("lookfurther::layers", mutates_args=())
def conv_forward(x: Tensor, scale: float, learned: list[Tensor]) -> list[Tensor]:
    """The three rectified layers of images; weights and biases by turns."""
    w1, b1, w2, b2, w3, b3 = learned
    blocks = BLOCK_CONFIGS[len(w1), len(w2), len(w3)]
    y1, y2, y3 = out = allocate_outputs(x, learned[::2])
    launch_conv1_relu(x, scale, w1, b1, y1, blocks["first"])
    launch_conv_relu(y1, w2, b2, y2, blocks["layer_2"])
    launch_conv_relu(y2, w3, b3, y3, blocks["layer_3"])
    return out


@conv_forward.register_fake
def _(x: Tensor, scale: float, learned: list[Tensor]) -> list[Tensor]:
    return allocate_outputs(x, learned[::2])


def conv_backward(
    x: Tensor, scale: float, outputs: list[Tensor], grad_output: Tensor, weights: list[Tensor]
) -> list[Tensor]:
    """The gradients of weights and biases by turns, of the third layer's slope."""
    (y1, y2, _), (w1, w2, w3) = outputs, weights
    blocks = BLOCK_CONFIGS[len(w1), len(w2), len(w3)]
    row1, row2, row3 = rows = allocate_gradients(weights)
    launch_conv_grad_input(grad_output, w3, y2, g2 := torch.empty_like(y2), blocks["image_3"])
    launch_conv_grad_input(g2, w2, y1, g1 := torch.empty_like(y1), blocks["image_2"])
    launch_conv1_grad_weight(x, scale, g1, w1, row1, blocks["slope_1"])
    launch_conv_grad_weight(y1, g2, w2, row2, blocks["slope_2"])
    launch_conv_grad_weight(y2, grad_output, w3, row3, blocks["slope_3"])
    return [part for row, w in zip(rows, weights, strict=True) for part in _split_gradient(row, w)]


def allocate_gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    """Room for the gradients of each layer's weights [o, k, k, c], then its biases [o]."""
    return [w.new_empty(w.numel() + len(w)) for w in weights]


def _split_gradient(row: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Both, the first in the shape of w, whose order in memory it has."""
    o, c, k, _ = w.shape
    return row[: w.numel()].view(o, k, k, c).permute(0, 3, 1, 2), row[w.numel() :]


def launch_conv1_relu(
    x: Tensor, scale: float, w: Tensor, bias: Tensor, out: Tensor, blocks: BlockConfig
) -> None:
    """The rectified first layer, folded [B, rows, columns, o 4]; w [o, planes 16, k, k]."""
    o, count = len(w), out.numel() // len(w)
    by_place = w.permute(2, 3, 1, 0).reshape(-1, CONV1_FOLD, o).transpose(0, 1).contiguous()
    _launch(
        conv_kernels.conv1_relu,
        (ceil(count / blocks.rows),),
        blocks,
        *(
            x.view(torch.int32),
            by_place,
            bias,
            out,
            count,
            scale,
            *_conv1_sizes(x, w, out),
            o,
            CONV2_FOLD,
        ),
        blocks.rows,
    )


def _conv1_sizes(x: Tensor, w: Tensor, y: Tensor) -> tuple[int, ...]:
    """Of images planes, height and width in words; the kernel's side; y's sides unfolded."""
    _, planes, high, wide = x.shape
    return (
        planes,
        high,
        wide // CONV1_FOLD,
        w.shape[-1],
        y.shape[1] * CONV2_FOLD,
        y.shape[2] * CONV2_FOLD,
    )


def launch_conv_relu(x: Tensor, w: Tensor, bias: Tensor, out: Tensor, blocks: BlockConfig) -> None:
    """A rectified layer [B, rows, columns, o] of images [B, H, W, c]; w [o, c, k, k]."""
    _, high, wide, c = x.shape
    o, _, k, _ = w.shape
    count = out.numel() // o
    assert k * c % blocks.inner == 0
    _launch(
        conv_kernels.conv_relu,
        (ceil(count / blocks.rows),),
        blocks,
        *(x, w, bias, out, count, high, wide, c, k, o, blocks.rows, blocks.inner),
    )


def launch_conv_grad_input(
    g: Tensor, w: Tensor, x: Tensor, out: Tensor, blocks: BlockConfig
) -> None:
    """dL/dx of a layer with slopes g, before x was rectified: 0 where x is."""
    _, high, wide, c = x.shape
    o, _, k, _ = w.shape
    count = x.numel() // c
    assert o % blocks.inner == 0 == c % blocks.width
    _launch(
        conv_kernels.conv_grad_input,
        (ceil(count / blocks.rows), c // blocks.width),
        blocks,
        *(g, w, x, out, count, high, wide, c, k, o, blocks.rows, blocks.width, blocks.inner),
    )


def launch_conv_grad_weight(
    x: Tensor, g: Tensor, w: Tensor, row: Tensor, blocks: BlockConfig
) -> None:
    """dL/dw [o, k, k, c] and dL/dbias [o] of a layer with slopes g."""
    _, high, wide, c = x.shape
    o, _, k, _ = w.shape
    count, parts = g.numel() // o, _allocate_partials(row, blocks)
    assert k * c % blocks.inner == 0
    _launch(
        conv_kernels.conv_grad_weight,
        (k * k * c // blocks.inner, blocks.splits),
        blocks,
        *(x, g, parts, count, _blocks_per_program(count, blocks), high, wide, c, k, o),
        *(blocks.rows, blocks.inner),
    )
    launch_reduce_partials(parts, row)


def launch_conv1_grad_weight(
    x: Tensor, scale: float, g: Tensor, w: Tensor, row: Tensor, blocks: BlockConfig
) -> None:
    """The same of the first layer."""
    o, count, parts = len(w), g.numel() // len(w), _allocate_partials(row, blocks)
    _launch(
        conv_kernels.conv1_grad_weight,
        (blocks.splits,),
        blocks,
        *(x.view(torch.int32), g, parts, count, _blocks_per_program(count, blocks)),
        *(*_conv1_sizes(x, w, g), o, CONV2_FOLD, blocks.rows),
    )
    launch_reduce_partials(parts, row, scale, CONV1_FOLD, o)


def _allocate_partials(row: Tensor, blocks: BlockConfig) -> Tensor:
    """Room for gradients over a share of the positions each."""
    return row.new_empty(blocks.splits, len(row), dtype=torch.float32)


def launch_reduce_partials(
    parts: Tensor, row: Tensor, scale: float = 1.0, places: int = 1, o: int = 1
) -> None:
    """The sum of all shares.

    Weights [places, words, o] come out as [o, words, places], `scale` times what they are.
    """
    shares = 1 << (len(parts) - 1).bit_length()
    words = (len(row) - o) // (places * o)
    cast(Any, conv_kernels.reduce_partials)[(ceil(len(row) / REDUCE_COLUMNS),)](
        *(parts, row, len(row), scale, len(parts), places, words, o, REDUCE_COLUMNS, shares),
        num_warps=max(1, shares * REDUCE_COLUMNS // (32 * REDUCE_LOADS_PER_THREAD)),
    )


def _launch(kernel: Any, grid: tuple[int, ...], blocks: BlockConfig, *arguments: Any) -> None:
    kernel[grid](*arguments, num_warps=blocks.warps, num_stages=blocks.stages)


def _blocks_per_program(count: int, blocks: BlockConfig) -> int:
    """Blocks of positions for each program that shares a sum."""
    return ceil(count / (blocks.splits * blocks.rows))
