"""Frames and messages to one page."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any, Protocol

import numpy as np
from starlette.websockets import WebSocket

from lookfurther.recorder.protocol import PageMessage

FRAME_HEADER = struct.Struct("<IIHH")  # frame number, number of the used keys, width, height
MAX_FRAMES_IN_FLIGHT = 3  # not yet displayed; a hidden page displays none and so stops the game
TARGET_LEAD_SECONDS = 0.003  # between the arrival of a frame and the display's next refresh
MAX_CLOCK_SHIFT = 0.00025  # seconds per frame, 1.5 % of a frame


class PageConnection:
    """Sends frames and messages to the page."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._sent = self._acknowledged = 0
        self._window_open = asyncio.Event()
        self._display_wait: float | None = None

    async def send_frame(self, screen: np.ndarray, keys: int = 0) -> None:
        """Send an RGB frame, [height, width, 3] uint8; wait if the page lags behind."""
        self._sent += 1
        height, width, _ = screen.shape
        header = FRAME_HEADER.pack(self._sent, keys, width, height)
        await self._websocket.send_bytes(header + np.ascontiguousarray(screen).tobytes())
        while self._sent - self._acknowledged >= MAX_FRAMES_IN_FLIGHT:
            self._window_open.clear()
            await self._window_open.wait()

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a JSON message."""
        await self._websocket.send_text(json.dumps({"kind": kind, **fields}))

    def acknowledge(self, number: int, wait: float) -> None:
        """Record that the page has displayed this frame, `wait` seconds after it arrived."""
        self._acknowledged = max(self._acknowledged, min(number, self._sent))
        self._display_wait = wait
        self._window_open.set()

    def clock_shift(self) -> float:
        """Return the seconds by which to delay the next frame, so that it arrives just in time.

        Without this, two frames sometimes arrive between two refreshes and one is never shown.
        """
        wait, self._display_wait = self._display_wait, None
        if wait is None:
            return 0.0
        return min(max(0.05 * (wait - TARGET_LEAD_SECONDS), -MAX_CLOCK_SHIFT), MAX_CLOCK_SHIFT)


class FrameSource(Protocol):
    """Produces frames and status for a page, and handles its messages."""

    def hello_message(self) -> dict[str, Any]:
        """Return the first message: mode ("play" or "watch"), title, buttons and so on."""
        ...

    async def stream_to(self, connection: PageConnection) -> None:
        """Send frames and status; cancelled when the page disconnects."""
        ...

    def on_message(self, message: PageMessage) -> None:
        """Handle a message from the page."""
        ...

    def on_disconnect(self) -> None:
        """Called when the page has disconnected."""
        ...


class FrameClock:
    """Ticks without drift: after a late tick, the next wait is shorter.

    `shift` moves the clock to synchronize it with a display.
    """

    MAX_LAG_SECONDS = 0.1  # after a longer delay the clock restarts from now

    def __init__(self) -> None:
        self._next_tick = -math.inf

    async def tick(self, rate: float, shift: float = 0.0) -> None:
        """Wait until 1 / rate seconds after the previous tick."""
        now = asyncio.get_running_loop().time()
        self._next_tick += 1 / rate + shift
        if self._next_tick < now - self.MAX_LAG_SECONDS:
            self._next_tick = now
        await asyncio.sleep(max(0.0, self._next_tick - now))
