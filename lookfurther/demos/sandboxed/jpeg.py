"""Decode JPEG images. Only the sandbox process imports this."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

MAX_IMAGE_VALUES = 3 * 2**20  # pixels times channels


def decode_images(encoded_images: Iterable[Any], size: int) -> np.ndarray:
    """Decode images of one shape with `size` values each into one array."""
    return np.stack([_decode_image(data, size) for data in encoded_images])


def _decode_image(data: Any, size: int) -> np.ndarray:
    if not isinstance(data, bytes | np.ndarray):  # bytes(n) of an integer would be n zeros
        raise ValueError(f"an image cannot be a {type(data).__name__}")
    with Image.open(io.BytesIO(bytes(data)), formats=["JPEG"]) as image:
        channels = len(image.getbands())
        if image.width * image.height * channels != size or size > MAX_IMAGE_VALUES:
            raise ValueError(f"an image of {image.size}")
        return np.asarray(image)
