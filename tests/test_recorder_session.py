"""Recording sessions: saved episodes replay equally."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the recorder is an extra: lookfurther[record]")


from lookfurther.config import EnvConfig
from lookfurther.demos import storage
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs.emulator import ACTION_MEANINGS
from tests.recorder_pages import (
    GRID,
    LEVEL,
    connected_page,
    load_verified,
    make_recorder,
)

pytestmark = pytest.mark.usefixtures("recorder_sets")


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
                status = {}
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
                player.tap_buttons("left")
                await player.wait_for_status(lambda status: status["state"] == "over")
                player.send_message("save")
                await player.wait_for_status(lambda status: status["steps"] == 0)

    asyncio.run(play())
    actions = load_verified("CartPole-v1")[0].actions
    assert actions[0] == 0
    assert (actions[1:] == 1).all()


def test_discard_starts_new_episode(recorder_sets: Path) -> None:
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
    assert list(storage.list_ids()) == []


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
