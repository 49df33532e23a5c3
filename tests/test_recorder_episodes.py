"""Recorded episodes: replay and delete, and what is on the disk after each."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")

from lookfurther.demos import storage
from lookfurther.errors import DemonstrationError
from lookfurther.recorder.keys import KNOWN_ACTIONS
from lookfurther.system import files
from tests.recorder_pages import NAME, FakePage, connected_page, load_verified, make_recorder

pytestmark = pytest.mark.usefixtures("recorder_sets")
ENV = "CartPole-v1"


async def record_episodes(player: FakePage, lengths: tuple[int, ...]) -> None:
    """Save episodes of these lengths: CartPole lasts more than eight steps of any actions."""
    for count, length in enumerate(lengths, 1):
        for i in range(length):
            player.tap_buttons("left" if i % 2 else "right")
        await player.wait_for_steps(length)
        player.send_message("save")
        await player.wait_for_status(lambda status: status["steps"] == 0)
        await player.wait_until_idle()
        assert len(player.episodes) == count


def test_deleted_episode_leaves_a_consistent_set(recorder_sets: Path) -> None:
    """The others keep their arrays, audits, seeds and pictures; the next seed is a new one."""

    async def play() -> list[dict[str, Any]]:
        with make_recorder(ENV) as source:
            async with connected_page(source) as player:
                await record_episodes(player, (3, 4, 5))
                before = player.episodes
                player.send_message("delete", episode=before[0]["id"])
                player.send_message("delete", episode=before[0]["id"])
                while len(player.episodes) == 3:
                    await asyncio.sleep(0.001)
                await player.wait_until_idle()
                assert player.episodes == before[1:]
                player.send_message("delete", episode=before[0]["id"])
                while "any more" not in player.notices[-1]:
                    await asyncio.sleep(0.001)
                assert player.episodes == before[1:]
                return before

    before = asyncio.run(play())
    assert [len(episode) for episode in load_verified(ENV)] == [4, 5]
    metadata = json.loads((recorder_sets / NAME / "data" / "metadata.json").read_text())
    assert (metadata["total_episodes"], metadata["total_steps"]) == (2, 9)
    pictures = {path.stem for path in recorder_sets.glob("test/.*.recorder/*.png")}
    assert pictures == {episode["id"] for episode in before[1:]}
    with make_recorder(ENV) as source:
        assert source._recorded.log.seed == 3
    assert not list(recorder_sets.rglob(f"{files.TEMPORARY_PREFIX}*"))


def test_deleting_the_last_episode_removes_the_set(recorder_sets: Path) -> None:
    async def play() -> None:
        with make_recorder(ENV) as source:
            async with connected_page(source) as player:
                await record_episodes(player, (3,))
                player.send_message("delete", episode=player.episodes[0]["id"])
                while player.episodes:
                    await asyncio.sleep(0.001)
                assert not (recorder_sets / NAME).exists()
                await player.wait_until_idle()

    asyncio.run(play())
    with pytest.raises(DemonstrationError, match="no demonstrations named"):
        storage.read_description(NAME)


@pytest.mark.parametrize("stage", ["write_episodes", "_write_metadata", "exchange_paths"])
def test_interrupted_delete_keeps_all_episodes(
    stage: str, recorder_sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at any stage leaves the set as it was."""

    async def play() -> None:
        with make_recorder(ENV) as source:
            async with connected_page(source) as player:
                await record_episodes(player, (3, 4))

    asyncio.run(play())
    before = storage.read_description(NAME)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(storage, stage, fail)
    with pytest.raises(DemonstrationError, match="could not be changed: disk full"):
        storage.remove_episode(NAME, 0)
    assert storage.read_description(NAME) == before
    assert [len(episode) for episode in load_verified(ENV)] == [3, 4]
    assert not list(recorder_sets.rglob(f"{files.TEMPORARY_PREFIX}*"))


def test_exchange_swaps_folders(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    files.exchange_paths(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name / "file").read_text() for name in "ab"] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        files.exchange_paths(tmp_path / "a", tmp_path / "absent")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(("env", "button"), [(ENV, "right"), ("ALE/Breakout-v5", "fire")])
def test_replay_shows_the_recorded_frames(env: str, button: str) -> None:
    """The frames and the score are those of the recording; the episode in progress is kept."""

    async def play() -> None:
        with make_recorder(env) as source:
            async with connected_page(source) as player:
                for _ in range(4):
                    player.tap_buttons(button)
                await player.wait_for_steps(4)
                player.send_message("pause")
                score, frames = (await player.wait_until_idle())["score"], player.frames.copy()
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)
                await player.wait_until_idle()
                player.tap_buttons(button)
                await player.wait_for_steps(1)
                player.send_message("pause")
                progress, screen = await player.wait_until_idle(), player.frames[-1]
                player.send_message("replay", episode=player.episodes[0]["id"])
                await player.wait_for_status(lambda status: status["state"] == "replaying")
                shown = await player.wait_until_idle()
                assert shown["steps"] == player.episodes[0]["steps"]
                assert (shown["score"], shown["state"]) == (score, "replaying")
                # A pause may leave a step unfinished, which is not saved.
                assert any(np.array_equal(player.frames[-1], frame) for frame in frames[-4:])
                for kind in ("pause", "resume", "step", "save", "discard"):
                    player.send_message(kind)  # none of them applies to a replay
                assert await player.wait_until_idle() == shown
                player.send_message("stop")
                await player.wait_for_status(lambda status: status["state"] == "ready")
                after = await player.wait_until_idle()
                assert after | {"state": ""} == progress | {"state": ""}
                assert np.array_equal(player.frames[-1], screen)

    asyncio.run(play())
    assert len(load_verified(env)) == 1


def test_known_environments_have_fitting_keys() -> None:
    with make_recorder(ENV) as source:
        buttons = source.hello_message()["buttons"]
    assert [(b["name"], b["codes"]) for b in buttons] == [
        ("left", ("ArrowLeft",)),
        ("right", ("ArrowRight",)),
    ]
    assert all(len(set(names)) == len(names) for names in KNOWN_ACTIONS.values())
