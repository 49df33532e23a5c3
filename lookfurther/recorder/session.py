"""A recording session: plays a game for one page and saves its episodes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import LookFurtherError
from lookfurther.recorder.controls import PlayerInput
from lookfurther.recorder.dataset import RecordedDataset
from lookfurther.recorder.games import PlayableGame
from lookfurther.recorder.journal import Journal
from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.recorded_game import RecordedGame
from lookfurther.recorder.replay import EpisodeReplay
from lookfurther.recorder.stream import FrameClock, PageConnection
from lookfurther.video.playback import EnvView

REPLAY_KINDS = ("speed", "stop", "replay", "delete")  # messages that a replay reacts to
REWIND_RATE = 30.0  # rewind ticks per second
REWIND_ACCELERATION = 45  # ticks after which each tick rewinds one more step
MAX_SENT_FPS = 60.0  # frames sent per second


class RecordingSession:
    """A FrameSource that plays a game and saves its episodes.

    States: ready (the next key starts the game), playing, paused, rewinding, over, saving and
    replaying.
    """

    def __init__(
        self,
        game: PlayableGame,
        env_config: EnvConfig,
        dataset: RecordedDataset,
        journal: Journal,
        seed: int,
    ) -> None:
        self._game, self._dataset = game, dataset
        self._recorded = RecordedGame(game, env_config, dataset, journal, seed)
        self._input = PlayerInput(game)
        self._env_view = EnvView(game.spec.env, game.spec, env_config, game.fps)
        self._speed = 1.0
        self._wake = asyncio.Event()
        self._pending_command: PageMessage | None = None
        self._replay: EpisodeReplay | None = None  # of a recorded episode, in state "replaying"
        self._save_task: asyncio.Task[str] | None = None
        self._reset_controls()
        notice = self._recorded.recover_episode()
        self._notices = [notice] if notice else []  # text and tone
        self._state = self._waiting_state()

    # Messages to the page

    def hello_message(self) -> dict[str, Any]:
        game = self._game
        return {
            "mode": "play",
            "title": short_env_title(game.spec.env),
            "env": game.spec.env,
            "set": self._dataset.name,
            "buttons": [{"name": b.name, "codes": b.key_codes} for b in game.buttons],
            "fps": game.fps,
            "turns": game.is_turn_based,
            "aspect": game.pixel_aspect,
            "rewind": game.is_rewindable,
        }

    def status(self) -> dict[str, Any]:
        """Return what the page shows next to the screen."""
        recorded = self._recorded
        if self._replay:
            return self._replay_status(self._replay)
        return {
            "state": self._state,
            "steps": len(recorded.log.steps),
            "begun": not recorded.is_untouched,
            "score": recorded.log.score + recorded.step_reward,
            "frames": recorded.log.frames,
            "lives": self._game.lives,
            "speed": self._speed,
            "rewind": self._game.is_rewindable,
            "broken": recorded.is_broken,
        }

    def _replay_status(self, replay: EpisodeReplay) -> dict[str, Any]:
        return {
            "state": self._state,
            "steps": replay.steps,
            "begun": True,
            "score": replay.score,
            "frames": replay.frames,
            "lives": replay.lives,
            "speed": self._speed,
            "rewind": False,
            "broken": False,
        }

    def _screen(self) -> np.ndarray:
        return self._replay.render() if self._replay else self._game.render()

    # Messages from the page

    def on_message(self, message: PageMessage) -> None:
        """Update the state; the loop in `stream_to` acts on it."""
        if self._state == "saving":
            return
        if self._state == "replaying" and message.kind not in REPLAY_KINDS:
            return
        if message.kind == "keys":
            self._update_buttons(message)
        elif message.kind == "speed":
            self._speed = message.speed
        elif message.kind == "rewind":
            self._set_rewinding(message.is_held)
        elif message.kind in ("save", "discard", "delete", "replay", "stop"):
            self._pending_command = message
        elif self._state != "over":
            self._state = "playing" if message.kind == "resume" else "paused"
            if message.kind == "step" and not self._game.is_turn_based:
                self._due_frames = self._game.action_repeat - self._recorded.step_frames
        self._wake.set()

    def on_disconnect(self) -> None:
        """Release all buttons and stop the game until a page connects."""
        self._reset_controls()
        if self._replay:
            self._stop_replay()
        elif self._state in ("playing", "rewinding", "paused"):
            self._state = "ready"

    def _reset_controls(self) -> None:
        self._input.release()
        self._due_frames = 0  # frames to play while the game is paused
        self._rewind_ticks = 0  # since the rewind key was pressed

    def _update_buttons(self, message: PageMessage) -> None:
        pressed = self._input.update(message)
        if self._state == "ready" and pressed:
            self._state = "playing"
        if self._game.is_turn_based and self._state == "playing":
            self._input.queue_actions(pressed)

    def _set_rewinding(self, is_held: bool) -> None:
        if is_held and self._game.is_rewindable:
            self._state, self._rewind_ticks, self._due_frames = "rewinding", 0, 0
        elif self._state == "rewinding":
            self._state = "ready"

    # Playing and rewinding

    async def stream_to(self, connection: PageConnection) -> None:
        """Play for the page; cancelled when the page disconnects."""
        clock, sent_status = FrameClock(), None
        await connection.send("episodes", episodes=self._dataset.list_episodes())
        await connection.send_frame(self._screen())
        while True:
            self._wake.clear()
            if self._pending_command or self._save_task:
                sent_status = await self._run_command(connection)
            has_advanced = self._advance()
            if has_advanced and self._should_send_frame():
                await connection.send_frame(self._screen(), self._input.answered_number)
            while self._notices:
                text, tone = self._notices.pop(0)
                await connection.send("notice", text=text, tone=tone)
            if sent_status != (status := self.status()):
                await connection.send("status", **status)
                sent_status = status
            if has_advanced:
                await clock.tick(self._tick_rate(), connection.clock_shift())
            else:
                await self._wake.wait()

    def _tick_rate(self) -> float:
        return REWIND_RATE if self._state == "rewinding" else self._game.fps * self._speed

    def _should_send_frame(self) -> bool:
        """Skip frames at high speed, but always send the last one before a stop."""
        period = max(1, round(self._game.fps * self._speed / MAX_SENT_FPS))
        frame = self._recorded.log.frames + self._recorded.step_frames
        if self._replay:
            return self._replay.is_over or self._replay.frames % period == 0
        return self._state != "playing" or frame % period == 0

    def _advance(self) -> bool:
        """Play a frame or rewind, if the state requires it; return whether the game changed."""
        try:
            if self._replay:
                return self._replay.advance()
            if self._state == "rewinding":
                return self._rewind_step()
            if self._state == "playing" or self._due_frames:
                return self._play_frame()
        except LookFurtherError as error:
            self._notices.append((str(error), "bad"))
            self._due_frames = 0
            if self._replay:
                self._stop_replay()
                return True
            self._recorded.restore_last_step()
            self._state = "over" if self._recorded.is_broken else "paused"
            return True
        return False

    def _play_frame(self) -> bool:
        """Play one frame. The action is read at the start of a step and lasts the whole step."""
        action = None
        if self._recorded.step_frames == 0:
            action = self._input.next_action()
            if action is None:
                return False
        self._due_frames = max(0, self._due_frames - 1)
        self._recorded.play_frame(action)
        if self._recorded.log.is_over:
            self._state, self._due_frames = "over", 0
        return True

    def _rewind_step(self) -> bool:
        """Rewind one step, and more the longer the key is held."""
        self._rewind_ticks += 1
        if self._recorded.is_untouched:
            return False
        steps = 1 + self._rewind_ticks // REWIND_ACCELERATION
        if not self._recorded.rewind_to(max(0, len(self._recorded.log.steps) - steps)):
            self._state = self._waiting_state()
            text = "Rewind is not available: this environment is not deterministic."
            self._notices.append((text, "bad"))
        return True

    # Episodes

    def _waiting_state(self) -> str:
        return "over" if self._recorded.log.is_over else "ready"

    def _start_episode(self) -> None:
        self._reset_controls()
        self._recorded.start_episode()
        self._state = "ready"

    async def _run_command(self, connection: PageConnection) -> dict[str, Any]:
        """Save, discard, delete or replay an episode; return the status sent."""
        command, self._pending_command = self._pending_command, None
        kind = command.kind if command else "save"
        if self._replay:
            self._stop_replay()
        if kind == "discard":
            self._start_episode()
        elif command and kind in ("delete", "replay"):
            await self._change_recorded(command, connection)
        elif kind == "save" and self._save_task is None and self._recorded.log.steps:
            self._state = "saving"
            self._save_task = asyncio.create_task(asyncio.to_thread(self._recorded.save_episode))
        if self._save_task:
            await connection.send("status", **self.status())
            await self._await_save(self._save_task)
            await connection.send("episodes", episodes=self._dataset.list_episodes())
        await connection.send_frame(self._screen())
        await connection.send("status", **(status := self.status()))
        return status

    async def _change_recorded(self, command: PageMessage, connection: PageConnection) -> None:
        """Delete a recorded episode, or start to show it."""
        try:
            if command.kind == "delete":
                text = await asyncio.to_thread(self._dataset.delete, command.episode)
                self._notices.append((text, "good"))
                await connection.send("episodes", episodes=self._dataset.list_episodes())
            else:
                episode = await asyncio.to_thread(self._dataset.load_episode, command.episode)
                self._reset_controls()
                self._replay = EpisodeReplay(episode, self._env_view, self._dataset.name)
                self._state = "replaying"
        except (LookFurtherError, OSError) as error:
            self._notices.append((str(error), "bad"))

    def _stop_replay(self) -> None:
        self._replay, self._state = None, self._waiting_state()

    async def _await_save(self, save_task: asyncio.Task[str]) -> None:
        """Wait for a save. A page that disconnects does not cancel it; the next page waits."""
        try:
            text, tone = await asyncio.shield(save_task), "good"
        except Exception as error:  # the journal still contains the episode
            if not isinstance(error, LookFurtherError | OSError):
                logging.exception("a save failed")
            text, tone = f"Not saved, but nothing is lost: {error}", "bad"
        self._save_task = None
        if tone == "good":
            self._start_episode()
        else:
            self._state = self._waiting_state()
        self._notices.append((text, tone))
