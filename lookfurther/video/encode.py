"""Episodes as animated GIFs and as MP4 films."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookfurther.errors import ConfigError, LookFurtherError
from lookfurther.system.files import atomic_replace

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_COLOURS = 255  # one of a GIF's 256 is kept for "as in the frame before"
MAX_FPS = 50.0  # frames a second; viewers slow down anything faster
MAX_GIF_FRAMES = 3000  # pictures of a GIF, all of which are held in memory


def _pack(frame: np.ndarray) -> np.ndarray:
    """RGB [..., 3] as one integer a pixel."""
    r, g, b = np.moveaxis(frame.astype(np.int32), -1, 0)
    return r << 16 | g << 8 | b


def _unpack(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], -1).astype(np.uint8)


def _coarse(packed: np.ndarray) -> np.ndarray:
    """Colours rounded to 5 bits a channel, so that a film has at most 32,768."""
    return packed & 0xF8F8F8 | 0x040404


def _nearest(colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A palette [255, 3] for packed colours by median cut, and each colour's entry in it."""
    from PIL import Image

    rgb = _unpack(colours)
    cut = Image.fromarray(rgb[None]).quantize(MAX_COLOURS, Image.Quantize.MEDIANCUT)
    palette = np.array(cut.getpalette(), np.uint8).reshape(-1, 3)[:MAX_COLOURS]
    points, centres = rgb.astype(np.float32), palette.astype(np.float32)
    apart = np.square(centres).sum(1) - 2 * points @ centres.T  # squared distance - |point|^2
    return palette, apart.argmin(1)


def _indexed(frames: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """One palette [n, 3] for all frames, and the frames as entries of it: exact if they fit."""
    packed = [_pack(frame) for frame in frames]
    colours = np.unique(np.concatenate([np.unique(p) for p in packed]))
    if len(colours) <= MAX_COLOURS:
        palette, entry = _unpack(colours), np.arange(len(colours))
    else:
        packed = [_coarse(p) for p in packed]
        colours = np.unique(_coarse(colours))
        palette, entry = _nearest(colours)
    return palette, [entry[np.searchsorted(colours, p)].astype(np.uint8) for p in packed]


def _image(entries: np.ndarray, palette: np.ndarray) -> Image:
    from PIL import Image

    image = Image.fromarray(entries)
    image.putpalette(palette.tobytes())
    return image


@lru_cache
def _caption_bar(text: str, width: int) -> np.ndarray:
    """A caption in white on dark, [height, width, 3], cut with an ellipsis where too long."""
    from PIL import Image, ImageDraw, ImageFont

    size = min(max(width // 22, 11), 20)
    font = ImageFont.load_default(size)
    if font.getlength(text) > width - size:
        while text and font.getlength(text + "…") > width - size:
            text = text[:-1]
        text += "…"
    image = Image.new("L", (width, 2 * size))
    ImageDraw.Draw(image).text((size // 2, size), text, 255, font, anchor="lm")
    grey = 24 + 33 * (np.asarray(image) // 32)  # eight greys take little of the palette
    return np.repeat(grey[..., None], 3, -1)


def _check_gif_input(frames: list[np.ndarray], fps: float, captions: Sequence[str] | None) -> None:
    if not frames:
        raise LookFurtherError("no frames to animate: the episode is empty")
    for i, frame in enumerate(frames):
        _check_frame(i, frame, frames[0].shape)
    _check_fps(fps)
    if captions is not None and len(captions) != len(frames):
        raise LookFurtherError(f"{len(captions)} captions for {len(frames)} frames: give one each")


def _check_frame(i: int, frame: np.ndarray, shape: tuple[int, ...]) -> None:
    if frame.dtype != np.uint8 or frame.ndim != 3 or shape[2:] != (3,) or frame.shape != shape:
        raise LookFurtherError(
            f"frame {i} is {frame.dtype} {frame.shape}; all must be uint8 (H, W, 3), and alike"
        )


def _check_fps(fps: float) -> None:
    if not 0 < fps <= MAX_FPS:
        raise LookFurtherError(f"fps must be above 0 and at most {MAX_FPS:g}, not {fps}")


def _scale_and_caption(
    frames: Iterable[np.ndarray], scale: int, captions: Sequence[str] | None
) -> Iterator[np.ndarray]:
    """Frames with each pixel `scale` wide, and their captions in a bar below."""
    for i, frame in enumerate(frames):
        large = frame.repeat(scale, 0).repeat(scale, 1)
        yield (
            large
            if captions is None
            else np.concatenate([large, _caption_bar(captions[i], len(large[0]))])
        )


def write_gif(
    frames: list[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """RGB frames as an animated GIF, each pixel `scale` wide, with captions in a bar below.

    Colours are exact where all frames together have at most 255. Equal frames in a row become
    one that lasts as long as they would.
    """
    _check_gif_input(frames, fps, captions)
    palette, entries = _indexed(list(_scale_and_caption(frames, scale, captions)))
    images = [_image(e, palette) for e in entries]
    # A GIF counts in hundredths: rounding the moments, not the durations, keeps the speed true.
    moments = np.round(100 * np.arange(len(frames) + 1) / fps).astype(int)
    with atomic_replace(out) as temporary:
        images[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=(10 * np.diff(moments)).tolist(),
            loop=0,
            palette=palette.tobytes(),
            optimize=True,
        )


def write_mp4(
    frames: Iterable[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """As `gif`, but a film for any length: frames are taken one at a time and never held."""
    _check_fps(fps)
    _check_pyav()
    import av

    with atomic_replace(out) as temporary, av.open(temporary, "w", format="mp4") as file:
        stream = None
        for i, frame in enumerate(map(_pad_to_even, _scale_and_caption(frames, scale, captions))):
            stream = stream or _add_h264_stream(file, fps, frame.shape)
            _check_frame(i, frame, (stream.height, stream.width, 3))
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        if stream is None:
            raise LookFurtherError("no frames to animate: the episode is empty")
        file.mux(stream.encode())


def write_animation(
    frames: Iterable[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """As `gif` or as `mp4`, whichever `out` names."""
    if out.suffix.lower() == ".gif":
        write_gif(list(frames), out, fps, scale, captions)
    else:
        write_mp4(frames, out, fps, scale, captions)


def check_video_path(out: Path) -> None:
    """Refuse a file that `animate` cannot write before anything is played for it."""
    if out.suffix.lower() not in (".gif", ".mp4"):
        raise ConfigError(f"{out} must end in .gif or .mp4")
    if out.suffix.lower() == ".mp4":
        _check_pyav()


def check_gif_length(out: Path, frame_count: int) -> None:
    """Refuse more pictures than a GIF may have."""
    if out.suffix.lower() == ".gif" and frame_count > MAX_GIF_FRAMES:
        raise ConfigError(
            f"{frame_count:,} pictures are too many for a GIF: name an .mp4, or a higher --speed"
        )


def _check_pyav() -> None:
    """MP4 needs PyAV, an optional extra."""
    if find_spec("av") is None:
        raise ConfigError("MP4 needs PyAV: install lookfurther[video], or name a .gif")


def _add_h264_stream(file: Any, fps: float, shape: tuple[int, ...]) -> Any:
    """H.264 as every browser and player takes it."""
    stream = file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
    stream.height, stream.width, _ = shape
    stream.pix_fmt = "yuv420p"
    stream.options = {"crf": "20", "preset": "veryfast"}
    return stream


def _pad_to_even(frame: np.ndarray) -> np.ndarray:
    """A frame with an even number of rows and columns, as H.264 halves its colours."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
