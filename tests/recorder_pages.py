"""Fake pages, recording sessions and server processes for tests of the recorder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")

from websockets.sync.client import ClientConnection, connect

from lookfurther.cli.record import RecordOptions, open_recorder
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.session import RecordingSession
from lookfurther.recorder.stream import FRAME_HEADER, FrameClock
from tests import recorder_envs

assert recorder_envs  # registers its environments
ROOT = Path(__file__).parents[1]
NAME = "test/played-v0"
GRID = EnvConfig(wrappers=("lookfurther.envs.minigrid:OneHotGrid",))
LEVEL = "MiniGrid-Empty-5x5-v0"


class IdleEvent(asyncio.Event):
    """An event that knows whether a task waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = False

    async def wait(self) -> Literal[True]:
        self._waiting = True
        try:
            return await super().wait()
        finally:
            self._waiting = False

    @property
    def is_idle(self) -> bool:
        """Whether the recorder does nothing until the next message."""
        return self._waiting and not self.is_set()


class FakePage:
    """A page without a browser that accepts frames immediately."""

    def __init__(self, source: RecordingSession) -> None:
        self.source = source
        self.wake = source._wake = IdleEvent()
        self.frames: list[np.ndarray] = []
        self.messages: list[dict[str, Any]] = []
        self.number = 0

    async def send_frame(self, picture: np.ndarray, keys: int = 0) -> None:
        self.frames.append(picture.copy())
        await asyncio.sleep(0)

    async def send(self, kind: str, **fields: Any) -> None:
        self.messages.append({"kind": kind, **fields})

    def clock_shift(self) -> float:
        return 0.0

    def send_message(self, kind: str, **fields: Any) -> None:
        self.source.on_message(PageMessage(kind, **fields))

    def hold_buttons(self, *names: str) -> None:
        self.number += 1
        self.source.on_message(PageMessage("keys", self.number, frozenset(names)))

    def tap_buttons(self, *names: str) -> None:
        self.hold_buttons(*names)
        self.hold_buttons()

    async def wait_for_status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a status; the time limit of the test ends an endless wait."""
        while not condition(status := self.source.status()):
            await asyncio.sleep(0.001)
        return status

    async def wait_for_steps(self, count: int) -> None:
        await self.wait_for_status(lambda status: status["steps"] >= count)

    async def wait_until_idle(self) -> dict[str, Any]:
        """Wait until the recorder is idle."""
        while not self.wake.is_idle:
            await asyncio.sleep(0.001)
        return self.source.status()

    @property
    def episodes(self) -> list[dict[str, Any]]:
        return [m for m in self.messages if m["kind"] == "episodes"][-1]["episodes"]

    @property
    def notices(self) -> list[str]:
        return [m["text"] for m in self.messages if m["kind"] == "notice"]


@contextlib.asynccontextmanager
async def connected_page(source: RecordingSession) -> AsyncIterator[FakePage]:
    """Connect a page and disconnect it at the end."""
    player = FakePage(source)
    show = asyncio.create_task(source.stream_to(player))  # type: ignore[arg-type]
    try:
        yield player
    finally:
        failed = show.done()
        show.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await show
        source.on_disconnect()
    assert not failed


def isolate_recorder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder for sets, and a clock that does not wait."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))

    async def tick(*_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(FrameClock, "tick", tick)


def make_recorder(env: str, env_config: EnvConfig | None = None, **options: Any):
    env_config = env_config or EnvConfig()
    return open_recorder(RecordOptions(env, environment=env_config, **options), NAME)


def load_verified(env: str, env_config: EnvConfig | None = None) -> list[Episode]:
    """Load the episodes of the set, which must all be verified."""
    env_config = env_config or EnvConfig()
    episodes = storage.load_episodes(
        NAME, storage.read_description(NAME).spec, env_config=env_config
    )
    for episode in episodes:
        assert episode.audit is not None
        assert episode.audit.verified, episode.audit.mismatch
    return episodes


class ServerProcess:
    """A command that serves a page, in a subprocess."""

    def __init__(self, *words: str, name: str = "record", folder: Path = ROOT) -> None:
        command = [sys.executable, "-m", "lookfurther", name, *words]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": paths}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://([^\s;]+)", self.process.stdout.readline())
        assert found is not None
        self.address = found[1]
        assert self.address.startswith("127.0.0.1:")

    def open_websocket(self) -> ClientConnection:
        origin = "http://" + self.address.partition("/")[0]
        return connect(
            f"ws://{self.address}live",
            origin=origin,  # type: ignore[arg-type]
            open_timeout=None,
            ping_interval=None,
            max_queue=None,
            max_size=None,
        )

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def play_until(
    page: ClientConnection, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Acknowledge frames as a page does until a status fulfils the condition; return it."""
    while True:
        data = page.recv()
        if isinstance(data, bytes):
            number = FRAME_HEADER.unpack_from(data)[0]
            page.send(json.dumps({"kind": "seen", "number": number, "wait": 4}))
        elif (message := json.loads(data))["kind"] == "status" and condition(message):
            return message
