"""A live view of an agent next to an expert."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lookfurther.envs.naming import short_env_title
from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.stream import FrameClock, PageConnection
from lookfurther.video import END_PAUSE_SECONDS, SideBySide, playback_pace
from lookfurther.video.layout import VideoLayout
from lookfurther.video.playback import EnvView
from lookfurther.video.players import ExpertEpisode, make_pair

if TYPE_CHECKING:
    from lookfurther.agent import Agent


class WatchSession:
    """A FrameSource that plays one pair of episodes after another, without player input."""

    def __init__(
        self, agent: Agent, experts: Sequence[ExpertEpisode], seed: int, width: int
    ) -> None:
        self._agent, self._experts, self._seed = agent, experts, seed
        self._env_view = EnvView.from_config(agent.config, agent.spec)
        self._title = short_env_title(self._env_view.spec.env)
        self._layout = VideoLayout(self._title, self._env_view, width)
        self._pair_number = 0
        self._speed, self._is_paused = 1.0, False
        self._wake = asyncio.Event()
        self._start_pair()

    def hello_message(self) -> dict[str, Any]:
        return {
            "mode": "watch",
            "title": self._title,
            "env": self._env_view.spec.env,
            "buttons": [],
            "fps": self._env_view.frame_rate,
            "turns": False,
            "aspect": 1.0,
            "rewind": False,
        }

    def status(self) -> dict[str, Any]:
        """Return the agent's values, which the page shows next to the screen."""
        agent = self._side_by_side.playbacks[0]
        repeat = self._env_view.env_config.action_repeat if self._env_view.is_atari else 1
        return {
            "state": "paused" if self._is_paused else "watching",
            "steps": -(-agent.frame_count // repeat),
            "begun": True,
            "score": float(agent.returns[-1]),
            "frames": agent.frame_count,
            "lives": agent.lives,
            "speed": self._speed,
            "rewind": False,
            "broken": False,
        }

    def on_message(self, message: PageMessage) -> None:
        """Pause, resume or change the speed; ignore other messages."""
        if message.kind == "speed":
            self._speed = message.speed
        elif message.kind in ("pause", "resume"):
            self._is_paused = message.kind == "pause"
        self._wake.set()

    def on_disconnect(self) -> None:
        """Do nothing: playback stops until a page connects."""

    async def stream_to(self, connection: PageConnection) -> None:
        """Play for the page; cancelled when the page disconnects."""
        clock = FrameClock()
        while True:
            self._wake.clear()
            await connection.send_frame(self._side_by_side.draw_at(self._frame_number))
            await connection.send("status", **self.status())
            if self._is_paused:
                await self._wake.wait()
                continue
            stride, fps = playback_pace(self._env_view.frame_rate, 0, self._speed)
            if self._side_by_side.is_over:
                await asyncio.sleep(END_PAUSE_SECONDS)
                self._pair_number += 1
                self._start_pair()
            else:
                self._frame_number += stride
                await clock.tick(fps, connection.clock_shift())

    def _start_pair(self) -> None:
        """Start the next pair."""
        expert = self._experts[self._pair_number % len(self._experts)] if self._experts else None
        self._frame_number = 0
        self._side_by_side = SideBySide(
            self._layout,
            make_pair(self._agent, self._env_view, expert, self._seed + self._pair_number),
        )
