"""The recorder's server: access control, one page at a time, and frames."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.server import is_known_host
from lookfurther.recorder.stream import (
    FRAME_HEADER,
    MAX_CLOCK_SHIFT,
    MAX_FRAMES_IN_FLIGHT,
    TARGET_LEAD_SECONDS,
    FrameClock,
    PageConnection,
)
from tests.recorder_servers import TOKEN, ServerThread, receive_json, wait_until

# Access


def test_page_requires_token(recorder_server: ServerThread) -> None:
    assert recorder_server.get(f"/{TOKEN}/")[0] == 200
    for path in ("/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "/%F0%9F%92%A9/"):
        status, _, text = recorder_server.get(path)
        assert status in (403, 404)
        assert TOKEN not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1:1"])
def test_foreign_host_is_rejected(recorder_server: ServerThread, host: str) -> None:
    host = host.format(recorder_server.port)
    assert recorder_server.get(f"/{TOKEN}/", host)[0] == 403
    with pytest.raises(InvalidStatus, match="403"):
        recorder_server.open_websocket(host=host)


@pytest.mark.parametrize("origin", ["", "null", "https://evil.example", "http://127.0.0.1:1"])
def test_foreign_origin_is_rejected(recorder_server: ServerThread, origin: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        recorder_server.open_websocket(origin=origin)


def test_wrong_token_opens_no_websocket(recorder_server: ServerThread) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        recorder_server.open_websocket(token="wrong")
    assert recorder_server.source.disconnects == 0


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


def test_page_loads_no_external_content(recorder_server: ServerThread) -> None:
    """The page is one file without addresses; its policy allows only its own style and script."""
    _, headers, page = recorder_server.get(f"/{TOKEN}/")
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


def test_second_player_is_rejected_and_first_continues(recorder_server: ServerThread) -> None:
    with recorder_server.open_websocket() as first:
        assert receive_json(first)["kind"] == "hello"
        with recorder_server.open_websocket() as second:
            message = receive_json(second)
            assert message["kind"] == "refused"
            assert "already connected" in message["text"]
            with pytest.raises(ConnectionClosed):
                second.recv()
        first.send('{"kind": "pause"}')
        wait_until(lambda: recorder_server.source.messages == [PageMessage("pause")])
        assert recorder_server.source.disconnects == 0
    wait_until(lambda: recorder_server.source.disconnects == 1)
    with recorder_server.open_websocket() as third:
        assert receive_json(third)["kind"] == "hello"


def test_dropped_websocket_is_detected(recorder_server: ServerThread) -> None:
    page = recorder_server.open_websocket()
    receive_json(page)
    page.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: recorder_server.source.disconnects == 1)


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


def test_frames_in_flight_are_limited(recorder_server: ServerThread) -> None:
    """At most MAX_FRAMES_IN_FLIGHT frames are not displayed; "seen" allows the next ones."""
    with recorder_server.open_websocket() as page:
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
