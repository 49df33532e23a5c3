"""Write frames as an animated GIF or an MP4 video."""

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

MAX_COLOURS = 255  # a GIF has 256; one means "as in the previous frame"
MAX_FPS = 50.0  # viewers slow down faster GIFs
MAX_GIF_FRAMES = 3000  # all of them are held in memory
PALETTE_FRAMES = 32  # frames from which a palette is computed


def write_animation(
    frames: Iterable[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """Write a GIF or an MP4, by the suffix of `out`."""
    if out.suffix.lower() == ".gif":
        write_gif(list(frames), out, fps, scale, captions)
    else:
        write_mp4(frames, out, fps, scale, captions)


def write_gif(
    frames: list[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """Write RGB frames as an animated GIF, enlarged by `scale`, with captions in a bar below.

    Colours are exact if all frames together have at most MAX_COLOURS. Equal consecutive frames
    become one frame with their total duration.
    """
    _check_gif_input(frames, fps, captions)
    images = _quantize_frames(list(_scale_and_caption(frames, scale, captions)))
    # A GIF counts in hundredths of a second: round the times, not the durations, to keep the speed.
    times = np.round(100 * np.arange(len(frames) + 1) / fps).astype(int)
    with atomic_replace(out) as temporary:
        images[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=(10 * np.diff(times)).tolist(),
            loop=0,
            optimize=True,
        )


def write_mp4(
    frames: Iterable[np.ndarray],
    out: Path,
    fps: float,
    scale: int = 1,
    captions: Sequence[str] | None = None,
) -> None:
    """Like `write_gif`, but as H.264 and of any length: only one frame is in memory at a time."""
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


def check_video_path(out: Path) -> None:
    """Raise if `write_animation` cannot write this file; call it before playing anything."""
    if out.suffix.lower() not in (".gif", ".mp4"):
        raise ConfigError(f"{out} must end in .gif or .mp4")
    if out.suffix.lower() == ".mp4":
        _check_pyav()


def check_gif_length(out: Path, frame_count: int) -> None:
    """Raise if a GIF would have too many frames."""
    if out.suffix.lower() == ".gif" and frame_count > MAX_GIF_FRAMES:
        raise ConfigError(
            f"{frame_count:,} pictures are too many for a GIF: name an .mp4, or a higher --speed"
        )


def _check_pyav() -> None:
    if find_spec("av") is None:
        raise ConfigError("MP4 needs PyAV: install lookfurther[video], or name a .gif")


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


def _quantize_frames(frames: list[np.ndarray]) -> list[Image]:
    """Reduce frames to MAX_COLOURS: exactly if they have no more, else with one shared palette.

    A palette for each frame would let colours of still areas flicker.
    """
    from PIL import Image

    images = [Image.fromarray(frame) for frame in frames]
    colours: set[Any] = set()
    for image in images:
        colours |= {colour for _, colour in image.getcolors(image.width * image.height) or ()}
        if len(colours) > MAX_COLOURS:
            break
    else:
        return [image.quantize(MAX_COLOURS, Image.Quantize.MEDIANCUT) for image in images]
    sample = np.concatenate(frames[:: -(-len(frames) // PALETTE_FRAMES)])
    palette = Image.fromarray(sample).quantize(MAX_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=5)
    return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]


def _scale_and_caption(
    frames: Iterable[np.ndarray], scale: int, captions: Sequence[str] | None
) -> Iterator[np.ndarray]:
    """Repeat each pixel `scale` times in both directions and add a caption bar below."""
    for i, frame in enumerate(frames):
        large = frame.repeat(scale, 0).repeat(scale, 1)
        if captions is not None:
            large = np.concatenate([large, _caption_bar(captions[i], large.shape[1])])
        yield large


@lru_cache
def _caption_bar(text: str, width: int) -> np.ndarray:
    """White text on dark grey, [height, width, 3] uint8; text that is too long gets an ellipsis."""
    from PIL import Image, ImageDraw, ImageFont

    size = min(max(width // 22, 11), 20)
    font = ImageFont.load_default(size)
    if font.getlength(text) > width - size:
        while text and font.getlength(text + "…") > width - size:
            text = text[:-1]
        text += "…"
    image = Image.new("L", (width, 2 * size))
    ImageDraw.Draw(image).text((size // 2, size), text, 255, font, anchor="lm")
    grey = 24 + 33 * (np.asarray(image) // 32)  # eight greys leave room in the palette
    return np.repeat(grey[..., None], 3, -1)


def _add_h264_stream(file: Any, fps: float, shape: tuple[int, ...]) -> Any:
    """Add a video stream that every browser and player supports."""
    stream = file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
    stream.height, stream.width, _ = shape
    stream.pix_fmt = "yuv420p"
    stream.options = {"crf": "20", "preset": "veryfast"}
    return stream


def _pad_to_even(frame: np.ndarray) -> np.ndarray:
    """Make height and width even, as yuv420p requires."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
