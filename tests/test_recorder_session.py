"""A session of recording: what is played is what is kept, whatever happens in between."""

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
from lookfurther.cli.record import RecordOptions, default_name, recorder
from lookfurther.config import Environment
from lookfurther.demos import storage
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import unroll
from lookfurther.envs.emulator import MEANINGS
from lookfurther.errors import DemonstrationError, RunLocked
from lookfurther.recorder.protocol import Message
from lookfurther.recorder.session import Recorder
from lookfurther.recorder.stream import HEADER, Clock
from tests import test_recorder  # registers its environments

assert test_recorder
ROOT = Path(__file__).parents[1]
NAME = "test/played-v0"
GRID = Environment(wrappers=("lookfurther.envs.minigrid:OneHotGrid",))
LEVEL = "MiniGrid-Empty-5x5-v0"


class Wake(asyncio.Event):
    """What a recorder waits for when it has nothing to do, and whether it does."""

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
    def idle(self) -> bool:
        """Whether nothing happens before the next message."""
        return self._waiting and not self.is_set()


class Player:
    """A page without a browser, that takes frames as fast as they come."""

    def __init__(self, source: Recorder) -> None:
        self.source = source
        self.wake = source._wake = Wake()
        self.frames: list[np.ndarray] = []
        self.said: list[dict[str, Any]] = []
        self.number = 0

    async def frame(self, picture: np.ndarray, keys: int = 0) -> None:
        self.frames.append(picture.copy())
        await asyncio.sleep(0)

    async def say(self, kind: str, **facts: Any) -> None:
        self.said.append({"kind": kind, **facts})

    def late(self) -> float:
        return 0.0

    def ask(self, kind: str, **facts: Any) -> None:
        self.source.hear(Message(kind, **facts))

    def hold(self, *names: str) -> None:
        self.number += 1
        self.source.hear(Message("keys", self.number, frozenset(names)))

    def tap(self, *names: str) -> None:
        self.hold(*names)
        self.hold()

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a status; the time limit of the test catches what never comes."""
        while not holds(status := self.source.status()):
            await asyncio.sleep(0.001)
        return status

    async def steps(self, count: int) -> None:
        await self.until(lambda status: status["steps"] >= count)

    async def settle(self) -> dict[str, Any]:
        """Wait until the recorder waits for the next message."""
        while not self.wake.idle:
            await asyncio.sleep(0.001)
        return self.source.status()

    @property
    def episodes(self) -> list[dict[str, Any]]:
        return [m for m in self.said if m["kind"] == "episodes"][-1]["episodes"]

    @property
    def notices(self) -> list[str]:
        return [m["text"] for m in self.said if m["kind"] == "notice"]


@contextlib.asynccontextmanager
async def connected(source: Recorder) -> AsyncIterator[Player]:
    """A player for a while; afterwards the page is gone."""
    player = Player(source)
    show = asyncio.create_task(source.show(player))  # type: ignore[arg-type]
    try:
        yield player
    finally:
        failed = show.done()
        show.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await show
        source.leave()
    assert not failed


@pytest.fixture(autouse=True)
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of sets, and a clock that does not wait."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    async def tick(*_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Clock, "tick", tick)
    return tmp_path


def session(env: str, environment: Environment | None = None, **options: Any):
    environment = environment or Environment()
    return recorder(RecordOptions(env, environment=environment, **options), NAME)


def kept(env: str, environment: Environment | None = None) -> list[Episode]:
    """The episodes of the set, each of which a replay has equalled."""
    environment = environment or Environment()
    episodes = storage.load(NAME, storage.describe(NAME).spec, environment=environment)
    for episode in episodes:
        assert episode.audit is not None
        assert episode.audit.verified, episode.audit.mismatch
    return episodes


# Playing


def test_what_is_played_rewound_and_saved_is_what_a_replay_shows() -> None:
    """Atari: the tape alone gives every plane and reward, in steps of one action (F28)."""

    async def play() -> int:
        with session("ALE/Breakout-v5") as source:
            async with connected(source) as player:
                player.hold("fire")
                await player.steps(20)
                player.hold("right", "fire")
                await player.steps(60)
                player.ask("rewind", on=True)
                await player.until(lambda status: status["steps"] <= 40)
                player.ask("rewind", on=False)
                rewound = (await player.settle())["steps"]
                assert rewound <= 40
                player.hold()
                player.hold("left")
                await player.steps(rewound + 30)
                player.ask("pause")
                steps = (await player.settle())["steps"]
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)
                await player.settle()
                assert [e["steps"] for e in player.episodes] == [steps]
                assert player.episodes[0]["verified"]
                assert player.episodes[0]["picture"].startswith("data:image/png;base64,")
                return rewound

    rewound = asyncio.run(play())
    (episode,) = kept("ALE/Breakout-v5")
    assert episode.tape is not None
    blocks = episode.tape.frames.reshape(-1, 4)
    assert (blocks == blocks[:, :1]).all()
    assert (blocks[:, 0] == episode.actions).all()
    assert MEANINGS[episode.actions[0]] == "FIRE"
    assert {MEANINGS[a] for a in episode.actions[rewound:]} == {"LEFT"}
    again = unroll(episode.tape, "ALE/Breakout-v5")
    assert (again.planes == episode.planes).all()
    assert (again.rewards == episode.rewards).all()
    assert not episode.terminal


def test_every_frame_is_shown_at_normal_speed_and_some_at_high_speed() -> None:
    async def play(speed: float) -> tuple[int, int]:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.ask("speed", speed=speed)
                player.hold("up")
                await player.steps(25)
                player.ask("pause")
                status = await player.settle()
                player.ask("discard")
                await player.settle()
                return len(player.frames) - 2, status["frames"]  # but the first and the next game's

    shown, played = asyncio.run(play(1.0))  # `played` counts whole steps of 4 frames
    assert 100 <= played <= shown < played + 4
    shown, played = asyncio.run(play(4.0))
    assert played // 4 <= shown <= played // 4 + 2


def test_a_tap_shorter_than_a_step_is_played() -> None:
    async def play() -> list[int]:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.tap("up", "fire")
                await player.steps(3)
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)
                return kept("ALE/Pong-v5")[0].actions.tolist()

    actions = asyncio.run(play())
    assert [MEANINGS[a] for a in actions[:3]] == ["UPFIRE", "NOOP", "NOOP"]


def test_step_by_step() -> None:
    """`step` plays one action's frames with what is held down, and waits again."""

    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.ask("pause")
                player.hold("down")
                for number in range(1, 4):
                    player.ask("step")
                    status = await player.settle()
                    assert (status["state"], status["steps"]) == ("paused", number)
                assert status["frames"] == 12
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert [MEANINGS[a] for a in kept("ALE/Pong-v5")[0].actions] == ["DOWN"] * 3


