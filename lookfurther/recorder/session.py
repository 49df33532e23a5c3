"""A session of recording: the clock, the player's keys, and what becomes of each episode."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from lookfurther.config import Environment
from lookfurther.errors import LookFurtherError
from lookfurther.recorder.dataset import Shelf
from lookfurther.recorder.episode_log import Moment, Take, pack
from lookfurther.recorder.games import Game, title
from lookfurther.recorder.journal import Journal
from lookfurther.recorder.protocol import Message
from lookfurther.recorder.stream import Clock, Link

BACKWARD = 30.0  # steps a second at which a held rewind key begins to go back
SHOWN = 60.0  # frames a second that are sent at most


class Recorder:
    """A Source that plays a game and keeps its episodes.

    States: ready (the next key begins), playing, paused, rewinding, over and saving.
    """

    def __init__(
        self, game: Game, environment: Environment, shelf: Shelf, journal: Journal, seed: int
    ) -> None:
        self._game, self._environment = game, environment
        self._shelf, self._journal = shelf, journal
        self._seed = seed + len(shelf)
        self._speed = 1.0
        self._wake = asyncio.Event()
        self._errand: str | None = None
        self._saving: asyncio.Task[str] | None = None
        self._notices: list[tuple[str, str]] = []  # text and tone
        self._state = "ready"
        self._recover()

    # What the page is told

    def hello(self) -> dict[str, Any]:
        game = self._game
        return {
            "mode": "play",
            "title": title(game.spec.env),
            "env": game.spec.env,
            "set": self._shelf.name,
            "buttons": [{"name": b.name, "codes": b.codes} for b in game.buttons],
            "fps": game.fps,
            "turns": game.turns,
            "aspect": game.aspect,
            "rewind": game.rewindable,
        }

    def status(self) -> dict[str, Any]:
        """What the page shows beside the picture."""
        take = self._take
        return {
            "state": self._state,
            "steps": len(take.moments),
            "begun": bool(take.moments or self._phase),
            "score": take.score + self._reward,
            "frames": take.frames,
            "lives": self._game.lives,
            "speed": self._speed,
            "rewind": self._game.rewindable,
            "broken": self._broken,
        }

    # What the page says

    def hear(self, message: Message) -> None:
        """Change what happens next; the loop of `show` does the rest."""
        if self._state == "saving":
            return
        if message.kind == "keys":
            self._press(message)
        elif message.kind == "speed":
            self._speed = message.speed
        elif message.kind == "rewind":
            self._rewind(message.on)
        elif message.kind in ("save", "discard"):
            self._errand = message.kind
        elif self._state != "over":
            self._state = "playing" if message.kind == "resume" else "paused"
            if message.kind == "step" and not self._game.turns:
                self._due = self._game.repeat - self._phase
        self._wake.set()

    def leave(self) -> None:
        """The player is gone: all keys are up, and the game waits."""
        self._held: frozenset[str] = frozenset()
        self._pressed: set[str] = set()  # since the last step, held still or not
        self._queue: deque[int] = deque()  # actions of a game of turns
        self._keys = self._answered = 0  # numbers of the last keys heard, and of those played
        self._due = 0  # frames to play though the game is paused
        self._back = 0  # steps rewound since the key went down
        if self._state in ("playing", "rewinding", "paused"):
            self._state = "ready"

    def _press(self, message: Message) -> None:
        new = message.held - self._held
        self._held, self._keys = message.held, message.number
        self._pressed |= new
        if self._state == "ready" and new:
            self._state = "playing"
        if self._game.turns and self._state == "playing":
            self._queue.extend(self._game.action({name}) for name in sorted(new))

    def _rewind(self, on: bool) -> None:
        if on and self._game.rewindable:
            self._state, self._back, self._due = "rewinding", 0, 0
        elif self._state == "rewinding":
            self._state = "ready"

    # What happens

    async def show(self, link: Link) -> None:
        """Play for the page until it is gone."""
        clock, told = Clock(), None
        await link.say("episodes", episodes=self._shelf.list())
        await link.frame(self._game.screen())
        while True:
            self._wake.clear()
            if self._errand or self._saving:
                told = await self._run_errand(link)
            moved = self._move()
            if moved and self._shows():
                await link.frame(self._game.screen(), self._answered)
            while self._notices:
                text, tone = self._notices.pop(0)
                await link.say("notice", text=text, tone=tone)
            if told != (status := self.status()):
                await link.say("status", **status)
                told = status
            if moved:
                await clock.tick(self._rate(), link.late())
            else:
                await self._wake.wait()

    def _rate(self) -> float:
        return BACKWARD if self._state == "rewinding" else self._game.fps * self._speed

    def _shows(self) -> bool:
        """Whether a frame is sent: at high speeds only some, and always the last before a halt."""
        every = max(1, round(self._game.fps * self._speed / SHOWN))
        return self._state != "playing" or (self._take.frames + self._phase) % every == 0

    def _move(self) -> bool:
        """Play a frame, or rewind a little, if that is what is to be done now."""
        try:
            if self._state == "rewinding":
                return self._go_back()
            if self._state == "playing" or self._due:
                return self._play()
        except LookFurtherError as error:
            self._fail(error)
            return True
        return False

    def _play(self) -> bool:
        """One frame; the keys are read at the start of a step, so that an action lasts a step."""
        if self._phase == 0 and not self._choose():
            return False
        self._due = max(0, self._due - 1)
        self._phase += 1
        self._reward += self._game.frame(self._action)
        if self._phase == self._game.repeat or self._game.end:
            plane = pack(self._game.plane())
            moment = Moment(self._action, self._reward, self._phase, self._game.end, plane)
            self._take.add(moment)
            self._phase, self._reward = 0, 0.0
            self._game.keep(len(self._take.moments))
            if moment.reward > 0:
                self._scene = len(self._take.moments), self._game.screen().copy()
        if self._take.over:
            self._state, self._due = "over", 0
        return True

    def _choose(self) -> bool:
        """Read the action of the next step; False where a game of turns waits for one."""
        if self._game.turns:
            if not self._queue:
                return False
            self._action = self._queue.popleft()
        else:
            self._action = self._game.action(self._held | self._pressed)
        self._pressed.clear()
        self._answered = self._keys
        return True

    def _go_back(self) -> bool:
        """Rewind a step, and more the longer the key is held."""
        self._back += 1
        steps = max(0, len(self._take.moments) - 1 - self._back // 45)
        if self._phase == 0 and not self._take.moments:
            return False
        self._seek(steps)
        return True

    def _seek(self, steps: int) -> None:
        """Go back to after so many steps, where the game can."""
        if not self._game.seek(self._take.script(steps)):
            self._game.rewindable = False
            self._state = "over" if self._take.over else "ready"
            text = "Rewind is not available: this environment does not repeat itself."
            self._notices.append((text, "bad"))
            return
        self._take.cut(steps)
        self._phase, self._reward, self._broken = 0, 0.0, False
        if self._scene and self._scene[0] > steps:
            self._scene = None

    def _fail(self, error: LookFurtherError) -> None:
        """After a fault: go on from the last step that is recorded, or end there."""
        self._notices.append((str(error), "bad"))
        self._phase, self._reward, self._due, self._state = 0, 0.0, 0, "paused"
        try:
            repeated = self._game.seek(self._take.script(len(self._take.moments)))
        except LookFurtherError:
            repeated = False
        if not repeated:
            self._state, self._broken = "over", True

    # Episodes

    def _begin(self) -> None:
        """Open the next episode."""
        self._clear()
        self._game.begin(self._seed)
        self._take = Take.begin(
            self._journal, self._game.spec, self._environment, self._seed, self._game.plane()
        )
        self._seed += 1

    def _clear(self) -> None:
        self.leave()
        self._phase, self._action, self._reward = 0, 0, 0.0  # of the step being played
        self._scene: tuple[int, Any] | None = None  # step and screen of the last reward
        self._broken = False
        self._state = "ready"

    def _recover(self) -> None:
        """Take up the episode that a killed recorder left, or begin one."""
        take = Take.recover(self._journal, self._game.spec, self._environment)
        if take is None or (take.kept is not None and len(self._shelf) > take.kept):
            self._begin()
            return
        self._clear()
        self._game.begin(take.seed)
        steps = len(take.moments)
        if self._game.seek(take.script(steps)):
            self._take = take
            self._seed = max(self._seed, take.seed + 1)
            self._state = "over" if take.over else "ready"
            self._notices.append((f"Your unfinished episode of {steps:,} steps is back.", "good"))
        else:
            kept = self._journal.set_aside()
            self._begin()
            text = f"An unfinished episode does not replay as it was; it is kept in {kept}."
            self._notices.append((text, "bad"))

    async def _run_errand(self, link: Link) -> dict[str, Any]:
        """Save or discard the episode, and open the next."""
        if self._errand == "discard":
            self._begin()
        elif self._saving is None and self._take.moments:
            self._state = "saving"
            self._saving = asyncio.create_task(asyncio.to_thread(self._keep))
        self._errand = None
        if self._saving:
            await link.say("status", **self.status())
            await self._saved(link)
        await link.frame(self._game.screen())
        await link.say("status", **(status := self.status()))
        return status

    async def _saved(self, link: Link) -> None:
        """Wait for a save; a page that goes does not stop it, and the next page waits in turn."""
        assert self._saving is not None
        try:
            text, tone = await asyncio.shield(self._saving), "good"
        except Exception as error:  # whatever it is, the take is still there
            if not isinstance(error, LookFurtherError | OSError):
                logging.exception("a save failed")
            text, tone = f"Not saved, and nothing is lost: {error}", "bad"
        self._saving = None
        if tone == "good":
            self._begin()
        else:
            self._state = "over" if self._take.over else "ready"
        self._notices.append((text, tone))
        await link.say("episodes", episodes=self._shelf.list())

    def _keep(self) -> str:
        """Put the take on the shelf, in a thread; what to say of it."""
        take = self._take
        script = take.script(len(take.moments))
        picture = self._scene[1] if self._scene else self._game.screen()
        take.keep(len(self._shelf))
        audit = self._shelf.add(take.episode(self._game.tape(script)), picture)
        self._journal.clear()
        if audit.verified:
            return f"Saved and verified: {len(take.moments):,} steps, all equal when replayed."
        return f"Saved, but a replay differs: {audit.mismatch}"
