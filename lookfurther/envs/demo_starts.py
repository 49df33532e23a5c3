"""Jump starts: Atari episodes that begin shortly before a step of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.human_starts import HumanStartEnv, check_restorable
from lookfurther.envs.subproc import SubprocEnvs

SAVE_PERIOD = 16  # steps between two saved states
STACK_STEPS = 3  # an episode has at least these steps before the handover: they fill the stack


class RecordedStep(NamedTuple):
    """One step of a recorded game: the action of each frame, and RAM bytes that are written."""

    frame_actions: bytes  # of the emulator, 0 ... 17
    ram_writes: tuple[tuple[int, int, int], ...] = ()  # (frame of the step, address, value)

    def play(self, emulator: Emulator) -> float:
        """Play the step and return its reward."""
        return sum(emulator.play_frames(self.frame_actions, self.ram_writes))


class DemoPath(NamedTuple):
    """A recorded game from power-on. An agent need not be able to play it."""

    env: str
    action_repeat: int
    phase: int  # frames of the first step if it is shorter than the others, otherwise 0
    steps: tuple[RecordedStep, ...]


class DemoStart(NamedTuple):
    """A start of an episode: the agent takes over at step `handover` of path number `path`."""

    path: int
    handover: int

    @property
    def saved_step(self) -> int:
        """The step of the saved state with which the episode begins."""
        return max(0, self.handover - STACK_STEPS) // SAVE_PERIOD * SAVE_PERIOD

    def encode(self, paths: int) -> int:
        """As one number; `paths` is the number of paths."""
        return self.handover * paths + self.path


def decode_start(code: int, paths: int) -> DemoStart:
    """The inverse of `DemoStart.encode`."""
    handover, path = divmod(code, paths)
    return DemoStart(path, handover)


class SavedStates:
    """The emulator's states along a path, each saved when it is first needed.

    All lanes of a process share them. The emulator is made there: it cannot be pickled.
    """

    def __init__(self, path: DemoPath) -> None:
        self.path = path
        self._emulator: Emulator | None = None
        self._states: list[bytes] = []

    def find_state(self, step: int) -> bytes:
        """The state before a step, which must be a multiple of SAVE_PERIOD."""
        if self._emulator is None:
            self._emulator = Emulator(self.path.env, self.path.action_repeat, phase=self.path.phase)
            self._states.append(self._emulator.clone_state())
        while len(self._states) <= step // SAVE_PERIOD:
            begin = (len(self._states) - 1) * SAVE_PERIOD
            for recorded in self.path.steps[begin : begin + SAVE_PERIOD]:
                recorded.play(self._emulator)
            self._states.append(self._emulator.clone_state())
        return self._states[step // SAVE_PERIOD]


class DemoStartEnv(HumanStartEnv):
    """One game whose episodes begin at the `DemoStart` that is the option `start` of a reset.

    The steps before the handover are those of the recording, whatever the actions are.
    """

    def __init__(
        self, states: Sequence[SavedStates], env_config: EnvConfig, ends_on_life_loss: bool
    ) -> None:
        super().__init__(states[0].path.env, (), env_config)
        self._states, self._ends_on_life_loss = states, ends_on_life_loss

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        start = options["start"] if options else DemoStart(0, 0)
        states = self._states[start.path]
        self._emulator.restore_state(states.find_state(start.saved_step))
        self._shown_steps = iter(states.path.steps[start.saved_step : start.handover])
        return self._emulator.current_plane()[0], {}

    def step(self, action: int) -> Any:
        emulator, lives = self._emulator, self._emulator.lives
        if recorded := next(self._shown_steps, None):
            reward = recorded.play(emulator)
            return emulator.current_plane()[0], reward, emulator.is_over, False, {}
        plane, reward, is_over, truncated, info = super().step(action)
        is_lost = self._ends_on_life_loss and emulator.lives < lives
        return plane, reward, is_over or is_lost, truncated, info


@dataclass(frozen=True)
class DemoStartFactory(EnvFactory):
    """Builds environments that begin along one of `paths` demonstrations."""

    paths: int

    def reset_arguments(self, action: int) -> dict[str, Any]:
        return {"options": {"start": decode_start(action, self.paths)}}


def make_demo_start_envs(
    paths: Sequence[DemoPath],
    env_config: EnvConfig,
    ends_on_life_loss: bool,
    lanes: int,
    seed: int,
) -> SubprocEnvs:
    """m lanes in `env_config.processes` worker processes.

    In a lane whose episode is over, the next action is the encoded start of the next episode.
    """
    check_restorable(paths[0].env, paths[0].action_repeat, "set actor.jump_start_share 0")
    env_config = replace(env_config, frame_stack=env_config.frame_stack or 4)
    states = [SavedStates(path) for path in paths]
    build = partial(DemoStartEnv, states, env_config, ends_on_life_loss)
    return SubprocEnvs(DemoStartFactory(build, env_config, len(paths)), lanes, seed)
