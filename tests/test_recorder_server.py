"""The recorder's server: access control, one page at a time, and malformed messages."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")

import uvicorn
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from lookfurther.recorder.protocol import MAX_MESSAGE_BYTES, PageMessage
from lookfurther.recorder.server import RecorderApp, is_known_host
from lookfurther.recorder.stream import (
    FRAME_HEADER,
    MAX_CLOCK_SHIFT,
    MAX_FRAMES_IN_FLIGHT,
    TARGET_LEAD_SECONDS,
    FrameClock,
    PageConnection,
)

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


@pytest.fixture
def served() -> Iterator[ServerThread]:
    with contextlib.closing(ServerThread(CountingSource())) as served:
        yield served


def wait_until(condition: Any) -> None:
    """Wait for another thread; the time limit of the test ends an endless wait."""
    while not condition():
        time.sleep(0.005)


def receive_json(page: ClientConnection) -> dict[str, Any]:
    return json.loads(page.recv())


# Access


def test_page_requires_token(served: ServerThread) -> None:
    assert served.get(f"/{TOKEN}/")[0] == 200
    for path in ("/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "/%F0%9F%92%A9/"):
        status, _, text = served.get(path)
        assert status in (403, 404)
        assert TOKEN not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1"])
def test_foreign_host_is_rejected(served: ServerThread, host: str) -> None:
    host = host.format(served.port)
    assert served.get(f"/{TOKEN}/", host)[0] == 403
    with pytest.raises(InvalidStatus, match="403"):
        served.open_websocket(host=host)


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:1"])
def test_foreign_origin_is_rejected(served: ServerThread, origin: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        served.open_websocket(origin=origin)


def test_wrong_token_opens_no_websocket(served: ServerThread) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        served.open_websocket(token="wrong")
    assert served.source.disconnects == 0


@pytest.mark.parametrize(
    ("header", "host", "is_known"),
    [
        ("127.0.0.1:80", "127.0.0.1", True),
        ("LOCALHOST:80", "127.0.0.1", True),
        ("[::1]:80", "::1", True),
        ("localhost", "127.0.0.1", True),
        ("[::1]", "::1", True),
        ("192.168.0.9:80", "127.0.0.1", False),
        ("192.168.0.9:80", "0.0.0.0", True),
        ("192.168.0.9:80", "192.168.0.9", True),
        ("[fe80::1]:80", "::", True),
        ("evil.example:80", "0.0.0.0", False),
        ("127.0.0.1:80.evil.example:80", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("127.0.0.1:8080", "127.0.0.1", False),
    ],
)
def test_is_known_host(header: str, host: str, is_known: bool) -> None:
    assert is_known_host(header, host, 80) is is_known


def test_page_loads_no_external_content(served: ServerThread) -> None:
    """The page is one file without addresses; its policy allows only its own style and script."""
    _, headers, page = served.get(f"/{TOKEN}/")
    policy = headers["Content-Security-Policy"]
    found = set(re.findall(r"(?:https?:)?//[\w.]+", page))
    assert found == {"http://www.w3.org"}  # XML namespace of the icon
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"\s(style|on\w+)=", page), "the policy would block it"
    assert headers["Referrer-Policy"] == "no-referrer"


# One page at a time


def test_second_player_is_rejected_and_first_continues(served: ServerThread) -> None:
    with served.open_websocket() as first:
        assert receive_json(first)["kind"] == "hello"
        with served.open_websocket() as second:
            message = receive_json(second)
            assert message["kind"] == "refused"
            assert "already connected" in message["text"]
            with pytest.raises(ConnectionClosed):
                second.recv()
        first.send('{"kind": "pause"}')
        wait_until(lambda: served.source.messages == [PageMessage("pause")])
        assert served.source.disconnects == 0
    wait_until(lambda: served.source.disconnects == 1)
    with served.open_websocket() as third:
        assert receive_json(third)["kind"] == "hello"


def test_dropped_websocket_is_detected(served: ServerThread) -> None:
    page = served.open_websocket()
    receive_json(page)
    page.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: served.source.disconnects == 1)


# Frames


def receive_frame(page: ClientConnection) -> tuple[tuple[int, int, int, int], bytes]:
    data = page.recv()
    assert isinstance(data, bytes)
    return FRAME_HEADER.unpack_from(data), data[FRAME_HEADER.size :]


def assert_no_frame_waits(page: ClientConnection) -> None:
    """The answer to a message arrives next, so no frame was sent before it."""
    page.send("not JSON")
    answer = page.recv()
    assert isinstance(answer, str)
    assert json.loads(answer)["kind"] == "notice"


def test_frames_in_flight_are_limited(served: ServerThread) -> None:
    """At most MAX_FRAMES_IN_FLIGHT frames are not displayed; "seen" allows the next ones."""
    with served.open_websocket() as page:
        receive_json(page)
        for number in range(MAX_FRAMES_IN_FLIGHT):
            assert receive_frame(page) == ((number + 1, number + 7, 5, 3), bytes([number]) * 45)
        assert_no_frame_waits(page)
        page.send(json.dumps({"kind": "seen", "number": 2, "wait": 3}))
        for number in range(MAX_FRAMES_IN_FLIGHT, MAX_FRAMES_IN_FLIGHT + 2):
            assert receive_frame(page)[0][0] == number + 1
        assert_no_frame_waits(page)
        page.send(json.dumps({"kind": "seen", "number": 2**32 - 1, "wait": 3}))  # not sent yet
        assert [receive_frame(page)[0][0] for _ in range(MAX_FRAMES_IN_FLIGHT)] == [6, 7, 8]


def test_clock_shift_is_bounded() -> None:
    """Frames that arrive early are delayed, late ones are advanced, each by a bounded amount."""
    link = PageConnection(None)  # type: ignore[arg-type]
    assert link.clock_shift() == 0
    for wait, sign in ((0.012, 1), (0.001, -1), (TARGET_LEAD_SECONDS, 0)):
        link.acknowledge(0, wait)
        late = link.clock_shift()
        assert np.sign(late) == sign
        assert abs(late) <= MAX_CLOCK_SHIFT
        assert link.clock_shift() == 0, "one acknowledgement shifts the clock once"


def test_frame_clock_does_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """n ticks take n / rate seconds even if each is late; a long stall is not caught up."""
    now = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 0.004  # always late

    async def run() -> None:
        nonlocal now
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        clock = FrameClock()
        await clock.tick(50)
        start = now
        for _ in range(500):
            await clock.tick(50)
        assert now - start == pytest.approx(10.0, abs=0.01)
        now += 60
        start = now
        for _ in range(50):
            await clock.tick(50)
        assert now - start == pytest.approx(1.0, abs=0.03)

    asyncio.run(run())


# Malformed messages


def test_invalid_messages_are_answered_with_notices(served: ServerThread) -> None:
    with served.open_websocket() as page:
        receive_json(page)
        for invalid in ("", "x", "[]", '{"kind": "keys"}', '{"kind": 1}', b"\x00\x01"):
            page.send(invalid)
        page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
        wait_until(lambda: served.source.messages == [PageMessage("keys", 1, frozenset({"up"}))])
        notices = []
        while len(notices) < 6:
            data = page.recv()
            if isinstance(data, str):
                notices.append(json.loads(data)["text"])
        assert notices[:3] == [
            "a message must be JSON",
            "a message must be JSON",
            "a message must be an object",
        ]
        assert notices[-1] == "a message must be text"


def test_oversized_message_closes_connection(served: ServerThread) -> None:
    with served.open_websocket() as page:
        receive_json(page)
        page.send("x" * MAX_MESSAGE_BYTES)
        page.send("x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed) as closed:
            deque(iter(page.recv, None), maxlen=0)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    wait_until(lambda: served.source.disconnects == 1)
    with served.open_websocket() as page:
        assert receive_json(page)["kind"] == "hello"


def random_message(rng: random.Random) -> str | bytes:
    """Return a random message, close to a valid one or not."""
    kinds = [
        "keys",
        "seen",
        "rewind",
        "speed",
        "pause",
        "resume",
        "step",
        "save",
        "discard",
        "stop",
    ]
    kinds += ["replay", "delete", None]
    values = [0, 1, -1, 2**32, 1e308, "up", ["up"], ["up", 3], {}, True, None, "\ud83d\udca9" * 9]
    values += ["0" * 16, "../" * 5 + "x"]
    fields = ["kind", "number", "held", "on", "speed", "wait", "episode"]
    data: dict[str, Any] = {"kind": rng.choice(kinds)}
    data |= {field: rng.choice(values) for field in rng.sample(fields, rng.randint(0, 5))}
    text = json.dumps(data)
    if rng.random() < 0.3:
        place = rng.randrange(len(text))
        text = text[:place] + chr(rng.randrange(1, 0xD800)) + text[place + rng.randint(0, 9) :]
    if rng.random() < 0.1:
        return rng.randbytes(rng.randint(0, 200))
    return "[" * rng.randint(0, 3000) if rng.random() < 0.02 else text


def test_fuzzed_messages_keep_connection_open(served: ServerThread) -> None:
    """After FUZZ_MESSAGES random messages the connection is open; passed messages are valid."""
    rng, count = random.Random(0), int(os.environ.get("FUZZ_MESSAGES", "2000"))
    with served.open_websocket() as page:
        receive_json(page)
        for number in range(1, count + 1):
            page.send(random_message(rng))
            if number % 50 and number < count:
                continue
            page.send('{"kind": "speed", "speed": 0.25}')
            wait_until(lambda: served.source.messages and served.source.messages[-1].speed == 0.25)
            assert all(
                m.held_buttons <= {"up"} and m.number < 2**32 and m.episode in ("", "0" * 16)
                for m in served.source.messages
            )
            served.source.messages.clear()
            with contextlib.suppress(TimeoutError):
                while True:
                    page.recv(timeout=0)