def test_a_game_of_turns_waits_for_each_key() -> None:
    """MiniGrid: a press is a step, two keys are two; the goal ends it; rewinding undoes that."""

    async def play() -> None:
        with session(LEVEL, GRID) as source:
            async with connected(source) as player:
                names = [b["name"] for b in source.hello()["buttons"]]
                assert names[:3] == ["left", "right", "forward"]
                for name in ("forward", "forward", "right", "forward", "forward"):
                    player.tap(name)
                status = await player.settle()
                assert (status["state"], status["steps"]) == ("over", 5)
                assert status["score"] > 0.9
                player.ask("rewind", on=True)
                await player.until(lambda status: status["steps"] < 5)
                player.ask("rewind", on=False)
                steps = (await player.settle())["steps"]
                for name in ("forward", "forward", "right", "forward", "forward")[steps:]:
                    player.tap(name)
                await player.until(lambda status: status["state"] == "over")
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    (episode,) = kept(LEVEL, GRID)
    assert episode.actions.tolist() == [2, 2, 1, 2, 2]
    assert episode.terminal
    assert episode.seed == 0


def test_real_time_without_a_key_is_the_idle_action() -> None:
    async def play() -> None:
        with session("CartPole-v1", real_time=True, idle=1, keys=("0=left", "1=right")) as source:
            async with connected(source) as player:
                player.tap("0")
                await player.until(lambda status: status["state"] == "over")
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    actions = kept("CartPole-v1")[0].actions
    assert actions[0] == 0
    assert (actions[1:] == 1).all()


