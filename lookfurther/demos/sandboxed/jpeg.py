"""JPEG pictures, decoded by the helper process with limits: import this nowhere else."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

MAX_IMAGE_VALUES = 3 * 2**20  # of a picture


def decode_images(packed: Iterable[Any], size: int) -> np.ndarray:
    """Pictures of one shape, each of `size` numbers, as an array."""
    return np.stack([_decode_image(data, size) for data in packed])


def _decode_image(data: Any, size: int) -> np.ndarray:
    if not isinstance(data, bytes | np.ndarray):  # bytes(n) of a number would be n zeros
        raise ValueError(f"a picture cannot be a {type(data).__name__}")
    with Image.open(io.BytesIO(bytes(data)), formats=["JPEG"]) as picture:
        colours = len(picture.getbands())
        if picture.width * picture.height * colours != size or size > MAX_IMAGE_VALUES:
            raise ValueError(f"a picture of {picture.size}")
        return np.asarray(picture)
