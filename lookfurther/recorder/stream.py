"""A stream of frames and status to one page, whatever makes them."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any, Protocol

import numpy as np
from starlette.websockets import WebSocket

from lookfurther.recorder.protocol import PageMessage

FRAME_HEADER = struct.Struct(
    "<IIHH"
)  # number of the frame, number of the keys it answers, width, height
MAX_FRAMES_IN_FLIGHT = (
    3  # frames on their way; a page that shows none, as a hidden one, stops the game
)
TARGET_LEAD_SECONDS = 0.003  # seconds before the display's next picture that a frame should arrive
MAX_CLOCK_SHIFT = (
    0.00025  # seconds by which the clock may be moved at a frame to that end: 1.5 % at most
)


class PageConnection:
    """The way to the page."""

    def __init__(self, websocket: WebSocket) -> None:
        self._socket = websocket
        self._sent = self._acknowledged = 0
        self._window_open = asyncio.Event()
        self._display_wait: float | None = None

    async def send_frame(self, picture: np.ndarray, keys: int = 0) -> None:
        """Show an RGB picture, [height, width, 3] uint8; waits where the page lags behind."""
        self._sent += 1
        height, width, _ = picture.shape
        header = FRAME_HEADER.pack(self._sent, keys, width, height)
        await self._socket.send_bytes(header + np.ascontiguousarray(picture).tobytes())
        while self._sent - self._acknowledged >= MAX_FRAMES_IN_FLIGHT:
            self._window_open.clear()
            await self._window_open.wait()

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message of JSON."""
        await self._socket.send_text(json.dumps({"kind": kind, **fields}))

    def acknowledge(self, number: int, wait: float) -> None:
        """The page has shown this frame and those before it, after `wait` seconds."""
        self._acknowledged = max(self._acknowledged, min(number, self._sent))
        self._display_wait = wait
        self._window_open.set()

    def clock_shift(self) -> float:
        """Seconds by which frames should come later, a little at a time, to come just in time.

        Frames that come at any moment between two pictures of the display wait for the next one,
        and now and then two of them meet there and one is never shown.
        """
        wait, self._display_wait = self._display_wait, None
        if wait is None:
            return 0.0
        return min(max(0.05 * (wait - TARGET_LEAD_SECONDS), -MAX_CLOCK_SHIFT), MAX_CLOCK_SHIFT)


class FrameSource(Protocol):
    """What a page shows: frames and status, and what becomes of the page's messages."""

    def hello_message(self) -> dict[str, Any]:
        """What the page must know first: mode ("play" or "watch"), title, buttons and the like."""
        ...

    async def stream_to(self, connection: PageConnection) -> None:
        """Send frames and status; cancelled when the page is gone."""
        ...

    def on_message(self, message: PageMessage) -> None:
        """Take note of what the viewer asks for."""
        ...

    def on_disconnect(self) -> None:
        """The page is gone."""
        ...


class FrameClock:
    """Ticks that do not drift: a late one shortens the wait for the next.

    `late` moves the clock, so that frames can keep step with a display.
    """

    MAX_LAG_SECONDS = 0.1  # seconds; after a longer delay the clock goes on from now

    def __init__(self) -> None:
        self._next_tick = -math.inf

    async def tick(self, rate: float, shift: float = 0.0) -> None:
        """Wait until 1 / rate seconds after the tick before."""
        now = asyncio.get_running_loop().time()
        self._next_tick += 1 / rate + shift
        if self._next_tick < now - self.MAX_LAG_SECONDS:
            self._next_tick = now
        await asyncio.sleep(max(0.0, self._next_tick - now))
