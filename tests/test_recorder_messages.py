"""Malformed messages do not disturb the recorder's server."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import deque
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the recorder is an extra: lookfurther[record]")
from websockets.exceptions import ConnectionClosed

from lookfurther.recorder.protocol import MAX_MESSAGE_BYTES, PageMessage
from tests.recorder_servers import ServerThread, receive_json, wait_until


def test_invalid_messages_are_answered_with_notices(recorder_server: ServerThread) -> None:
    with recorder_server.open_websocket() as page:
        receive_json(page)
        for invalid in ("", "x", "[]", '{"kind": "keys"}', '{"kind": 1}', b"\x00\x01"):
            page.send(invalid)
        page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
        wait_until(
            lambda: recorder_server.source.messages == [PageMessage("keys", 1, frozenset({"up"}))]
        )
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


def test_oversized_message_closes_connection(recorder_server: ServerThread) -> None:
    with recorder_server.open_websocket() as page:
        receive_json(page)
        page.send("x" * MAX_MESSAGE_BYTES)
        page.send("x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed) as closed:
            deque(iter(page.recv, None), maxlen=0)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    wait_until(lambda: recorder_server.source.disconnects == 1)
    with recorder_server.open_websocket() as page:
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


def test_fuzzed_messages_keep_connection_open(recorder_server: ServerThread) -> None:
    """After FUZZ_MESSAGES random messages the connection is open; passed messages are valid."""
    rng, count = random.Random(0), int(os.environ.get("FUZZ_MESSAGES", "2000"))
    with recorder_server.open_websocket() as page:
        receive_json(page)
        for number in range(1, count + 1):
            page.send(random_message(rng))
            if number % 50 and number < count:
                continue
            page.send('{"kind": "speed", "speed": 0.25}')
            wait_until(
                lambda: (
                    recorder_server.source.messages
                    and recorder_server.source.messages[-1].speed == 0.25
                )
            )
            assert all(
                m.held_buttons <= {"up"} and m.number < 2**32 and m.episode in ("", "0" * 16)
                for m in recorder_server.source.messages
            )
            recorder_server.source.messages.clear()
            with contextlib.suppress(TimeoutError):
                while True:
                    page.recv(timeout=0)
