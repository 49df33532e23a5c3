"""A game that records every step it plays."""

from __future__ import annotations

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.errors import LookFurtherError
from lookfurther.recorder.dataset import RecordedDataset
from lookfurther.recorder.episode_log import EpisodeLog, RecordedStep, compress_plane
from lookfurther.recorder.games import PlayableGame
from lookfurther.recorder.journal import Journal


class RecordedGame:
    """Plays a game frame by frame, logs whole steps and adds finished episodes to a dataset."""

    log: EpisodeLog

    def __init__(
        self,
        game: PlayableGame,
        env_config: EnvConfig,
        dataset: RecordedDataset,
        journal: Journal,
        seed: int,
    ) -> None:
        self.game = game
        self._env_config, self._dataset, self._journal = env_config, dataset, journal
        self._next_seed = dataset.next_seed(seed)
        self._reset_step()

    def _reset_step(self) -> None:
        self._action = 0
        self.step_frames, self.step_reward = 0, 0.0  # of the unfinished step
        self.is_broken = False  # the environment failed and cannot be restored
        self._reward_screen: tuple[int, np.ndarray] | None = None  # after the last reward

    @property
    def is_untouched(self) -> bool:
        """Whether not a single frame has been played."""
        return self.step_frames == 0 and not self.log.steps

    def start_episode(self) -> None:
        """Start the next episode and clear the journal."""
        self._reset_step()
        seed = self._next_seed
        self.game.reset(seed)
        self.log = EpisodeLog.start(
            self._journal, self.game.spec, self._env_config, seed, self.game.get_plane()
        )
        self._next_seed += 1

    def recover_episode(self) -> tuple[str, str] | None:
        """Continue the episode of a killed recorder, or start one; return a notice and its tone."""
        log = EpisodeLog.recover(self._journal, self.game.spec, self._env_config)
        if log is None or log.is_saved(len(self._dataset)):
            self.start_episode()
            return None
        self.game.reset(log.seed)
        if self.game.restore_steps(log.step_sequence()):
            self.log = log
            self._next_seed = max(self._next_seed, log.seed + 1)
            return f"Recovered your unfinished episode of {len(log.steps):,} steps.", "good"
        path = self._journal.archive()
        self.start_episode()
        return f"The unfinished episode does not replay as recorded; it is now {path}.", "bad"

    def play_frame(self, action: int | None) -> None:
        """Play one frame: the first of a step with `action`, or (None) the next of that step."""
        if action is not None:
            self._action = action
        self.step_frames += 1
        self.step_reward += self.game.step_frame(self._action)
        if self.step_frames == self.game.action_repeat or self.game.end_flag:
            self._record_step()

    def _record_step(self) -> None:
        plane, reward = compress_plane(self.game.get_plane()), self.step_reward
        self.log.add(
            RecordedStep(self._action, reward, self.step_frames, self.game.end_flag, plane)
        )
        self.step_frames, self.step_reward = 0, 0.0
        step = len(self.log.steps)
        self.game.save_state(step)
        if reward > 0:
            self._reward_screen = step, self.game.render().copy()

    def rewind_to(self, step: int) -> bool:
        """Go back to the state after `step` steps; False if the game is not deterministic."""
        if not self.game.restore_steps(self.log.step_sequence(step)):
            self.game.is_rewindable = False
            return False
        self.log.truncate(step)
        self.step_frames, self.step_reward, self.is_broken = 0, 0.0, False
        if self._reward_screen and self._reward_screen[0] > step:
            self._reward_screen = None
        return True

    def restore_last_step(self) -> None:
        """After a fault, go back to the last recorded step; set `is_broken` if that fails."""
        self.step_frames, self.step_reward = 0, 0.0
        try:
            is_restored = self.game.restore_steps(self.log.step_sequence())
        except LookFurtherError:
            is_restored = False
        self.is_broken |= not is_restored

    def save_episode(self) -> str:
        """Verify the episode by replay and add it to the dataset; return a notice."""
        log = self.log
        screen = self._reward_screen[1] if self._reward_screen else self.game.render()
        log.mark_saving(len(self._dataset))
        input_log = self.game.make_input_log(log.step_sequence())
        audit = self._dataset.add(log.to_episode(input_log), screen)
        self._journal.clear()
        if audit.verified:
            return f"Saved and verified: {len(log.steps):,} steps, all equal when replayed."
        return f"Saved, but the replay differs: {audit.mismatch}"
