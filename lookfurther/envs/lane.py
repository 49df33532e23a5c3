"""One lane: a Gymnasium environment, its episodes, and the checks of what it returns."""

from __future__ import annotations

import contextlib
import textwrap
from typing import Any

import gymnasium
import numpy as np

from lookfurther.envs.factory import EnvFactory
from lookfurther.errors import EnvironmentFault, LookFurtherError
from lookfurther.types import Spec

# One lane's part of a Step: plane, reward, terminal, truncated, first, dropped.
LaneResult = tuple[np.ndarray, float, bool, bool, bool, bool]

MAX_REWARD = float(np.finfo(np.float32).max)


class InvalidValue(Exception):
    """A reward or an observation that must not be learned from."""


class NonFiniteValue(InvalidValue):
    """An infinite value or NaN."""


class OutOfBoundsValue(InvalidValue):
    """An integer observation outside the bounds of its space."""


class Lane:
    """One environment that is rebuilt after a failure."""

    def __init__(self, factory: EnvFactory, index: int, seed: int) -> None:
        self._factory, self._index, self._seed = factory, index, seed
        self._env: gymnasium.Env | None = None
        self.spec: Spec | None = None
        self.episode = -1
        self.actions: list[int] = []  # of the episode so far
        self.is_over = True
        self.dropped_episodes = 0
        self.restarts = 0
        self._consecutive_failures = 0  # a good step resets the count

    def ensure_env(self) -> gymnasium.Env:
        """The environment, built if necessary."""
        while self._env is None:
            try:
                env = self._factory.build_env()
                self._record_spaces(env)
                self._env = env
            except Exception as error:
                self._handle_failure(error)
        return self._env

    def render_rgb(self, env: str) -> np.ndarray:
        """The current rendering of the environment, which `env` names: [height, width, 3]."""
        try:
            image = self.ensure_env().render()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFault(f"{env} cannot be drawn: {reason}") from error
        if not isinstance(image, np.ndarray) or image.ndim != 3 or image.dtype != np.uint8:
            raise EnvironmentFault(f"{env} cannot be drawn: it has no render mode rgb_array")
        return image

    def begin_episode(
        self, dropped: bool = False, seed: int | None = None, action: int = 0
    ) -> LaneResult:
        """Begin the next episode. Its default seed depends only on run seed, lane and episode."""
        while True:
            self.episode += 1
            self.actions = []
            try:
                sequence = np.random.SeedSequence((self._seed, self._index, self.episode))
                episode_seed = int(sequence.generate_state(1)[0]) if seed is None else seed
                arguments = self._factory.reset_arguments(action)
                observation, _ = self.ensure_env().reset(seed=episode_seed, **arguments)
                plane = self._to_plane(observation)
            except Exception as error:
                self._handle_failure(error)
            else:
                self.is_over = False
                return plane, 0.0, False, False, True, dropped

    def step(self, action: int) -> LaneResult:
        """Step the environment; after the end of an episode, begin the next one instead."""
        if self.is_over:
            return self.begin_episode(action=action)
        self.actions.append(action)
        try:
            result = self.ensure_env().step(action + self._first_action)
            observation, reward, terminal, truncated, _ = result
            plane, reward = self._to_plane(observation), float(reward)
            if not -MAX_REWARD <= reward <= MAX_REWARD:
                raise NonFiniteValue(f"the reward is {reward}")
        except Exception as error:
            self._handle_failure(error)
            self.dropped_episodes += 1
            return self.begin_episode(dropped=True)
        self._consecutive_failures = 0
        self.is_over = bool(terminal or truncated)
        return plane, reward, bool(terminal), bool(truncated and not terminal), False, False

    def close(self) -> None:
        # An environment that fails to close has failed before and is discarded.
        with contextlib.suppress(Exception):
            if self._env is not None:
                self._env.close()
        self._env = None

    def _record_spaces(self, env: gymnasium.Env) -> None:
        """Store the spaces of the environment; a rebuilt one must have the same."""
        spec = self._factory.make_spec(env)
        if self.spec is not None and spec != self.spec:
            raise EnvironmentFault(
                f"{self._location()}: built again it is {spec}, before {self.spec}"
            )
        self.spec = spec
        box: Any = env.observation_space
        self._shape, self._dtype = box.shape, box.dtype
        self._is_float = box.dtype.kind == "f"
        self._bounds = _integer_bounds(box)
        self._is_hwc = len(box.shape) == 3 and self._factory.env_config.layout == "hwc"
        self._first_action = int(env.action_space.start)  # type: ignore[attr-defined]

    def _to_plane(self, observation: Any) -> np.ndarray:
        """The observation as a plane, or as an array that broadcasts to one."""
        plane = np.asarray(observation)
        if plane.shape != self._shape or plane.dtype != self._dtype:
            raise EnvironmentFault(
                f"{self._location()}: the observation is {plane.dtype} {plane.shape},"
                f" but the space is {self._dtype} {self._shape}: make the two agree"
            )
        if self._is_float:
            plane = plane.astype(np.float32, copy=False)
            if np.count_nonzero(np.isfinite(plane)) != plane.size:
                raise NonFiniteValue("the observation holds a value that is not finite")
        elif self._bounds is not None:
            _check_bounds(plane, *self._bounds)
        return plane.transpose(2, 0, 1) if self._is_hwc else plane

    def _handle_failure(self, error: Exception) -> None:
        """Discard the environment, or raise if that is not allowed or has not helped."""
        if isinstance(error, LookFurtherError):
            raise error
        env_config = self._factory.env_config
        if isinstance(error, InvalidValue) and env_config.on_fault == "stop":
            raise EnvironmentFault(
                f"{self._location()}: {error}; --environment.on-fault drop forgets such episodes"
            ) from None
        self._consecutive_failures += 1
        if self._consecutive_failures >= env_config.max_failures:
            raise EnvironmentFault(
                f"{self._location()}: failure {self._consecutive_failures} in a row, the last is "
                + textwrap.shorten(f"{type(error).__name__}: {error}", 300)
            ) from error
        self.close()
        self.restarts += 1

    def _location(self) -> str:
        name = self.spec.env if self.spec else self._factory.env_name()
        lane = f"{name}, lane {self._index}"
        if self.episode < 0:
            return f"{lane}, when built"
        return f"{lane}, episode {self.episode}, step {len(self.actions)}"


def _integer_bounds(box: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds of each cell of an integer space; None if its dtype already enforces them."""
    dtype = np.dtype(box.dtype)
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    is_full_range = (box.low == limits.min).all() and (box.high == limits.max).all()
    return None if is_full_range else (box.low, box.high)


def _check_bounds(plane: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Refuse integers outside their space: a smaller dtype would change them."""
    outside = (plane < low) | (plane > high)
    if outside.any():
        cell = np.unravel_index(int(outside.argmax()), plane.shape)
        raise OutOfBoundsValue(
            f"the observation holds {int(plane[cell])},"
            f" but its space is {int(low[cell])} to {int(high[cell])}"
        )
