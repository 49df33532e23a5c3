"""An agent at play beside an expert, live: a Source without a player."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lookfurther.recorder.protocol import Message
from lookfurther.recorder.stream import Clock, Link
from lookfurther.video import PAUSE, Screening, pace
from lookfurther.video.layout import Stage
from lookfurther.video.playback import Scene
from lookfurther.video.players import Expert, pair, title

if TYPE_CHECKING:
    from lookfurther.agent import Agent


class Watch:
    """Shows one episode after another; a page that comes back finds them going on."""

    def __init__(self, agent: Agent, experts: Sequence[Expert], seed: int, width: int) -> None:
        self._agent, self._experts, self._seed = agent, experts, seed
        self._scene = Scene.of(agent.config, agent.spec)
        self._title = title(self._scene.spec.env)
        self._stage = Stage(self._title, self._scene, width)
        self._number = 0  # of the pair
        self._speed, self._paused = 1.0, False
        self._wake = asyncio.Event()
        self._begin()

    def hello(self) -> dict[str, Any]:
        return {
            "mode": "watch",
            "title": self._title,
            "env": self._scene.spec.env,
            "buttons": [],
            "fps": self._scene.rate,
            "turns": False,
            "aspect": 1.0,
            "rewind": False,
        }

    def status(self) -> dict[str, Any]:
        """What the page shows beside the picture: of the agent."""
        mine = self._screening.reels[0]
        repeat = self._scene.environment.repeat if self._scene.atari else 1
        return {
            "state": "paused" if self._paused else "watching",
            "steps": -(-mine.frames // repeat),
            "begun": True,
            "score": float(mine.returns[-1]),
            "frames": mine.frames,
            "lives": mine.lives,
            "speed": self._speed,
            "rewind": False,
            "broken": False,
        }

    def hear(self, message: Message) -> None:
        """Pause, go on, or change speed; nothing else concerns a viewer."""
        if message.kind == "speed":
            self._speed = message.speed
        elif message.kind in ("pause", "resume"):
            self._paused = message.kind == "pause"
        self._wake.set()

    def leave(self) -> None:
        """The viewer is gone: nothing is played until one comes."""

    async def show(self, link: Link) -> None:
        """Play for the page until it is gone."""
        clock = Clock()
        while True:
            self._wake.clear()
            await link.frame(self._screening.show(self._frame))
            await link.say("status", **self.status())
            if self._paused:
                await self._wake.wait()
                continue
            stride, fps = pace(self._scene.rate, 0, self._speed)
            if self._screening.over:
                await asyncio.sleep(PAUSE)
                self._number += 1
                self._begin()
            else:
                self._frame += stride
                await clock.tick(fps, link.late())

    def _begin(self) -> None:
        """The next pair."""
        expert = self._experts[self._number % len(self._experts)] if self._experts else None
        self._frame = 0
        self._screening = Screening(
            self._stage, pair(self._agent, self._scene, expert, self._seed + self._number)
        )
