"""A stream of frames and status to one page, whatever makes them."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any, Protocol

import numpy as np
from starlette.websockets import WebSocket

from lookfurther.recorder.protocol import Message

HEADER = struct.Struct("<IIHH")  # number of the frame, number of the keys it answers, width, height
WINDOW = 3  # frames on their way; a page that shows none, as a hidden one, stops the game
EARLY = 0.003  # seconds before the display's next picture that a frame should arrive
PULL = 0.00025  # seconds by which the clock may be moved at a frame to that end: 1.5 % at most


class Link:
    """The way to the page."""

    def __init__(self, send: WebSocket) -> None:
        self._socket = send
        self._sent = self._seen = 0
        self._room = asyncio.Event()
        self._wait: float | None = None

    async def frame(self, picture: np.ndarray, keys: int = 0) -> None:
        """Show an RGB picture, [height, width, 3] uint8; waits where the page lags behind."""
        self._sent += 1
        height, width, _ = picture.shape
        header = HEADER.pack(self._sent, keys, width, height)
        await self._socket.send_bytes(header + np.ascontiguousarray(picture).tobytes())
        while self._sent - self._seen >= WINDOW:
            self._room.clear()
            await self._room.wait()

    async def say(self, kind: str, **facts: Any) -> None:
        """Send a message of JSON."""
        await self._socket.send_text(json.dumps({"kind": kind, **facts}))

    def seen(self, number: int, wait: float) -> None:
        """The page has shown this frame and those before it, after `wait` seconds."""
        self._seen = max(self._seen, min(number, self._sent))
        self._wait = wait
        self._room.set()

    def late(self) -> float:
        """Seconds by which frames should come later, a little at a time, to come just in time.

        Frames that come at any moment between two pictures of the display wait for the next one,
        and now and then two of them meet there and one is never shown.
        """
        wait, self._wait = self._wait, None
        if wait is None:
            return 0.0
        return min(max(0.05 * (wait - EARLY), -PULL), PULL)


class Source(Protocol):
    """What a page shows: frames and status, and what becomes of the page's messages."""

    def hello(self) -> dict[str, Any]:
        """What the page must know first: mode ("play" or "watch"), title, buttons and the like."""
        ...

    async def show(self, link: Link) -> None:
        """Send frames and status; cancelled when the page is gone."""
        ...

    def hear(self, message: Message) -> None:
        """Take note of what the viewer asks for."""
        ...

    def leave(self) -> None:
        """The page is gone."""
        ...


class Clock:
    """Ticks that do not drift: a late one shortens the wait for the next.

    `late` moves the clock, so that frames can keep step with a display.
    """

    SLACK = 0.1  # seconds; after a longer delay the clock goes on from now

    def __init__(self) -> None:
        self._due = -math.inf

    async def tick(self, rate: float, late: float = 0.0) -> None:
        """Wait until 1 / rate seconds after the tick before."""
        now = asyncio.get_running_loop().time()
        self._due += 1 / rate + late
        if self._due < now - self.SLACK:
            self._due = now
        await asyncio.sleep(max(0.0, self._due - now))
