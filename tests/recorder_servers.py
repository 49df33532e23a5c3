"""A recorder's server in a thread, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")
import uvicorn
from websockets.sync.client import ClientConnection, connect

from lookfurther.recorder.protocol import MAX_MESSAGE_BYTES, PageMessage
from lookfurther.recorder.server import RecorderApp
from lookfurther.recorder.stream import PageConnection

TOKEN = "a-token-of-the-test"


class CountingSource:
    """A FrameSource whose n-th frame is grey with value n, as fast as the page accepts them."""

    def __init__(self) -> None:
        self.messages: list[PageMessage] = []
        self.disconnects = 0

    def hello_message(self) -> dict[str, Any]:
        return {"mode": "watch", "title": "Counter", "buttons": [{"name": "up", "codes": ["KeyU"]}]}

    async def stream_to(self, connection: PageConnection) -> None:
        for number in range(256):
            await connection.send_frame(np.full((3, 5, 3), number, np.uint8), keys=number + 7)
        await asyncio.Event().wait()

    def on_message(self, message: PageMessage) -> None:
        self.messages.append(message)

    def on_disconnect(self) -> None:
        self.disconnects += 1


class ServerThread:
    """A server in a thread."""

    def __init__(self, source: Any) -> None:
        self.source = source
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        theatre = RecorderApp(source, TOKEN, "127.0.0.1", self.port)
        config = uvicorn.Config(
            theatre.app, log_level="error", lifespan="off", ws_max_size=MAX_MESSAGE_BYTES
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]})
        self.thread.start()

    def get(self, path: str, host: str = "") -> tuple[int, http.client.HTTPMessage, str]:
        """Request a page; return status, headers and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{self.port}"})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def open_websocket(
        self, token: str = TOKEN, origin: str | None = None, host: str = ""
    ) -> ClientConnection:
        """Open a page's websocket; `host` is its Host header."""
        host = host or f"127.0.0.1:{self.port}"
        origin = f"http://{host}" if origin is None else origin
        return connect(
            f"ws://{host}/{token}/live",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            origin=origin or None,  # type: ignore[arg-type]
            open_timeout=None,
            ping_interval=None,
            max_queue=None,
        )

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()


def wait_until(condition: Any) -> None:
    """Wait for another thread; the time limit of the test ends an endless wait."""
    while not condition():
        time.sleep(0.005)


def receive_json(page: ClientConnection) -> dict[str, Any]:
    return json.loads(page.recv())
