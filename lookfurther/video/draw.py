"""Drawing to scale: a design of 1280 by 720 units, on a picture of any width."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

BACK, WELL, LINE = "#0c0f14", "#12161d", "#242c38"
TEXT, SOFT, FAINT = "#e8ebf0", "#a5b0bf", "#7f8a99"
AGENT, EXPERT, GOOD = "#f3bf5f", "#74b3f0", "#6fcf97"
WIDTH, HEIGHT = 1280, 720  # units
SMALLEST = 10  # pixels of a letter

Box = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float]


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@lru_cache
def _disc(size: int) -> Image.Image:
    """A mask, drawn large and made small: Pillow's own edges are rough."""
    large = Image.new("L", (8 * size, 8 * size))
    ImageDraw.Draw(large).ellipse((0, 0, 8 * size - 1, 8 * size - 1), 255)
    return large.resize((size, size), Image.Resampling.BOX)


class Pen:
    """Draws in units on a new picture, `width` pixels wide."""

    def __init__(self, width: int) -> None:
        self._unit = width / WIDTH
        self._image = Image.new("RGB", (width, round(HEIGHT * self._unit)), BACK)
        self._draw = ImageDraw.Draw(self._image)

    def done(self) -> np.ndarray:
        """The picture, [height, width, 3] uint8."""
        return np.asarray(self._image)

    def text(self, at: Point, text: str, size: float, colour: str, anchor: str = "lm") -> None:
        x, y = at[0] * self._unit, at[1] * self._unit
        self._draw.text((x, y), text, colour, self._font(size), anchor)

    def length(self, text: str, size: float) -> float:
        """How wide a text would be."""
        return self._font(size).getlength(text) / self._unit

    def chip(self, at: Point, text: str, colour: str) -> None:
        """Words on a dark pill, `at` its left top corner."""
        x, y = at
        self.block((x, y, x + self.length(text, 14) + 22, y + 26), BACK, 13)
        self.text((x + 11, y + 13), text, 14, colour)

    def block(self, box: Box, colour: str, radius: float = 0) -> None:
        self._draw.rounded_rectangle(self._scaled(box), radius * self._unit, colour)

    def dot(self, at: Point, radius: float, colour: str) -> None:
        """A disc with a smooth edge."""
        size = max(3, round(2 * radius * self._unit))
        left, top = (round(x * self._unit - size / 2) for x in at)
        self._image.paste(Image.new("RGB", (size, size), colour), (left, top), _disc(size))

    def line(self, points: Iterable[Point], width: float, colour: str) -> None:
        scaled = [x * self._unit for point in points for x in point]
        self._draw.line(scaled, colour, max(1, round(width * self._unit)), "curve")

    def picture(self, picture: np.ndarray, box: Box, aspect: float, dim: float) -> None:
        """A picture as large as the box allows; whole multiples of its pixels stay sharp.

        `aspect` is a pixel's width over its height, `dim` the share of darkness laid over it.
        """
        left, top, right, bottom = (round(x) for x in self._scaled(box))
        height, width, _ = picture.shape
        scale = min((right - left) / (width * aspect), (bottom - top) / height)
        size = max(1, round(width * aspect * scale)), max(1, round(height * scale))
        whole = size[0] % width == 0 and size[1] % height == 0
        how = Image.Resampling.NEAREST if whole else Image.Resampling.LANCZOS
        shown = Image.fromarray(np.ascontiguousarray(picture)).resize(size, how)
        shown = Image.blend(shown, Image.new("RGB", size, BACK), dim) if dim else shown
        self._image.paste(shown, ((left + right - size[0]) // 2, (top + bottom - size[1]) // 2))

    def _font(self, size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return _font(max(SMALLEST, round(size * self._unit)))

    def _scaled(self, box: Box) -> Box:
        left, top, right, bottom = (x * self._unit for x in box)
        return left, top, right, bottom