def test_discarding_leaves_nothing_and_begins_anew(sets: Path) -> None:
    async def play() -> None:
        with session("ALE/Pong-v5", seed=5) as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
                player.ask("discard")
                await player.until(lambda status: status["state"] == "ready")
                assert (await player.settle())["steps"] == 0
                player.ask("save")  # of nothing
                await player.settle()
                assert player.episodes == []

    asyncio.run(play())
    assert storage.names() == []


@pytest.mark.parametrize(("env", "environment"), [("ALE/Breakout-v5", None), (LEVEL, GRID)])
def test_whatever_is_asked_the_game_and_its_record_keep_step(
    env: str, environment: Environment | None
) -> None:
    """Any messages at any moments, and what is saved in the end is still what a replay shows."""
    rng = random.Random(1)
    speeds = [0.25, 1.0, 4.0]

    async def play() -> None:
        with session(env, environment) as source:
            names = [button["name"] for button in source.hello()["buttons"]]
            async with connected(source) as player:
                for _ in range(400):
                    kind = rng.choice(
                        ["keys", "keys", "rewind", "speed", "pause", "resume", "step"]
                    )
                    held = frozenset(rng.sample(names, rng.randint(0, 2)))
                    player.ask(kind, held=held, on=rng.random() < 0.3, speed=rng.choice(speeds))
                    for _ in range(rng.randint(0, 12)):
                        await asyncio.sleep(0)
                player.ask("rewind", on=False)
                player.ask("resume")
                player.tap(names[0])
                await player.steps(1)
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert len(kept(env, environment)) == 1


# Faults


def test_a_page_that_goes_pauses_the_game_and_finds_it_again() -> None:
    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
            left = source.status()
            assert left["state"] == "ready"
            for _ in range(100):  # turns of the event loop, in each of which a step could be played
                await asyncio.sleep(0)
            assert source.status() == left
            async with connected(source) as player:
                assert await player.settle() == left
                assert len(player.frames) == 1
                player.hold("down")
                await player.steps(left["steps"] + 5)
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    actions = kept("ALE/Pong-v5")[0].actions
    assert {MEANINGS[a] for a in actions} == {"UP", "DOWN"}


def test_a_page_that_goes_while_saving_does_not_stop_the_save() -> None:
    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
                player.ask("save")
                await player.until(lambda status: status["state"] == "saving")
            async with connected(source) as player:
                await player.until(lambda status: status["state"] == "ready")
                assert (await player.settle())["steps"] == 0
                assert len(player.episodes) == 1

    asyncio.run(play())
    assert len(kept("ALE/Pong-v5")) == 1


def test_a_failed_save_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
                player.ask("pause")
                steps = (await player.settle())["steps"]
                with monkeypatch.context() as patch:
                    patch.setattr(storage, "append", full)
                    player.ask("save")
                    await player.until(lambda status: status["state"] == "ready")
                    assert (await player.settle())["steps"] == steps
                assert "nothing is lost" in player.notices[-1]
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    def full(*_: Any, **__: Any) -> None:
        raise DemonstrationError("the disk is full")

    asyncio.run(play())
    assert len(kept("ALE/Pong-v5")) == 1


