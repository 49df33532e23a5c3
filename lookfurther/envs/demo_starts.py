"""Jump starts: Atari episodes that begin shortly before a step of a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from lookfurther.config import EnvConfig
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.human_starts import HumanStartEnv, check_restorable
from lookfurther.envs.subproc import SubprocEnvs

SAVE_PERIOD = 16  # steps between two saved states
STACK_STEPS = 3  # an episode has at least these steps before the handover: they fill the stack


class DemoPath(NamedTuple):
    """A game that an agent can play: no-op frames after power-on, then one action per step."""

    env: str
    action_repeat: int
    noop_frames: int
    actions: tuple[int, ...]  # of the emulator, 0 ... 17


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
    """The emulator's states along a path, each saved when it is first needed."""

    def __init__(self, path: DemoPath) -> None:
        self._path = path
        self._emulator = Emulator(path.env, path.action_repeat, phase=path.noop_frames)
        for _ in range(path.noop_frames):
            self._emulator.step_frame(0)
        self._states = [self._emulator.clone_state()]

    def find_state(self, step: int) -> bytes:
        """The state before a step, which must be a multiple of SAVE_PERIOD."""
        while len(self._states) <= step // SAVE_PERIOD:
            begin = (len(self._states) - 1) * SAVE_PERIOD
            for action in self._path.actions[begin : begin + SAVE_PERIOD]:
                self._emulator.step(action)
            self._states.append(self._emulator.clone_state())
        return self._states[step // SAVE_PERIOD]


@lru_cache
def saved_states(path: DemoPath) -> SavedStates:
    """The saved states of a path, shared by all lanes of this process."""
    return SavedStates(path)


class DemoStartEnv(HumanStartEnv):
    """One game whose episodes begin at the `DemoStart` that is the option `start` of a reset."""

    def __init__(
        self, paths: Sequence[DemoPath], env_config: EnvConfig, ends_on_life_loss: bool
    ) -> None:
        super().__init__(paths[0].env, (), env_config)
        self._paths, self._ends_on_life_loss = paths, ends_on_life_loss

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        start = options["start"] if options else DemoStart(0, 0)
        states = saved_states(self._paths[start.path])
        self._emulator.restore_state(states.find_state(start.saved_step))
        self._shown_steps = start.handover - start.saved_step  # that remain before the handover
        return self._emulator.current_plane()[0], {}

    def step(self, action: int) -> Any:
        lives = self._emulator.lives
        plane, reward, is_over, truncated, info = super().step(action)
        is_lost = self._shown_steps <= 0 and self._emulator.lives < lives
        self._shown_steps -= 1
        return plane, reward, is_over or (is_lost and self._ends_on_life_loss), truncated, info


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
    build = partial(DemoStartEnv, tuple(paths), env_config, ends_on_life_loss)
    return SubprocEnvs(DemoStartFactory(build, env_config, len(paths)), lanes, seed)
