"""Draw a layout of 1280 by 720 units on an image of any width."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

BACKGROUND, PANEL_BACKGROUND, GRID_COLOUR = "#0c0f14", "#12161d", "#242c38"
TEXT_COLOUR, SECONDARY_TEXT, FAINT_TEXT = "#e8ebf0", "#a5b0bf", "#7f8a99"
AGENT_COLOUR, EXPERT_COLOUR, SUCCESS_COLOUR = "#f3bf5f", "#74b3f0", "#6fcf97"
DESIGN_WIDTH, DESIGN_HEIGHT = 1280, 720  # units
MIN_FONT_PIXELS = 10

Box = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float]


@lru_cache
def _load_font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@lru_cache
def _disc_mask(size: int) -> Image.Image:
    """A disc with smooth edges: drawn large and reduced, as Pillow does not antialias."""
    large = Image.new("L", (8 * size, 8 * size))
    ImageDraw.Draw(large).ellipse((0, 0, 8 * size - 1, 8 * size - 1), 255)
    return large.resize((size, size), Image.Resampling.BOX)


class ScaledCanvas:
    """A new image, `width` pixels wide, with drawing methods in layout units."""

    def __init__(self, width: int) -> None:
        self._unit = width / DESIGN_WIDTH
        self._image = Image.new("RGB", (width, round(DESIGN_HEIGHT * self._unit)), BACKGROUND)
        self._draw = ImageDraw.Draw(self._image)

    def to_array(self) -> np.ndarray:
        """The image, [height, width, 3] uint8."""
        return np.asarray(self._image)

    def draw_text(
        self, position: Point, text: str, size: float, colour: str, anchor: str = "lm"
    ) -> None:
        x, y = position[0] * self._unit, position[1] * self._unit
        self._draw.text((x, y), text, colour, self._scaled_font(size), anchor)

    def text_width(self, text: str, size: float) -> float:
        """The width that a text would have."""
        return self._scaled_font(size).getlength(text) / self._unit

    def draw_label(self, position: Point, text: str, colour: str) -> None:
        """Draw text on a dark rounded rectangle with its top left corner at `position`."""
        x, y = position
        self.draw_rectangle((x, y, x + self.text_width(text, 14) + 22, y + 26), BACKGROUND, 13)
        self.draw_text((x + 11, y + 13), text, 14, colour)

    def draw_rectangle(self, box: Box, colour: str, radius: float = 0) -> None:
        self._draw.rounded_rectangle(self._to_pixels(box), radius * self._unit, colour)

    def draw_dot(self, position: Point, radius: float, colour: str) -> None:
        """Draw a disc with a smooth edge."""
        size = max(3, round(2 * radius * self._unit))
        left, top = (round(x * self._unit - size / 2) for x in position)
        self._image.paste(Image.new("RGB", (size, size), colour), (left, top), _disc_mask(size))

    def draw_line(self, points: Iterable[Point], width: float, colour: str) -> None:
        scaled = [x * self._unit for point in points for x in point]
        self._draw.line(scaled, colour, max(1, round(width * self._unit)), "curve")

    def draw_image(self, image: np.ndarray, box: Box, aspect: float, dim: float) -> None:
        """Draw an image as large as the box allows; integer multiples of its size stay sharp.

        `aspect` is a pixel's width over its height, `dim` the opacity of a dark overlay.
        """
        left, top, right, bottom = (round(x) for x in self._to_pixels(box))
        height, width, _ = image.shape
        scale = min((right - left) / (width * aspect), (bottom - top) / height)
        size = max(1, round(width * aspect * scale)), max(1, round(height * scale))
        is_multiple = size[0] % width == 0 and size[1] % height == 0
        resampling = Image.Resampling.NEAREST if is_multiple else Image.Resampling.LANCZOS
        resized = Image.fromarray(np.ascontiguousarray(image)).resize(size, resampling)
        if dim:
            resized = Image.blend(resized, Image.new("RGB", size, BACKGROUND), dim)
        self._image.paste(resized, ((left + right - size[0]) // 2, (top + bottom - size[1]) // 2))

    def _scaled_font(self, size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return _load_font(max(MIN_FONT_PIXELS, round(size * self._unit)))

    def _to_pixels(self, box: Box) -> Box:
        left, top, right, bottom = (x * self._unit for x in box)
        return left, top, right, bottom
