"""An Atari game for the recorder."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import InputLog
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator
from lookfurther.errors import ConfigError
from lookfurther.recorder.episode_log import (
    RecordedStep,
    StepSequence,
    actions_per_frame,
    compress_plane,
)
from lookfurther.recorder.keys import JOYSTICK_BUTTONS, joystick_action
from lookfurther.types import TERMINAL, TRUNCATED

RECENT_STATES = 2048  # steps whose emulator states are all saved (15 kB each)
OLD_STATE_PERIOD = 64  # older states: one in 64, under 40 MB per hour


class AtariGame:
    """An Atari game at 60 frames per second, with saved states for rewinding."""

    buttons = JOYSTICK_BUTTONS
    fps = 60.0
    is_turn_based = False
    pixel_aspect = 5 / 3  # approximately that of a television
    is_rewindable = True

    def __init__(self, env: str, env_config: EnvConfig) -> None:
        if not env_config.full_actions:
            raise ConfigError(
                "the recorder plays all 18 actions: leave environment.full_actions on"
            )
        self.spec = get_spec(env, env_config)
        self.action_repeat = env_config.action_repeat
        self._env, self._sticky_prob = env, env_config.sticky_prob
        unit_frames = self.action_repeat if env_config.episode_length_unit == "steps" else 1
        self._max_frames = env_config.max_episode_length * unit_frames
        self._saved_states: dict[int, bytes] = {}

    @property
    def lives(self) -> int:
        return self._emulator.lives

    @property
    def end_flag(self) -> int:
        if self._emulator.is_over:
            return TERMINAL
        return TRUNCATED if self._emulator.frame_number >= self._max_frames else 0

    def reset(self, seed: int) -> None:
        self._emulator = Emulator(self._env, self.action_repeat, self._sticky_prob, seed)
        self._emulator.reset()
        self._saved_states = {}
        self.save_state(0)

    def action_from_buttons(self, held: Set[str]) -> int:
        return ACTION_MEANINGS.index(joystick_action(held))

    def step_frame(self, action: int) -> float:
        return self._emulator.step_frame(action)

    def get_plane(self) -> np.ndarray:
        return self._emulator.current_plane()

    def render(self) -> np.ndarray:
        return self._emulator.rgb_screen()

    def save_state(self, step: int) -> None:
        if self._sticky_prob:
            return  # a state does not include the action that the emulator may repeat
        self._saved_states[step] = self._emulator.clone_state()
        if (step - RECENT_STATES) % OLD_STATE_PERIOD:
            self._saved_states.pop(step - RECENT_STATES, None)

    def restore_steps(self, sequence: StepSequence) -> bool:
        """Restore the nearest saved state before the last step and replay from there."""
        steps = sequence.steps
        if not steps:
            self.reset(sequence.seed)
            return compress_plane(self.get_plane()) == sequence.first_plane
        before = self._emulator.clone_state()
        start = len(steps) - 1
        while start and start not in self._saved_states:
            start -= 1
        if start:
            self._emulator.restore_state(self._saved_states[start])
        else:
            self._emulator.reset()
        for number, step in enumerate(steps[start:], start + 1):
            reward = sum(self.step_frame(step.action) for _ in range(step.frames))
            plane = compress_plane(self.get_plane())
            if step != RecordedStep(step.action, reward, step.frames, self.end_flag, plane):
                self._emulator.restore_state(before)
                return False
            self.save_state(number)
        return True

    def make_input_log(self, sequence: StepSequence) -> InputLog:
        actions = actions_per_frame(sequence.steps)
        return InputLog(actions, np.zeros((0, 3), np.int32), sequence.seed)

    def close(self) -> None:
        """Do nothing: the game holds only memory."""
