"""Tensors as bytes in the safetensors format, in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import Tensor

PIECE_BYTES = 1 << 26  # copied to the host at once

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def serialize_tensors(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The safetensors format in pieces.

    The library's own writer copies all tensors of a device to the host at once, and before
    release 0.8 also those already on the host: a replay would not fit in memory.
    """
    # Largest elements first, so that each tensor starts at a multiple of its element size.
    order = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, tensor in order:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in order:
        if not tensor.nbytes:
            continue  # its strides may be 0, and torch cannot view such a tensor as bytes
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        for piece in flat.split(PIECE_BYTES):
            yield piece.cpu().numpy().data
