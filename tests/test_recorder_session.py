"""Recording sessions: saved episodes replay equally, also after faults."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")

from websockets.sync.client import ClientConnection, connect

from lookfurther.cli.main import main
from lookfurther.cli.record import RecordOptions, default_set_name, open_recorder
from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs.emulator import ACTION_MEANINGS
from lookfurther.errors import DemonstrationError, RunLocked
from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.session import RecordingSession
from lookfurther.recorder.stream import FRAME_HEADER, FrameClock
from tests import test_recorder  # registers its environments

assert test_recorder
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


@pytest.fixture(autouse=True)
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for sets, and a clock that does not wait."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    async def tick(*_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(FrameClock, "tick", tick)
    return tmp_path


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


# Playing


def test_saved_episode_with_rewind_replays_equally() -> None:
    """Atari: the input log alone reproduces every plane and reward, with one action per step."""

    async def play() -> int:
        with make_recorder("ALE/Breakout-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("fire")
                await player.wait_for_steps(20)
                player.hold_buttons("right", "fire")
                await player.wait_for_steps(60)
                player.send_message("rewind", is_held=True)
                await player.wait_for_status(lambda status: status["steps"] <= 40)
                player.send_message("rewind", is_held=False)
                rewound = (await player.wait_until_idle())["steps"]
                assert rewound <= 40
                player.hold_buttons()
                player.hold_buttons("left")
                await player.wait_for_steps(rewound + 30)
                player.send_message("pause")
                steps = (await player.wait_until_idle())["steps"]
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)
                await player.wait_until_idle()
                assert [e["steps"] for e in player.episodes] == [steps]
                assert player.episodes[0]["verified"]
                assert player.episodes[0]["picture"].startswith("data:image/png;base64,")
                return rewound

    rewound = asyncio.run(play())
    (episode,) = load_verified("ALE/Breakout-v5")
    assert episode.input_log is not None
    blocks = episode.input_log.frame_actions.reshape(-1, 4)
    assert (blocks == blocks[:, :1]).all()
    assert (blocks[:, 0] == episode.actions).all()
    assert ACTION_MEANINGS[episode.actions[0]] == "FIRE"
    assert {ACTION_MEANINGS[a] for a in episode.actions[rewound:]} == {"LEFT"}
    again = episode_from_log(episode.input_log, "ALE/Breakout-v5")
    assert (again.planes == episode.planes).all()
    assert (again.rewards == episode.rewards).all()
    assert not episode.terminal


def test_frames_are_skipped_only_at_high_speed() -> None:
    async def play(speed: float) -> tuple[int, int]:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.send_message("speed", speed=speed)
                player.hold_buttons("up")
                await player.wait_for_steps(25)
                player.send_message("pause")
                status = await player.wait_until_idle()
                player.send_message("discard")
                await player.wait_until_idle()
                return len(player.frames) - 2, status[
                    "frames"
                ]  # without the first and the next game's

    shown, played = asyncio.run(play(1.0))  # `played` counts whole steps of 4 frames
    assert 100 <= played <= shown < played + 4
    shown, played = asyncio.run(play(4.0))
    assert played // 4 <= shown <= played // 4 + 2


def test_tap_shorter_than_step_is_played() -> None:
    async def play() -> list[int]:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.tap_buttons("up", "fire")
                await player.wait_for_steps(3)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)
                return load_verified("ALE/Pong-v5")[0].actions.tolist()

    actions = asyncio.run(play())
    assert [ACTION_MEANINGS[a] for a in actions[:3]] == ["UPFIRE", "NOOP", "NOOP"]


def test_step_command_plays_one_step() -> None:
    """ "step" plays the frames of one action with the held buttons and pauses again."""

    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.send_message("pause")
                player.hold_buttons("down")
                for number in range(1, 4):
                    player.send_message("step")
                    status = await player.wait_until_idle()
                    assert (status["state"], status["steps"]) == ("paused", number)
                assert status["frames"] == 12
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert [ACTION_MEANINGS[a] for a in load_verified("ALE/Pong-v5")[0].actions] == ["DOWN"] * 3


def test_turn_based_game_waits_for_each_key() -> None:
    """MiniGrid: each key press is a step; the goal ends the episode; rewinding undoes that."""

    async def play() -> None:
        with make_recorder(LEVEL, GRID) as source:
            async with connected_page(source) as player:
                names = [b["name"] for b in source.hello_message()["buttons"]]
                assert names[:3] == ["left", "right", "forward"]
                for name in ("forward", "forward", "right", "forward", "forward"):
                    player.tap_buttons(name)
                status = await player.wait_until_idle()
                assert (status["state"], status["steps"]) == ("over", 5)
                assert status["score"] > 0.9
                player.send_message("rewind", is_held=True)
                await player.wait_for_status(lambda status: status["steps"] < 5)
                player.send_message("rewind", is_held=False)
                steps = (await player.wait_until_idle())["steps"]
                for name in ("forward", "forward", "right", "forward", "forward")[steps:]:
                    player.tap_buttons(name)
                await player.wait_for_status(lambda status: status["state"] == "over")
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    (episode,) = load_verified(LEVEL, GRID)
    assert episode.actions.tolist() == [2, 2, 1, 2, 2]
    assert episode.terminal
    assert episode.seed == 0


def test_real_time_without_key_uses_idle_action() -> None:
    async def play() -> None:
        with make_recorder(
            "CartPole-v1", real_time=True, idle=1, keys=("0=left", "1=right")
        ) as source:
            async with connected_page(source) as player:
                player.tap_buttons("0")
                await player.wait_for_status(lambda status: status["state"] == "over")
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    actions = load_verified("CartPole-v1")[0].actions
    assert actions[0] == 0
    assert (actions[1:] == 1).all()


def test_discard_starts_new_episode(sets: Path) -> None:
    async def play() -> None:
        with make_recorder("ALE/Pong-v5", seed=5) as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
                player.send_message("discard")
                await player.wait_for_status(lambda status: status["state"] == "ready")
                assert (await player.wait_until_idle())["steps"] == 0
                player.send_message("save")  # without steps
                await player.wait_until_idle()
                assert player.episodes == []

    asyncio.run(play())
    assert storage.list_readable_ids() == []


@pytest.mark.parametrize(("env", "environment"), [("ALE/Breakout-v5", None), (LEVEL, GRID)])
def test_random_messages_keep_log_consistent(env: str, environment: EnvConfig | None) -> None:
    """After random messages at random times, the saved episode still replays equally."""
    rng = random.Random(1)
    speeds = [0.25, 1.0, 4.0]

    async def play() -> None:
        with make_recorder(env, environment) as source:
            names = [button["name"] for button in source.hello_message()["buttons"]]
            async with connected_page(source) as player:
                for _ in range(400):
                    kind = rng.choice(
                        ["keys", "keys", "rewind", "speed", "pause", "resume", "step"]
                    )
                    held = frozenset(rng.sample(names, rng.randint(0, 2)))
                    player.send_message(
                        kind,
                        held_buttons=held,
                        is_held=rng.random() < 0.3,
                        speed=rng.choice(speeds),
                    )
                    for _ in range(rng.randint(0, 12)):
                        await asyncio.sleep(0)
                player.send_message("rewind", is_held=False)
                player.send_message("resume")
                player.tap_buttons(names[0])
                await player.wait_for_steps(1)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert len(load_verified(env, environment)) == 1


# Faults


def test_disconnect_pauses_game_until_reconnect() -> None:
    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
            left = source.status()
            assert left["state"] == "ready"
            for _ in range(100):  # iterations of the event loop, each of which could play a step
                await asyncio.sleep(0)
            assert source.status() == left
            async with connected_page(source) as player:
                assert await player.wait_until_idle() == left
                assert len(player.frames) == 1
                player.hold_buttons("down")
                await player.wait_for_steps(left["steps"] + 5)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    actions = load_verified("ALE/Pong-v5")[0].actions
    assert {ACTION_MEANINGS[a] for a in actions} == {"UP", "DOWN"}


def test_disconnect_does_not_cancel_save() -> None:
    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["state"] == "saving")
            async with connected_page(source) as player:
                await player.wait_for_status(lambda status: status["state"] == "ready")
                assert (await player.wait_until_idle())["steps"] == 0
                assert len(player.episodes) == 1

    asyncio.run(play())
    assert len(load_verified("ALE/Pong-v5")) == 1


def test_failed_save_keeps_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
                player.send_message("pause")
                steps = (await player.wait_until_idle())["steps"]
                with monkeypatch.context() as patch:
                    patch.setattr(storage, "append_episodes", full)
                    player.send_message("save")
                    await player.wait_for_status(lambda status: status["state"] == "ready")
                    assert (await player.wait_until_idle())["steps"] == steps
                assert "nothing is lost" in player.notices[-1]
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    def full(*_: Any, **__: Any) -> None:
        raise DemonstrationError("the disk is full")

    asyncio.run(play())
    assert len(load_verified("ALE/Pong-v5")) == 1


def test_unwritable_step_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk pauses the game at the last recorded step; play continues from there later."""
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"action"' in data:
            write(file, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
                with monkeypatch.context() as patch:
                    patch.setattr(os, "write", full)
                    status = await player.wait_for_status(
                        lambda status: status["state"] == "paused"
                    )
                    await player.wait_until_idle()
                assert "No space left on device" in player.notices[-1]
                player.send_message("resume")
                await player.wait_for_steps(status["steps"] + 10)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert len(load_verified("ALE/Pong-v5")[0]) >= 20


@pytest.mark.parametrize("repeats", [True, False])
def test_environment_fault_keeps_recorded_steps(
    repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deterministic environment continues from the last good step, another ends there."""
    import gymnasium

    kwargs = {"repeats": repeats, "breaks": 25}
    spec = gymnasium.spec("lookfurther/Nondeterministic-v0")
    monkeypatch.setattr(spec, "kwargs", kwargs)

    async def play() -> None:
        with make_recorder("lookfurther/Nondeterministic-v0") as source:
            assert source.hello_message()["rewind"] is repeats
            async with connected_page(source) as player:
                for _ in range(25):
                    player.tap_buttons("1")
                status = await player.wait_for_status(
                    lambda status: status["state"] in ("paused", "over")
                )
                assert status["steps"] == 24
                assert status["broken"] is not repeats
                await player.wait_until_idle()
                assert "out of order" in player.notices[-1]
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)
                await player.wait_until_idle()
                (episode,) = player.episodes
                assert episode["verified"] is repeats
                assert bool(episode["mismatch"]) is not repeats

    asyncio.run(play())
    assert storage.read_description(NAME).episodes[0].steps == 24


# Killed recorder


def test_unfinished_episode_is_recovered() -> None:
    async def first() -> int:
        with make_recorder("ALE/Breakout-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("fire")
                await player.wait_for_steps(30)
                player.send_message("rewind", is_held=True)
                await player.wait_for_status(lambda status: status["steps"] < 25)
        return source.status()["steps"]

    async def second(steps: int) -> None:
        with make_recorder("ALE/Breakout-v5") as source:
            assert source.status()["steps"] == steps
            async with connected_page(source) as player:
                player.hold_buttons("left")
                await player.wait_for_steps(steps + 10)
                assert f"unfinished episode of {steps} steps" in player.notices[0]
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(second(asyncio.run(first())))
    assert len(load_verified("ALE/Breakout-v5")) == 1


def test_episode_saved_before_kill_is_not_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed between adding the episode to the set and clearing the journal."""
    from lookfurther.recorder.journal import Journal

    async def first() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(10)
                with monkeypatch.context() as patch:
                    patch.setattr(Journal, "clear", stop)
                    player.send_message("save")
                    await player.wait_for_status(lambda status: status["state"] == "ready")

    def stop(_: Journal) -> None:
        raise OSError("killed here")

    asyncio.run(first())
    assert len(load_verified("ALE/Pong-v5")) == 1
    with make_recorder("ALE/Pong-v5") as source:
        assert source.status()["steps"] == 0


def test_unreplayable_journal_is_archived(sets: Path) -> None:
    async def first() -> None:
        with make_recorder("lookfurther/Nondeterministic-v0") as source:
            async with connected_page(source) as player:
                for _ in range(3):
                    player.tap_buttons("1")
                await player.wait_for_steps(3)

    asyncio.run(first())
    journal = sets / "test" / ".played-v0.recorder" / "unfinished.jsonl"
    before = journal.read_bytes()
    with make_recorder("lookfurther/Nondeterministic-v0") as source:
        assert source.status()["steps"] == 0
        assert journal.with_name("unfinished.1.jsonl").read_bytes() == before


def test_incompatible_set_is_rejected_before_play() -> None:
    async def play() -> None:
        with make_recorder("ALE/Pong-v5") as source:
            with pytest.raises(RunLocked), make_recorder("ALE/Pong-v5"):
                pass
            async with connected_page(source) as player:
                player.hold_buttons("up")
                await player.wait_for_steps(3)
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    for env, environment in (
        ("ALE/Breakout-v5", None),
        ("ALE/Pong-v5", EnvConfig(action_repeat=3)),
    ):
        with (
            pytest.raises(DemonstrationError, match=f"{NAME} contains"),
            make_recorder(env, environment),
        ):
            pass


# Command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "env"),
        (["ALE/Pong-v5", "--seed", "-1"], "--seed must be 0"),
        (["ALE/Pong-v5", "--name", "../up"], "--name ../up"),
        (["ALE/Pong-v5", "--host", "192.0.2.1"], "--host 192.0.2.1 --port 0 cannot be served"),
        (["Nothing-v0"], "Nothing"),
        (["ALE/Pong-v5", "--environment.no-full-actions"], "all 18 actions"),
    ],
)
def test_record_command_error_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *words]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_set_name_without_version_gets_v0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in every other command: -v0 for a new set, the newest version of an existing one."""
    from lookfurther.recorder import server

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(server, "serve", lambda source, host, port, announce: announce("here"))
    assert main(["record", "ALE/Pong-v5", "--name", "pong"]) == 0
    assert "episodes are added to the set pong-v0; press Ctrl-C to stop" in capsys.readouterr().out


def test_default_set_name() -> None:
    assert default_set_name("ALE/MontezumaRevenge-v5") == "recorded/MontezumaRevenge-v0"
    assert default_set_name("module:MiniGrid-Empty-5x5-v0") == "recorded/MiniGrid-Empty-5x5-v0"


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


def test_killed_server_keeps_recorded_steps() -> None:
    """Every step in a sent status survives a SIGKILL and is verified when saved."""
    words = ("ALE/Pong-v5", "--name", NAME)
    server = ServerProcess(*words)
    with server.open_websocket() as page:
        page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
        before = play_until(page, lambda status: status["steps"] >= 20)
        server.stop(signal.SIGKILL)
    server = ServerProcess(*words)
    with server.open_websocket() as page:
        after = play_until(page, lambda status: True)
        assert after["state"] == "ready"
        assert before["steps"] <= after["steps"] <= before["steps"] + 2
        page.send('{"kind": "save"}')
        play_until(page, lambda status: status["steps"] == 0)
    assert server.stop(signal.SIGINT) == 0
    (episode,) = load_verified("ALE/Pong-v5")
    assert len(episode) == after["steps"]


# Server and other clients


class LoggedServer(ServerProcess):
    """A server process with a log file and few file descriptors."""

    def __init__(self, log: Path, *words: str, descriptors: int = 256) -> None:
        limits = (
            f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors},) * 2)"
        )
        code = f"{limits}; import sys; from lookfurther.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "record", *words]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        self.address = self.first_line.partition("http://")[2].strip()

    def __enter__(self) -> LoggedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def open_idle_connections(self, count: int) -> list[socket.socket]:
        """Open connections that send nothing."""
        host, port = self.address.partition("/")[0].split(":")
        return [socket.create_connection((host, int(port))) for _ in range(count)]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Raise the limit of open sockets of this process to the maximum."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_idle_connections_do_not_stop_play(tmp_path: Path, descriptors: None) -> None:
    """More connections than the server has file descriptors, before and during play."""
    log = tmp_path / "log"
    with (
        contextlib.ExitStack() as idle_connections,
        LoggedServer(log, "ALE/Pong-v5", "--name", NAME) as server,
    ):
        for connection in server.open_idle_connections(300):
            idle_connections.enter_context(connection)
        with server.open_websocket() as page:
            page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
            play_until(page, lambda status: status["steps"] >= 5)
            for connection in server.open_idle_connections(300):
                idle_connections.enter_context(connection)
            status = play_until(page, lambda status: status["steps"] >= 10)
            assert status["state"] == "playing"
        assert server.stop(signal.SIGINT) == 0
    assert log.stat().st_size < 1000


def test_token_is_printed_once_and_never_logged(tmp_path: Path) -> None:
    """The token is for the player; a request log would show it to every reader of the log."""
    log = tmp_path / "log"
    with LoggedServer(log, "ALE/Pong-v5", "--name", NAME) as server:
        host, _, path = server.address.partition("/")
        token = path.strip("/")
        assert server.first_line.count(token) == 1
        for place, status in ((f"/{path}", 200), (f"/{token}/nothing", 404), (f"/{token}x/", 403)):
            page = http.client.HTTPConnection(host)
            page.request("GET", place)
            assert page.getresponse().status == status
            page.close()
        server.open_websocket().close()
        server.process.send_signal(signal.SIGINT)
        output, _ = server.process.communicate()
    assert "episodes are added to the set" in output
    assert token not in output + log.read_text()
