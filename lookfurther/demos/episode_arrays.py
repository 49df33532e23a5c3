"""Arrays of an environment in the form in which episodes store them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookfurther.errors import DemonstrationError


def to_planes(observations: Any, layout: str = "hwc") -> np.ndarray:
    """Planes of T + 1 vectors [n], images [height, width] or images with channels.

    Vectors and images of floats become float32. Images of integers become uint8.
    """
    array = _to_array("observations", observations)
    if array.ndim not in (2, 3, 4) or array.dtype.kind not in "fiub":
        raise DemonstrationError(
            "observations must be T + 1 vectors or images of numbers,"
            f" not an array {array.shape} of type {array.dtype}"
        )
    if layout not in ("hwc", "chw"):
        raise DemonstrationError(f"layout must be hwc or chw, not {layout!r}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and layout == "hwc":
        array = array.transpose(0, 3, 1, 2)
    if array.ndim == 2 or array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32)
    if array.size and not 0 <= array.min() <= array.max() <= 255:
        raise DemonstrationError(
            f"observations must be images of 0 to 255 or of floats, not of {array.min()} to"
            f" {array.max()}"
        )
    return np.ascontiguousarray(array, np.uint8)


def to_actions(actions: Any) -> np.ndarray:
    """Actions [T] int64."""
    array = _to_array("actions", actions)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DemonstrationError(
            f"actions must be a list of whole numbers, not an array {array.shape} of type"
            f" {array.dtype}"
        )
    return array.astype(np.int64)


def to_rewards(rewards: Any) -> np.ndarray:
    """Rewards [T] float32."""
    array = _to_array("rewards", rewards)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise DemonstrationError(
            f"rewards must be a list of numbers, not an array {array.shape} of type {array.dtype}"
        )
    return array.astype(np.float32)


def _to_array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:  # rows of different lengths
        raise DemonstrationError(f"{name} cannot be an array: {error}") from None
