"""Recording sessions: disconnects, faults and killed recorders."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")


from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.envs.emulator import ACTION_MEANINGS
from lookfurther.errors import DemonstrationError, RunLocked
from tests.recorder_pages import (
    NAME,
    connected_page,
    load_verified,
    make_recorder,
)

pytestmark = pytest.mark.usefixtures("recorder_sets")


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


def test_unreplayable_journal_is_archived(recorder_sets: Path) -> None:
    async def first() -> None:
        with make_recorder("lookfurther/Nondeterministic-v0") as source:
            async with connected_page(source) as player:
                for _ in range(3):
                    player.tap_buttons("1")
                await player.wait_for_steps(3)

    asyncio.run(first())
    journal = recorder_sets / "test" / ".played-v0.recorder" / "unfinished.jsonl"
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