def test_a_step_that_cannot_be_written_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk pauses the game where the journal ends; with room again it goes on from there."""
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"action"' in data:
            write(file, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
                with monkeypatch.context() as patch:
                    patch.setattr(os, "write", full)
                    status = await player.until(lambda status: status["state"] == "paused")
                    await player.settle()
                assert "No space left on device" in player.notices[-1]
                player.ask("resume")
                await player.steps(status["steps"] + 10)
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    assert len(kept("ALE/Pong-v5")[0]) >= 20


@pytest.mark.parametrize("repeats", [True, False])
def test_an_environment_that_breaks_keeps_what_was_played(
    repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that repeats itself goes on from the last good step, another ends there, as it says."""
    import gymnasium

    kwargs = {"repeats": repeats, "breaks": 25}
    spec = gymnasium.spec("lookfurther/Forgetful-v0")
    monkeypatch.setattr(spec, "kwargs", kwargs)

    async def play() -> None:
        with session("lookfurther/Forgetful-v0") as source:
            assert source.hello()["rewind"] is repeats
            async with connected(source) as player:
                for _ in range(25):
                    player.tap("1")
                status = await player.until(lambda status: status["state"] in ("paused", "over"))
                assert status["steps"] == 24
                assert status["broken"] is not repeats
                await player.settle()
                assert "out of order" in player.notices[-1]
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)
                await player.settle()
                (episode,) = player.episodes
                assert episode["verified"] is repeats
                assert bool(episode["mismatch"]) is not repeats

    asyncio.run(play())
    assert storage.describe(NAME).episodes[0].steps == 24


# Killed


def test_a_recorder_takes_up_what_another_left() -> None:
    async def first() -> int:
        with session("ALE/Breakout-v5") as source:
            async with connected(source) as player:
                player.hold("fire")
                await player.steps(30)
                player.ask("rewind", on=True)
                await player.until(lambda status: status["steps"] < 25)
        return source.status()["steps"]

    async def second(steps: int) -> None:
        with session("ALE/Breakout-v5") as source:
            assert source.status()["steps"] == steps
            async with connected(source) as player:
                player.hold("left")
                await player.steps(steps + 10)
                assert f"unfinished episode of {steps} steps is back" in player.notices[0]
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(second(asyncio.run(first())))
    assert len(kept("ALE/Breakout-v5")) == 1


def test_an_episode_saved_just_before_the_end_is_not_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed after the set has it and before the journal is cleared."""
    from lookfurther.recorder.journal import Journal

    async def first() -> None:
        with session("ALE/Pong-v5") as source:
            async with connected(source) as player:
                player.hold("up")
                await player.steps(10)
                with monkeypatch.context() as patch:
                    patch.setattr(Journal, "clear", stop)
                    player.ask("save")
                    await player.until(lambda status: status["state"] == "ready")

    def stop(_: Journal) -> None:
        raise OSError("killed here")

    asyncio.run(first())
    assert len(kept("ALE/Pong-v5")) == 1
    with session("ALE/Pong-v5") as source:
        assert source.status()["steps"] == 0


def test_what_does_not_replay_is_set_aside_not_lost(sets: Path) -> None:
    async def first() -> None:
        with session("lookfurther/Forgetful-v0") as source:
            async with connected(source) as player:
                for _ in range(3):
                    player.tap("1")
                await player.steps(3)

    asyncio.run(first())
    journal = sets / "test" / ".played-v0.recorder" / "unfinished.jsonl"
    before = journal.read_bytes()
    with session("lookfurther/Forgetful-v0") as source:
        assert source.status()["steps"] == 0
        assert journal.with_name("unfinished.1.jsonl").read_bytes() == before


def test_other_settings_and_other_games_are_refused_before_play() -> None:
    async def play() -> None:
        with session("ALE/Pong-v5") as source:
            with pytest.raises(RunLocked), session("ALE/Pong-v5"):
                pass
            async with connected(source) as player:
                player.hold("up")
                await player.steps(3)
                player.ask("save")
                await player.until(lambda status: status["steps"] == 0)

    asyncio.run(play())
    for env, environment in (("ALE/Breakout-v5", None), ("ALE/Pong-v5", Environment(repeat=3))):
        with pytest.raises(DemonstrationError, match=f"{NAME} holds"), session(env, environment):
            pass


# The command


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
def test_the_command_names_what_is_wrong(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *words]) != 0
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_name_without_version_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every other command has it: of a new set -v0, of an existing one the newest."""
    from lookfurther.recorder import server

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(server, "serve", lambda source, host, port, announce: announce("here"))
    assert main(["record", "ALE/Pong-v5", "--name", "pong"]) == 0
    assert "episodes join the set pong-v0; Ctrl-C ends" in capsys.readouterr().out


