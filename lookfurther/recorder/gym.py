"""A Gymnasium environment in the hands of a player."""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from lookfurther.config import Environment
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.sync import Lane
from lookfurther.errors import ConfigError, EnvironmentFault
from lookfurther.recorder.episode_log import Moment, Script, pack
from lookfurther.recorder.keys import assign
from lookfurther.types import TERMINAL, TRUNCATED


class GymGame:
    """A Gymnasium environment with Discrete actions; a twin of it proves what can be rewound."""

    repeat = 1
    aspect = 1.0
    lives = None

    def __init__(
        self, env: str, environment: Environment, keys: Sequence[str], real_time: bool, idle: int
    ) -> None:
        # An exception ends the take at once: a rebuilt environment could not go on with it.
        self._blueprint = Blueprint(drawn(env), replace(environment, max_failures=1))
        self._lane, self._twin = (Lane(self._blueprint, i, 0) for i in range(2))
        inside = self._lane.open()
        assert self._lane.spec is not None
        self.spec = self._lane.spec
        self._names = action_names(inside.unwrapped, self.spec.actions)
        self.buttons = assign(self._names, keys)
        self.turns = not real_time
        self.fps = float(inside.metadata.get("render_fps") or 30)
        if not 0 <= idle < self.spec.actions:
            raise ConfigError(f"--idle {idle}: the actions are 0 to {self.spec.actions - 1}")
        self._idle = idle
        self.end = 0
        self.rewindable = self._repeats()
        self.screen()  # what cannot be drawn is refused now

    def begin(self, seed: int) -> None:
        self._show(self._lane.begin(seed=seed))

    def action(self, held: Set[str]) -> int:
        down = [number for number, name in enumerate(self._names) if name in held]
        return down[0] if down else self._idle

    def frame(self, action: int) -> float:
        return self._show(self._lane.step(action))

    def plane(self) -> np.ndarray:
        return self._plane

    def screen(self) -> np.ndarray:
        env = self._lane.open()
        picture: Any = self._plane.transpose(1, 2, 0) if self._plane.ndim == 3 else self._plane
        if env.render_mode == "rgb_array":
            try:
                picture = env.render()
            except Exception as error:
                raise EnvironmentFault(f"{self.spec.env} cannot be shown: {error}") from error
        picture = np.asarray(picture)
        if picture.ndim != 3 or picture.shape[2] not in (1, 3) or picture.dtype != np.uint8:
            raise EnvironmentFault(
                f"{self.spec.env} cannot be shown: {picture.dtype} {picture.shape} is not RGB"
            )
        return np.broadcast_to(picture, (*picture.shape[:2], 3))

    def keep(self, steps: int) -> None:
        """An environment cannot be asked for its state: `seek` plays again from the seed."""

    def seek(self, script: Script) -> bool:
        """Play the steps again in the twin, which takes the place of a lane it equals."""
        kept = self._lane, self._plane, self.end
        self._lane, self._twin = self._twin, self._lane
        try:
            equal = self._play(script)
        except EnvironmentFault:
            equal = False
        if not equal:
            self._twin = self._lane
            self._lane, self._plane, self.end = kept
        return equal

    def tape(self, script: Script) -> None:
        return None  # the seed and the actions are all

    def close(self) -> None:
        self._lane.close()
        self._twin.close()

    def _show(self, answer: Any) -> float:
        plane, reward, terminal, truncated, *_ = answer
        shape = np.broadcast_to(plane, self.spec.plane)
        self._plane = np.array(shape, self.spec.dtype)
        self.end = TERMINAL if terminal else TRUNCATED if truncated else 0
        return reward

    def _play(self, script: Script) -> bool:
        """Whether the script, played from its seed, shows what it says."""
        self.begin(script.seed)
        if pack(self._plane) != script.opening:
            return False
        for moment in script.moments:
            if self.end:
                return False
            reward = self.frame(moment.action)
            if Moment(moment.action, reward, 1, self.end, pack(self._plane)) != moment:
                return False
        return True

    def _repeats(self) -> bool:
        """Whether a short play is the same when played again: what cannot be is not rewound."""
        self.begin(0)
        opening, moments = pack(self._plane), []
        while len(moments) < 20 and not self.end:
            action = len(moments) % self.spec.actions
            reward = self.frame(action)
            moments.append(Moment(action, reward, 1, self.end, pack(self._plane)))
        return self.seek(Script(0, opening, moments))


def drawn(env: str) -> Any:
    """The environment's registration, asking for pictures where it can draw them."""
    spec = copy.deepcopy(find(env))
    plain = Blueprint(spec, Environment()).build()
    modes = plain.metadata.get("render_modes") or []
    plain.close()
    if "rgb_array" in modes:
        spec.kwargs["render_mode"] = "rgb_array"
    return spec


def action_names(env: Any, count: int) -> tuple[str, ...]:
    """What an environment calls its actions, or their numbers."""
    named = getattr(env, "actions", None)
    if isinstance(named, type) and issubclass(named, enum.Enum) and len(named) == count:
        return tuple(member.name for member in named)
    meanings: Any = getattr(env, "get_action_meanings", list)
    if len(names := tuple(map(str, meanings()))) == count == len(set(names)):
        return names
    return tuple(map(str, range(count)))
