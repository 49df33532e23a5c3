"""Triton kernels for convolutions with stride 1: implicit GEMMs on channels-last images.

One row of the GEMM is one output position (image, row, column); its columns are the inputs that the
convolution kernel covers there. H, W and C_IN describe the input images, K is the side of the
convolution kernel, C_OUT the number of output channels. BLOCK_M, BLOCK_N and BLOCK_K are positions,
channels and GEMM columns per iteration. Sums run in a fixed order, so results are reproducible.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unravel_position(position, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The image, row and column of a position."""
    return position // (ROWS * COLUMNS), position // COLUMNS % ROWS, position % COLUMNS


@triton.jit
def _folded_offset(
    image,
    row,
    column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    C_OUT: tl.constexpr,
    FOLD: tl.constexpr,
):
    """Offset of a position's first channel in space-to-depth layout."""
    cell = (image * (ROWS // FOLD) + row // FOLD) * (COLUMNS // FOLD) + column // FOLD
    return (cell * FOLD * FOLD + row % FOLD * FOLD + column % FOLD) * C_OUT


@triton.jit
def _load_words(
    x_ptr,
    offs_word,
    image,
    row,
    column,
    mask_m,
    PLANES: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
):
    """The int32 words (four pixels each) under the convolution kernel, in the weights' order.

    Neighbouring columns are adjacent in memory, so words are rows here and positions are columns.
    """
    dy, dx = offs_word // (K * PLANES * 4), offs_word // (PLANES * 4) % K
    plane, line = offs_word // 4 % PLANES, offs_word % 4
    offset = (plane * H + dy * 4 + line) * W + dx
    start = (image * PLANES * H + row * 4) * W + column
    return tl.load(x_ptr + offset[:, None] + start[None, :], mask=mask_m[None, :], other=0)


@triton.jit
def _unpack_pixel(words, byte: tl.constexpr):
    """One of the four pixels of each word as float32.

    The pixel becomes the low bits of a float of 2^23, from which 2^23 is subtracted. A GPU has more
    units for subtractions than for conversions.
    """
    bits = ((words >> (8 * byte)) & 255) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def conv1_relu(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    num_positions,
    scale,
    PLANES: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    H_OUT: tl.constexpr,
    W_OUT: tl.constexpr,
    C_OUT: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """First layer, ReLU and space-to-depth of words [B, PLANES, H, W]; w [4, words, C_OUT]."""
    offs_m, offs_n = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, C_OUT)
    image, row, column = _unravel_position(offs_m, H_OUT, W_OUT)
    mask_m = offs_m < num_positions
    offs_word = tl.arange(0, K * K * PLANES * 4)
    words = tl.trans(_load_words(x_ptr, offs_word, image, row, column, mask_m, PLANES, H, W, K))
    w_ptrs = w_ptr + offs_word[:, None] * C_OUT + offs_n[None, :]
    acc = tl.zeros((BLOCK_M, C_OUT), tl.float32)
    for byte in tl.static_range(4):
        pixels = _unpack_pixel(words, byte).to(w_ptr.dtype.element_ty)
        w = tl.load(w_ptrs + byte * (K * K * PLANES * 4 * C_OUT))
        acc = tl.dot(pixels, w, acc, input_precision="ieee")
    y = tl.maximum(acc * scale + tl.load(bias_ptr + offs_n)[None, :].to(tl.float32), 0.0)
    offset = _folded_offset(image, row, column, H_OUT, W_OUT, C_OUT, FOLD)
    out_ptrs = out_ptr + (offset[:, None] + offs_n[None, :])
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask_m[:, None])


@triton.jit
def conv1_grad_weight(
    x_ptr,
    grad_ptr,
    partials_ptr,
    num_positions,
    BLOCKS_PER_PROGRAM: tl.constexpr,
    PLANES: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    H_OUT: tl.constexpr,
    W_OUT: tl.constexpr,
    C_OUT: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Partial dL/dw [4, words, C_OUT], then dL/dbias [C_OUT], over one program's positions."""
    WORDS: tl.constexpr = K * K * PLANES * 4
    split, offs_word, offs_n = tl.program_id(0), tl.arange(0, WORDS), tl.arange(0, C_OUT)
    zero, grad_bias = tl.zeros((WORDS, C_OUT), tl.float32), tl.zeros((C_OUT,), tl.float32)
    acc0, acc1, acc2, acc3 = zero, zero, zero, zero
    for block in range(BLOCKS_PER_PROGRAM):
        offs_m = (split * BLOCKS_PER_PROGRAM + block) * BLOCK_M + tl.arange(0, BLOCK_M)
        image, row, column = _unravel_position(offs_m, H_OUT, W_OUT)
        mask_m = offs_m < num_positions
        words = _load_words(x_ptr, offs_word, image, row, column, mask_m, PLANES, H, W, K)
        offset = _folded_offset(image, row, column, H_OUT, W_OUT, C_OUT, FOLD)
        grad_ptrs = grad_ptr + (offset[:, None] + offs_n[None, :])
        grad = tl.load(grad_ptrs, mask=mask_m[:, None], other=0.0)
        acc0 = tl.dot(_unpack_pixel(words, 0).to(grad.dtype), grad, acc0, input_precision="ieee")
        acc1 = tl.dot(_unpack_pixel(words, 1).to(grad.dtype), grad, acc1, input_precision="ieee")
        acc2 = tl.dot(_unpack_pixel(words, 2).to(grad.dtype), grad, acc2, input_precision="ieee")
        acc3 = tl.dot(_unpack_pixel(words, 3).to(grad.dtype), grad, acc3, input_precision="ieee")
        grad_bias += tl.sum(grad.to(tl.float32), 0)
    partial_ptr = partials_ptr + split * (4 * WORDS * C_OUT + C_OUT)
    out_ptrs = partial_ptr + offs_word[:, None] * C_OUT + offs_n[None, :]
    tl.store(out_ptrs, acc0)
    tl.store(out_ptrs + WORDS * C_OUT, acc1)
    tl.store(out_ptrs + 2 * WORDS * C_OUT, acc2)
    tl.store(out_ptrs + 3 * WORDS * C_OUT, acc3)
    tl.store(partial_ptr + 4 * WORDS * C_OUT + offs_n, grad_bias)


@triton.jit
def conv_relu(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    num_positions,
    H: tl.constexpr,
    W: tl.constexpr,
    C_IN: tl.constexpr,
    K: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A layer and ReLU, [positions, C_OUT]; w [C_OUT, K K C_IN]."""
    offs_m, offs_n = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, C_OUT)
    offs_k = tl.arange(0, BLOCK_K)
    image, row, column = _unravel_position(offs_m, H - K + 1, W - K + 1)
    mask_m = offs_m < num_positions
    start = ((image * H + row) * W + column) * C_IN
    acc = tl.zeros((BLOCK_M, C_OUT), tl.float32)
    for block in range(K * K * C_IN // BLOCK_K):
        dy, first_k = block // (K * C_IN // BLOCK_K), block % (K * C_IN // BLOCK_K) * BLOCK_K
        x_ptrs = x_ptr + (start[:, None] + (dy * W * C_IN + first_k + offs_k)[None, :])
        x = tl.load(x_ptrs, mask=mask_m[:, None], other=0.0)
        w_ptrs = w_ptr + offs_n[:, None] * (K * K * C_IN) + (block * BLOCK_K + offs_k)[None, :]
        acc = tl.dot(x, tl.trans(tl.load(w_ptrs)), acc, input_precision="ieee")
    y = tl.maximum(acc + tl.load(bias_ptr + offs_n)[None, :].to(tl.float32), 0.0)
    out_ptrs = out_ptr + (offs_m * C_OUT)[:, None] + offs_n[None, :]
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask_m[:, None])


@triton.jit
def conv_grad_weight(
    x_ptr,
    grad_ptr,
    partials_ptr,
    num_positions,
    BLOCKS_PER_PROGRAM: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C_IN: tl.constexpr,
    K: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Partial dL/dw [C_OUT, K K C_IN], then dL/dbias [C_OUT], over one program's positions."""
    block_k, split = tl.program_id(0), tl.program_id(1)
    dy, first_k = block_k // (K * C_IN // BLOCK_K), block_k % (K * C_IN // BLOCK_K) * BLOCK_K
    offs_k, offs_n = tl.arange(0, BLOCK_K), tl.arange(0, C_OUT)
    acc, grad_bias = tl.zeros((BLOCK_K, C_OUT), tl.float32), tl.zeros((C_OUT,), tl.float32)
    for block in range(BLOCKS_PER_PROGRAM):
        offs_m = (split * BLOCKS_PER_PROGRAM + block) * BLOCK_M + tl.arange(0, BLOCK_M)
        image, row, column = _unravel_position(offs_m, H - K + 1, W - K + 1)
        mask_m = (offs_m < num_positions)[:, None]
        start = ((image * H + row + dy) * W + column) * C_IN + first_k
        x = tl.load(x_ptr + start[:, None] + offs_k[None, :], mask=mask_m, other=0.0)
        grad_ptrs = grad_ptr + (offs_m * C_OUT)[:, None] + offs_n[None, :]
        grad = tl.load(grad_ptrs, mask=mask_m, other=0.0)
        acc = tl.dot(tl.trans(x), grad, acc, input_precision="ieee")
        if block_k == 0:
            grad_bias += tl.sum(grad.to(tl.float32), 0)
    partial_ptr = partials_ptr + split * (C_OUT * K * K * C_IN + C_OUT)
    columns = (block_k * BLOCK_K + offs_k)[None, :]
    tl.store(partial_ptr + offs_n[:, None] * (K * K * C_IN) + columns, tl.trans(acc))
    if block_k == 0:
        tl.store(partial_ptr + C_OUT * K * K * C_IN + offs_n, grad_bias)


@triton.jit
def conv_grad_input(
    grad_ptr,
    w_ptr,
    x_ptr,
    out_ptr,
    num_positions,
    H: tl.constexpr,
    W: tl.constexpr,
    C_IN: tl.constexpr,
    K: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """dL/dx [positions, C_IN] from dL/dy [positions, C_OUT], masked by the ReLU that gave x."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k, H_OUT, W_OUT = tl.arange(0, BLOCK_K), H - K + 1, W - K + 1
    image, row, column = _unravel_position(offs_m, H, W)
    start = ((image * H_OUT + row) * W_OUT + column) * C_OUT
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(K * K * C_OUT // BLOCK_K):
        tap, first_k = block // (C_OUT // BLOCK_K), block % (C_OUT // BLOCK_K) * BLOCK_K
        dy, dx = tap // K, tap % K
        inside = (row >= dy) & (row - dy < H_OUT) & (column >= dx) & (column - dx < W_OUT)
        mask = (inside & (offs_m < num_positions))[:, None]
        offset = start - (dy * W_OUT + dx) * C_OUT + first_k
        grad = tl.load(grad_ptr + (offset[:, None] + offs_k[None, :]), mask=mask, other=0.0)
        w_ptrs = w_ptr + (((first_k + offs_k) * K * K + tap) * C_IN)[:, None] + offs_n[None, :]
        acc = tl.dot(grad, tl.load(w_ptrs), acc, input_precision="ieee")
    offset, mask_m = (offs_m * C_IN)[:, None] + offs_n[None, :], (offs_m < num_positions)[:, None]
    is_active = tl.load(x_ptr + offset, mask=mask_m, other=0.0) > 0
    grad_x = tl.where(is_active, acc, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offset, grad_x, mask=mask_m)


@triton.jit
def reduce_partials(
    partials_ptr,
    out_ptr,
    size,
    scale,
    NUM_SPLITS: tl.constexpr,
    BYTES: tl.constexpr,
    WORDS: tl.constexpr,
    C_OUT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Sum of partials [NUM_SPLITS, size] over the splits; BLOCK_SPLITS >= NUM_SPLITS.

    The first BYTES * WORDS * C_OUT columns are weights [BYTES, WORDS, C_OUT]. They are scaled and
    written as [C_OUT, WORDS, BYTES].
    """
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_split = tl.arange(0, BLOCK_SPLITS)
    mask_n, is_weight = offs_n < size, offs_n < BYTES * WORDS * C_OUT
    mask = (offs_split < NUM_SPLITS)[:, None] & mask_n[None, :]
    partial_ptrs = partials_ptr + offs_split[:, None] * size + offs_n[None, :]
    acc = tl.sum(tl.load(partial_ptrs, mask=mask, other=0.0), 0)
    transposed = (offs_n % C_OUT * WORDS + offs_n // C_OUT % WORDS) * BYTES
    transposed += offs_n // (C_OUT * WORDS)
    acc = tl.where(is_weight, acc * scale, acc)
    out_ptrs = out_ptr + tl.where(is_weight, transposed, offs_n)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_n)