def test_names_of_sets() -> None:
    assert default_name("ALE/MontezumaRevenge-v5") == "recorded/MontezumaRevenge-v0"
    assert default_name("module:MiniGrid-Empty-5x5-v0") == "recorded/MiniGrid-Empty-5x5-v0"


class Command:
    """A command that serves a page, in a process of its own."""

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

    def live(self) -> ClientConnection:
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


def play_until(page: ClientConnection, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Show frames as a page would, until a status; the last one."""
    while True:
        data = page.recv()
        if isinstance(data, bytes):
            number = HEADER.unpack_from(data)[0]
            page.send(json.dumps({"kind": "seen", "number": number, "wait": 4}))
        elif (said := json.loads(data))["kind"] == "status" and holds(said):
            return said


def test_what_was_played_survives_a_killed_server() -> None:
    """Every step a page was told of is there again after a SIGKILL, and verifies when saved."""
    words = ("ALE/Pong-v5", "--name", NAME)
    server = Command(*words)
    with server.live() as page:
        page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
        told = play_until(page, lambda status: status["steps"] >= 20)
        server.stop(signal.SIGKILL)
    server = Command(*words)
    with server.live() as page:
        found = play_until(page, lambda status: True)
        assert found["state"] == "ready"
        assert told["steps"] <= found["steps"] <= told["steps"] + 2
        page.send('{"kind": "save"}')
        play_until(page, lambda status: status["steps"] == 0)
    assert server.stop(signal.SIGINT) == 0
    (episode,) = kept("ALE/Pong-v5")
    assert len(episode) == found["steps"]


# The real server among strangers


class Logged(Command):
    """The same with its errors in a file, and few file descriptors."""

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

    def __enter__(self) -> Logged:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def idle(self, count: int) -> list[socket.socket]:
        """Connections that never say anything."""
        host, port = self.address.partition("/")[0].split(":")
        return [socket.create_connection((host, int(port))) for _ in range(count)]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """As many open sockets for the test itself as the system allows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_many_idle_connections_do_not_stop_play(tmp_path: Path, descriptors: None) -> None:
    """More than the server has file descriptors for, before and while somebody plays."""
    log = tmp_path / "log"
    with contextlib.ExitStack() as strangers, Logged(log, "ALE/Pong-v5", "--name", NAME) as server:
        for stranger in server.idle(300):
            strangers.enter_context(stranger)
        with server.live() as page:
            page.send('{"kind": "keys", "number": 1, "held": ["up"]}')
            play_until(page, lambda status: status["steps"] >= 5)
            for stranger in server.idle(300):
                strangers.enter_context(stranger)
            seen = play_until(page, lambda status: status["steps"] >= 10)
            assert seen["state"] == "playing"
        assert server.stop(signal.SIGINT) == 0
    assert log.stat().st_size < 1000


def test_token_is_printed_once_and_never_logged(tmp_path: Path) -> None:
    """The address is for the player; a log of requests would show it to every reader of the log."""
    log = tmp_path / "log"
    with Logged(log, "ALE/Pong-v5", "--name", NAME) as server:
        host, _, path = server.address.partition("/")
        token = path.strip("/")
        assert server.first_line.count(token) == 1
        for place, status in ((f"/{path}", 200), (f"/{token}/nothing", 404), (f"/{token}x/", 403)):
            page = http.client.HTTPConnection(host)
            page.request("GET", place)
            assert page.getresponse().status == status
            page.close()
        server.live().close()
        server.process.send_signal(signal.SIGINT)
        said, _ = server.process.communicate()
    assert "episodes join the set" in said  # the output is there, and the token is not in it
    assert token not in said + log.read_text()
