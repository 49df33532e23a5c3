"""A session of recording: the clock, the player's keys, and what becomes of each episode."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from lookfurther.config import EnvConfig
from lookfurther.envs.naming import short_env_title
from lookfurther.errors import LookFurtherError
from lookfurther.recorder.dataset import RecordedDataset
from lookfurther.recorder.episode_log import EpisodeLog, RecordedStep, compress_plane
from lookfurther.recorder.games import PlayableGame
from lookfurther.recorder.journal import Journal
from lookfurther.recorder.protocol import PageMessage
from lookfurther.recorder.stream import FrameClock, PageConnection

REWIND_RATE = 30.0  # steps a second at which a held rewind key begins to go back
MAX_SENT_FPS = 60.0  # frames a second that are sent at most


class RecordingSession:
    """A Source that plays a game and keeps its episodes.

    States: ready (the next key begins), playing, paused, rewinding, over and saving.
    """

    def __init__(
        self,
        game: PlayableGame,
        env_config: EnvConfig,
        dataset: RecordedDataset,
        journal: Journal,
        seed: int,
    ) -> None:
        self._game, self._env_config = game, env_config
        self._dataset, self._journal = dataset, journal
        self._next_seed = seed + len(dataset)
        self._speed = 1.0
        self._wake = asyncio.Event()
        self._pending_command: str | None = None
        self._save_task: asyncio.Task[str] | None = None
        self._notices: list[tuple[str, str]] = []  # text and tone
        self._state = "ready"
        self._recover_episode()

    # What the page is told

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
        """What the page shows beside the picture."""
        take = self._episode_log
        return {
            "state": self._state,
            "steps": len(take.steps),
            "begun": bool(take.steps or self._step_frames),
            "score": take.score + self._step_reward,
            "frames": take.frames,
            "lives": self._game.lives,
            "speed": self._speed,
            "rewind": self._game.is_rewindable,
            "broken": self._is_broken,
        }

    # What the page says

    def on_message(self, message: PageMessage) -> None:
        """Change what happens next; the loop of `show` does the rest."""
        if self._state == "saving":
            return
        if message.kind == "keys":
            self._update_buttons(message)
        elif message.kind == "speed":
            self._speed = message.speed
        elif message.kind == "rewind":
            self._set_rewinding(message.on)
        elif message.kind in ("save", "discard"):
            self._pending_command = message.kind
        elif self._state != "over":
            self._state = "playing" if message.kind == "resume" else "paused"
            if message.kind == "step" and not self._game.is_turn_based:
                self._due_frames = self._game.action_repeat - self._step_frames
        self._wake.set()

    def on_disconnect(self) -> None:
        """The player is gone: all keys are up, and the game waits."""
        self._held_buttons: frozenset[str] = frozenset()
        self._pressed_buttons: set[str] = set()  # since the last step, held still or not
        self._queued_actions: deque[int] = deque()  # actions of a game of turns
        self._received_keys = self._answered_keys = (
            0  # numbers of the last keys heard, and of those played
        )
        self._due_frames = 0  # frames to play though the game is paused
        self._rewind_ticks = 0  # steps rewound since the key went down
        if self._state in ("playing", "rewinding", "paused"):
            self._state = "ready"

    def _update_buttons(self, message: PageMessage) -> None:
        new = message.held - self._held_buttons
        self._held_buttons, self._received_keys = message.held, message.number
        self._pressed_buttons |= new
        if self._state == "ready" and new:
            self._state = "playing"
        if self._game.is_turn_based and self._state == "playing":
            self._queued_actions.extend(
                self._game.action_from_buttons({name}) for name in sorted(new)
            )

    def _set_rewinding(self, is_held: bool) -> None:
        if is_held and self._game.is_rewindable:
            self._state, self._rewind_ticks, self._due_frames = "rewinding", 0, 0
        elif self._state == "rewinding":
            self._state = "ready"

    # What happens

    async def stream_to(self, connection: PageConnection) -> None:
        """Play for the page until it is gone."""
        clock, told = FrameClock(), None
        await connection.send("episodes", episodes=self._dataset.list_episodes())
        await connection.send_frame(self._game.render())
        while True:
            self._wake.clear()
            if self._pending_command or self._save_task:
                told = await self._finish_episode(connection)
            moved = self._advance()
            if moved and self._should_send_frame():
                await connection.send_frame(self._game.render(), self._answered_keys)
            while self._notices:
                text, tone = self._notices.pop(0)
                await connection.send("notice", text=text, tone=tone)
            if told != (status := self.status()):
                await connection.send("status", **status)
                told = status
            if moved:
                await clock.tick(self._tick_rate(), connection.clock_shift())
            else:
                await self._wake.wait()

    def _tick_rate(self) -> float:
        return REWIND_RATE if self._state == "rewinding" else self._game.fps * self._speed

    def _should_send_frame(self) -> bool:
        """Whether a frame is sent: at high speeds only some, and always the last before a halt."""
        every = max(1, round(self._game.fps * self._speed / MAX_SENT_FPS))
        return (
            self._state != "playing" or (self._episode_log.frames + self._step_frames) % every == 0
        )

    def _advance(self) -> bool:
        """Play a frame, or rewind a little, if that is what is to be done now."""
        try:
            if self._state == "rewinding":
                return self._rewind_step()
            if self._state == "playing" or self._due_frames:
                return self._play_frame()
        except LookFurtherError as error:
            self._handle_fault(error)
            return True
        return False

    def _play_frame(self) -> bool:
        """One frame; the keys are read at the start of a step, so that an action lasts a step."""
        if self._step_frames == 0 and not self._choose_action():
            return False
        self._due_frames = max(0, self._due_frames - 1)
        self._step_frames += 1
        self._step_reward += self._game.step_frame(self._action)
        if self._step_frames == self._game.action_repeat or self._game.end_flag:
            plane = compress_plane(self._game.get_plane())
            moment = RecordedStep(
                self._action, self._step_reward, self._step_frames, self._game.end_flag, plane
            )
            self._episode_log.add(moment)
            self._step_frames, self._step_reward = 0, 0.0
            self._game.save_state(len(self._episode_log.steps))
            if moment.reward > 0:
                self._reward_screen = len(self._episode_log.steps), self._game.render().copy()
        if self._episode_log.is_over:
            self._state, self._due_frames = "over", 0
        return True

    def _choose_action(self) -> bool:
        """Read the action of the next step; False where a game of turns waits for one."""
        if self._game.is_turn_based:
            if not self._queued_actions:
                return False
            self._action = self._queued_actions.popleft()
        else:
            self._action = self._game.action_from_buttons(
                self._held_buttons | self._pressed_buttons
            )
        self._pressed_buttons.clear()
        self._answered_keys = self._received_keys
        return True

    def _rewind_step(self) -> bool:
        """Rewind a step, and more the longer the key is held."""
        self._rewind_ticks += 1
        steps = max(0, len(self._episode_log.steps) - 1 - self._rewind_ticks // 45)
        if self._step_frames == 0 and not self._episode_log.steps:
            return False
        self._rewind_to(steps)
        return True

    def _rewind_to(self, steps: int) -> None:
        """Go back to after so many steps, where the game can."""
        if not self._game.restore_steps(self._episode_log.step_sequence(steps)):
            self._game.is_rewindable = False
            self._state = "over" if self._episode_log.is_over else "ready"
            text = "Rewind is not available: this environment does not repeat itself."
            self._notices.append((text, "bad"))
            return
        self._episode_log.truncate(steps)
        self._step_frames, self._step_reward, self._is_broken = 0, 0.0, False
        if self._reward_screen and self._reward_screen[0] > steps:
            self._reward_screen = None

    def _handle_fault(self, error: LookFurtherError) -> None:
        """After a fault: go on from the last step that is recorded, or end there."""
        self._notices.append((str(error), "bad"))
        self._step_frames, self._step_reward, self._due_frames, self._state = 0, 0.0, 0, "paused"
        try:
            repeated = self._game.restore_steps(
                self._episode_log.step_sequence(len(self._episode_log.steps))
            )
        except LookFurtherError:
            repeated = False
        if not repeated:
            self._state, self._is_broken = "over", True

    # Episodes

    def _start_episode(self) -> None:
        """Open the next episode."""
        self._reset_episode()
        self._game.reset(self._next_seed)
        self._episode_log = EpisodeLog.start(
            self._journal,
            self._game.spec,
            self._env_config,
            self._next_seed,
            self._game.get_plane(),
        )
        self._next_seed += 1

    def _reset_episode(self) -> None:
        self.on_disconnect()
        self._step_frames, self._action, self._step_reward = 0, 0, 0.0  # of the step being played
        self._reward_screen: tuple[int, Any] | None = None  # step and screen of the last reward
        self._is_broken = False
        self._state = "ready"

    def _recover_episode(self) -> None:
        """Take up the episode that a killed recorder left, or begin one."""
        take = EpisodeLog.recover(self._journal, self._game.spec, self._env_config)
        if take is None or (
            take.set_size_at_save is not None and len(self._dataset) > take.set_size_at_save
        ):
            self._start_episode()
            return
        self._reset_episode()
        self._game.reset(take.seed)
        steps = len(take.steps)
        if self._game.restore_steps(take.step_sequence(steps)):
            self._episode_log = take
            self._next_seed = max(self._next_seed, take.seed + 1)
            self._state = "over" if take.is_over else "ready"
            self._notices.append((f"Your unfinished episode of {steps:,} steps is back.", "good"))
        else:
            kept = self._journal.archive()
            self._start_episode()
            text = f"An unfinished episode does not replay as it was; it is kept in {kept}."
            self._notices.append((text, "bad"))

    async def _finish_episode(self, connection: PageConnection) -> dict[str, Any]:
        """Save or discard the episode, and open the next."""
        if self._pending_command == "discard":
            self._start_episode()
        elif self._save_task is None and self._episode_log.steps:
            self._state = "saving"
            self._save_task = asyncio.create_task(asyncio.to_thread(self._save_episode))
        self._pending_command = None
        if self._save_task:
            await connection.send("status", **self.status())
            await self._await_save(connection)
        await connection.send_frame(self._game.render())
        await connection.send("status", **(status := self.status()))
        return status

    async def _await_save(self, connection: PageConnection) -> None:
        """Wait for a save; a page that goes does not stop it, and the next page waits in turn."""
        assert self._save_task is not None
        try:
            text, tone = await asyncio.shield(self._save_task), "good"
        except Exception as error:  # whatever it is, the take is still there
            if not isinstance(error, LookFurtherError | OSError):
                logging.exception("a save failed")
            text, tone = f"Not saved, and nothing is lost: {error}", "bad"
        self._save_task = None
        if tone == "good":
            self._start_episode()
        else:
            self._state = "over" if self._episode_log.is_over else "ready"
        self._notices.append((text, tone))
        await connection.send("episodes", episodes=self._dataset.list_episodes())

    def _save_episode(self) -> str:
        """Put the take on the shelf, in a thread; what to say of it."""
        take = self._episode_log
        script = take.step_sequence(len(take.steps))
        picture = self._reward_screen[1] if self._reward_screen else self._game.render()
        take.mark_saving(len(self._dataset))
        audit = self._dataset.add(take.to_episode(self._game.make_input_log(script)), picture)
        self._journal.clear()
        if audit.verified:
            return f"Saved and verified: {len(take.steps):,} steps, all equal when replayed."
        return f"Saved, but a replay differs: {audit.mismatch}"
