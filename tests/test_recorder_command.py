"""The command `lookfurther record` and its server process."""

from __future__ import annotations

import contextlib
import http.client
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")


from lookfurther.cli.main import main
from lookfurther.cli.record import default_set_name
from tests.recorder_pages import (
    NAME,
    ROOT,
    ServerProcess,
    load_verified,
    play_until,
)

pytestmark = pytest.mark.usefixtures("recorder_sets")


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
    monkeypatch.setattr(server, "serve_page", lambda source, host, port, announce: announce("here"))
    assert main(["record", "ALE/Pong-v5", "--name", "pong"]) == 0
    assert "episodes are added to the set pong-v0; press Ctrl-C to stop" in capsys.readouterr().out


def test_default_set_name() -> None:
    assert default_set_name("ALE/MontezumaRevenge-v5") == "recorded/MontezumaRevenge-v0"
    assert default_set_name("module:MiniGrid-Empty-5x5-v0") == "recorded/MiniGrid-Empty-5x5-v0"


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
