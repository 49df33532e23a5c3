"""Convolutions as GPU kernels, in Triton: implicit matrix products on channels-last images.

A position (image, row, column) is a row of a product; what the kernel sees from there are its
columns. Names: `high`, `wide` and c of the images that come in, k the side of the kernel, o the
channels that come out; `bm`, `bk` and `bn` positions, columns and channels at a time. Blocks are
summed in one order, so that the same numbers come out every time.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unravel_position(p, rows: tl.constexpr, columns: tl.constexpr):
    """The image, row and column of position p."""
    return p // (rows * columns), p // columns % rows, p % columns


@triton.jit
def _folded_offset(
    b, i, j, rows: tl.constexpr, columns: tl.constexpr, o: tl.constexpr, fold: tl.constexpr
):
    """Where the channels of a position begin in folded memory."""
    cell = (b * (rows // fold) + i // fold) * (columns // fold) + j // fold
    return (cell * fold * fold + i % fold * fold + j % fold) * o


@triton.jit
def _load_words(
    x,
    kw,
    b,
    i,
    j,
    inside,
    planes: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    k: tl.constexpr,
):
    """The words that the kernel sees from positions, in the order kw of the weights.

    Neighbours in a row lie side by side, hence words down and positions across.
    """
    dy, dx, plane, row = kw // (k * planes * 4), kw // (planes * 4) % k, kw // 4 % planes, kw % 4
    there = (plane * high + dy * 4 + row) * wide + dx
    start = (b * planes * high + i * 4) * wide + j
    return tl.load(x + there[:, None] + start[None, :], mask=inside[None, :], other=0)


@triton.jit
def _unpack_pixel(words, place: tl.constexpr):
    """One of the four pixels of each word, by way of the last bits of a float of 2^23 and more.

    A subtraction in place of a conversion, for which a GPU has fewer units.
    """
    bits = ((words >> (8 * place)) & 255) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def conv1_relu(
    x,
    w,
    bias,
    out,
    count,
    scale,
    planes: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    k: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    o: tl.constexpr,
    fold: tl.constexpr,
    bm: tl.constexpr,
):
    """The rectified and folded first layer of words [B, planes, high, wide]; w [4, words, o]."""
    p, ko = tl.program_id(0) * bm + tl.arange(0, bm), tl.arange(0, o)
    b, i, j = _unravel_position(p, rows, columns)
    inside = p < count
    kw = tl.arange(0, k * k * planes * 4)
    words = tl.trans(_load_words(x, kw, b, i, j, inside, planes, high, wide, k))
    weights = w + kw[:, None] * o + ko[None, :]
    acc = tl.zeros((bm, o), tl.float32)
    for place in tl.static_range(4):
        pixels = _unpack_pixel(words, place).to(w.dtype.element_ty)
        weight = tl.load(weights + place * (k * k * planes * 4 * o))
        acc = tl.dot(pixels, weight, acc, input_precision="ieee")
    y = tl.maximum(acc * scale + tl.load(bias + ko)[None, :].to(tl.float32), 0.0)
    to = _folded_offset(b, i, j, rows, columns, o, fold)[:, None] + ko[None, :]
    tl.store(out + to, y.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def conv1_grad_weight(
    x,
    g,
    parts,
    count,
    turns: tl.constexpr,
    planes: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    k: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    o: tl.constexpr,
    fold: tl.constexpr,
    bm: tl.constexpr,
):
    """Of a share of the positions: dL/dw [4, k k planes 4, o], then dL/dbias [o]."""
    n: tl.constexpr = k * k * planes * 4
    s, kw, ko = tl.program_id(0), tl.arange(0, n), tl.arange(0, o)
    zero, total = tl.zeros((n, o), tl.float32), tl.zeros((o,), tl.float32)
    w0, w1, w2, w3 = zero, zero, zero, zero
    for turn in range(turns):
        p = (s * turns + turn) * bm + tl.arange(0, bm)
        b, i, j = _unravel_position(p, rows, columns)
        inside = p < count
        words = _load_words(x, kw, b, i, j, inside, planes, high, wide, k)
        at = _folded_offset(b, i, j, rows, columns, o, fold)[:, None] + ko[None, :]
        slope = tl.load(g + at, mask=inside[:, None], other=0.0)
        w0 = tl.dot(_unpack_pixel(words, 0).to(slope.dtype), slope, w0, input_precision="ieee")
        w1 = tl.dot(_unpack_pixel(words, 1).to(slope.dtype), slope, w1, input_precision="ieee")
        w2 = tl.dot(_unpack_pixel(words, 2).to(slope.dtype), slope, w2, input_precision="ieee")
        w3 = tl.dot(_unpack_pixel(words, 3).to(slope.dtype), slope, w3, input_precision="ieee")
        total += tl.sum(slope.to(tl.float32), 0)
    part = parts + s * (4 * n * o + o)
    to = part + kw[:, None] * o + ko[None, :]
    tl.store(to, w0)
    tl.store(to + n * o, w1)
    tl.store(to + 2 * n * o, w2)
    tl.store(to + 3 * n * o, w3)
    tl.store(part + 4 * n * o + ko, total)


@triton.jit
def conv_relu(
    x,
    w,
    bias,
    out,
    count,
    high: tl.constexpr,
    wide: tl.constexpr,
    c: tl.constexpr,
    k: tl.constexpr,
    o: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
):
    """A rectified layer [positions, o]; w [o, k k c]."""
    p, ko, kk = tl.program_id(0) * bm + tl.arange(0, bm), tl.arange(0, o), tl.arange(0, bk)
    b, i, j = _unravel_position(p, high - k + 1, wide - k + 1)
    inside = p < count
    start = ((b * high + i) * wide + j) * c
    acc = tl.zeros((bm, o), tl.float32)
    for block in range(k * k * c // bk):
        dy, first = block // (k * c // bk), block % (k * c // bk) * bk
        at = start[:, None] + (dy * wide * c + first + kk)[None, :]
        seen = tl.load(x + at, mask=inside[:, None], other=0.0)
        weights = tl.load(w + ko[:, None] * (k * k * c) + (block * bk + kk)[None, :])
        acc = tl.dot(seen, tl.trans(weights), acc, input_precision="ieee")
    y = tl.maximum(acc + tl.load(bias + ko)[None, :].to(tl.float32), 0.0)
    to = out + (p * o)[:, None] + ko[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def conv_grad_weight(
    x,
    g,
    parts,
    count,
    turns: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    c: tl.constexpr,
    k: tl.constexpr,
    o: tl.constexpr,
    bm: tl.constexpr,
    bk: tl.constexpr,
):
    """Of a share of the positions: dL/dw [o, k k c], then dL/dbias [o]."""
    block, s = tl.program_id(0), tl.program_id(1)
    dy, first = block // (k * c // bk), block % (k * c // bk) * bk
    kk, ko = tl.arange(0, bk), tl.arange(0, o)
    acc, total = tl.zeros((bk, o), tl.float32), tl.zeros((o,), tl.float32)
    for turn in range(turns):
        p = (s * turns + turn) * bm + tl.arange(0, bm)
        b, i, j = _unravel_position(p, high - k + 1, wide - k + 1)
        inside = (p < count)[:, None]
        start = ((b * high + i + dy) * wide + j) * c + first
        seen = tl.load(x + start[:, None] + kk[None, :], mask=inside, other=0.0)
        slope = tl.load(g + (p * o)[:, None] + ko[None, :], mask=inside, other=0.0)
        acc = tl.dot(tl.trans(seen), slope, acc, input_precision="ieee")
        if block == 0:
            total += tl.sum(slope.to(tl.float32), 0)
    part = parts + s * (o * k * k * c + o)
    tl.store(part + ko[:, None] * (k * k * c) + (block * bk + kk)[None, :], tl.trans(acc))
    if block == 0:
        tl.store(part + o * k * k * c + ko, total)


@triton.jit
def conv_grad_input(
    g,
    w,
    x,
    out,
    count,
    high: tl.constexpr,
    wide: tl.constexpr,
    c: tl.constexpr,
    k: tl.constexpr,
    o: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
):
    """dL/dx [positions, c] of slopes g [positions, o], 0 where x is."""
    p, kc = tl.program_id(0) * bm + tl.arange(0, bm), tl.program_id(1) * bn + tl.arange(0, bn)
    ko, rows, columns = tl.arange(0, bk), high - k + 1, wide - k + 1
    b, i, j = _unravel_position(p, high, wide)
    start = ((b * rows + i) * columns + j) * o
    acc = tl.zeros((bm, bn), tl.float32)
    for block in range(k * k * o // bk):
        tap, first = block // (o // bk), block % (o // bk) * bk
        dy, dx = tap // k, tap % k
        reached = (i >= dy) & (i - dy < rows) & (j >= dx) & (j - dx < columns) & (p < count)
        at = (start - (dy * columns + dx) * o + first)[:, None] + ko[None, :]
        slope = tl.load(g + at, mask=reached[:, None], other=0.0)
        weights = tl.load(w + (((first + ko) * k * k + tap) * c)[:, None] + kc[None, :])
        acc = tl.dot(slope, weights, acc, input_precision="ieee")
    at, inside = (p * c)[:, None] + kc[None, :], (p < count)[:, None]
    alive = tl.load(x + at, mask=inside, other=0.0) > 0
    tl.store(out + at, tl.where(alive, acc, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def reduce_partials(
    parts,
    out,
    size,
    scale,
    splits: tl.constexpr,
    places: tl.constexpr,
    words: tl.constexpr,
    o: tl.constexpr,
    bm: tl.constexpr,
    bs: tl.constexpr,
):
    """The sum of parts [splits, size], all of a column at once; `bs` is no less than `splits`.

    It begins with weights [places, words, o]: they come out scaled, as [o, words, places].
    """
    at, s = tl.program_id(0) * bm + tl.arange(0, bm), tl.arange(0, bs)
    inside, weight = at < size, at < places * words * o
    mask = (s < splits)[:, None] & inside[None, :]
    acc = tl.sum(tl.load(parts + s[:, None] * size + at[None, :], mask=mask, other=0.0), 0)
    turned = (at % o * words + at // o % words) * places + at // (o * words)
    acc = tl.where(weight, acc * scale, acc)
    to = out + tl.where(weight, turned, at)
    tl.store(to, acc.to(out.dtype.element_ty), mask=inside)
