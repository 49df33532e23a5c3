"""Connecting to a cluster: what is printed, and what is refused."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from lookfurther.errors import ClusterFault
from lookfurther.training.cluster import connection


def test_plan_names_actors_without_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.ray, "nodes", lambda: [{"Alive": True}] * 2 + [{"Alive": False}])
    monkeypatch.setattr(connection.ray, "cluster_resources", lambda: {"CPU": 3.0})
    nodes = "cluster of 2 nodes with 3 cores; "
    assert connection.describe_placement(1, 1) == f"{nodes}1 actor for 1 lane"
    assert connection.describe_placement(3, 32) == f"{nodes}3 actors for 32 lanes"
    assert connection.describe_placement(5, 32) == (
        f"{nodes}5 actors for 32 lanes; 2 of them have no core until a node joins"
    )


def test_unreachable_head_is_an_error_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone tries for two minutes, and prints its own log."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection.ray, "init", lambda **_: pytest.fail("Ray was started"))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with (
        pytest.raises(ClusterFault, match=f"^--cluster {address} cannot be reached: .*refused"),
        connection.connect_cluster(address),
    ):
        pass


def start_with_errors(monkeypatch: pytest.MonkeyPatch, errors: list[Exception | None]) -> int:
    """Start local Ray, whose attempts raise these errors; returns the number of attempts."""
    attempts = iter(errors)

    def start(**_: Any) -> None:
        error = next(attempts)
        if error is not None:
            raise error

    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection.ray, "init", start)
    with connection.connect_cluster("local"):
        return len(errors) - len(list(attempts))


def test_slow_start_of_local_ray_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Exception("The current node timed out during startup.")
    assert start_with_errors(monkeypatch, [None]) == 1
    assert start_with_errors(monkeypatch, [slow, slow, None]) == 3
    with pytest.raises(ClusterFault, match=r"^Ray does not start on this machine: .* timed out"):
        start_with_errors(monkeypatch, [slow] * 3)
    with pytest.raises(ClusterFault, match=r"^Ray does not start on this machine: no space left"):
        start_with_errors(monkeypatch, [OSError("no space left"), None])


def test_auto_without_ray_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_instance(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance. Please specify the one")

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection.ray, "init", find_no_instance)
    with (
        pytest.raises(ClusterFault, match=r"no Ray runs on this machine; start it with ray start"),
        connection.connect_cluster("auto"),
    ):
        pass


def test_cluster_without_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterFault, match=r"--cluster head:6379 needs a token: create one"):
        connection.check_token("head:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef")
    with pytest.raises(ClusterFault, match=r"needs RAY_AUTH_MODE=token here and on every node"):
        connection.check_token("head:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    connection.check_token("head:6379")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    connection.check_token("head:6379")
