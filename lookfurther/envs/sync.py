"""Gymnasium environments stepped one after another, each watched for faults."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from lookfurther.envs.factory import EnvFactory
from lookfurther.errors import CheckpointError, ConfigError, EnvironmentFault, LookFurtherError
from lookfurther.types import Spec, Step

# What one lane answers: plane, reward, terminal, truncated, first, dropped (see types.Step).
LaneResult = tuple[np.ndarray, float, bool, bool, bool, bool]

MAX_REWARD = float(np.finfo(np.float32).max)


class InvalidValue(Exception):
    """A reward or an observation that must not be learned from."""


class NonFiniteValue(InvalidValue):
    """A value that is infinite or not a number."""


class OutOfBoundsValue(InvalidValue):
    """An integer observation outside the bounds of its space."""


class Lane:
    """One environment, its episodes and its faults."""

    def __init__(self, factory: EnvFactory, index: int, seed: int) -> None:
        self._factory, self._index, self._seed = factory, index, seed
        self._env: gymnasium.Env | None = None
        self.spec: Spec | None = None
        self.episode = -1
        self.actions: list[int] = []  # of the episode so far
        self.is_over = True
        self.dropped_episodes = 0
        self.restarts = 0
        self._consecutive_failures = 0  # without a good step between them

    def ensure_env(self) -> gymnasium.Env:
        """The environment, built if there is none."""
        while self._env is None:
            try:
                env = self._factory.build_env()
                self._record_spaces(env)
                self._env = env
            except Exception as error:
                self._handle_failure(error)
        return self._env

    def render_rgb(self, env: str) -> np.ndarray:
        """What the environment `env` looks like now, as it draws itself: [height, width, 3]."""
        try:
            drawn = self.ensure_env().render()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFault(f"{env} cannot be drawn: {reason}") from error
        if not isinstance(drawn, np.ndarray) or drawn.ndim != 3 or drawn.dtype != np.uint8:
            raise EnvironmentFault(f"{env} cannot be drawn: it has no render mode rgb_array")
        return drawn

    def begin_episode(self, dropped: bool = False, seed: int | None = None) -> LaneResult:
        """Open episode k; unless given, its seed depends only on the run's, the lane and k."""
        while True:
            self.episode += 1
            self.actions = []
            try:
                own = np.random.SeedSequence((self._seed, self._index, self.episode))
                chosen = int(own.generate_state(1)[0]) if seed is None else seed
                observation, _ = self.ensure_env().reset(seed=chosen)
                plane = self._to_plane(observation)
            except Exception as error:
                self._handle_failure(error)
            else:
                self.is_over = False
                return plane, 0.0, False, False, True, dropped

    def step(self, action: int) -> LaneResult:
        """Answer an action; after an end, open the next episode instead."""
        if self.is_over:
            return self.begin_episode()
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
        # What fails to close has failed before and is thrown away.
        with contextlib.suppress(Exception):
            if self._env is not None:
                self._env.close()
        self._env = None

    def _record_spaces(self, env: gymnasium.Env) -> None:
        """Learn the spaces of the environment; a rebuilt one must have kept them."""
        spec = self._factory.make_spec(env)
        if self.spec is not None and spec != self.spec:
            raise EnvironmentFault(
                f"{self._location()}: built anew it is {spec}, before {self.spec}"
            )
        self.spec = spec
        box: Any = env.observation_space
        self._shape, self._dtype = box.shape, box.dtype
        self._is_float = box.dtype.kind == "f"
        self._bounds = _integer_bounds(box)
        self._is_hwc = len(box.shape) == 3 and self._factory.env_config.layout == "hwc"
        self._first_action = int(env.action_space.start)  # type: ignore[attr-defined]

    def _to_plane(self, observation: Any) -> np.ndarray:
        """The observation as a plane, or as what NumPy will broadcast to one."""
        plane = np.asarray(observation)
        if plane.shape != self._shape or plane.dtype != self._dtype:
            raise EnvironmentFault(
                f"{self._location()}: the observation is {plane.dtype} {plane.shape},"
                f" but the space says {self._dtype} {self._shape}: make the two agree"
            )
        if self._is_float:
            plane = plane.astype(np.float32, copy=False)
            if np.count_nonzero(np.isfinite(plane)) != plane.size:
                raise NonFiniteValue("the observation holds a value that is not finite")
        elif self._bounds is not None:
            _check_bounds(plane, *self._bounds)
        return plane.transpose(2, 0, 1) if self._is_hwc else plane

    def _handle_failure(self, error: Exception) -> None:
        """Throw the environment away, or raise where that is not allowed or has not helped."""
        if isinstance(error, LookFurtherError):
            raise error
        environment = self._factory.env_config
        if isinstance(error, InvalidValue) and environment.on_fault == "stop":
            raise EnvironmentFault(
                f"{self._location()}: {error}; --environment.on-fault drop forgets such episodes"
            ) from None
        self._consecutive_failures += 1
        if self._consecutive_failures >= environment.max_failures:
            raise EnvironmentFault(
                f"{self._location()}: failure {self._consecutive_failures} in a row, the last is "
                + textwrap.shorten(f"{type(error).__name__}: {error}", 300)
            ) from error
        self.close()
        self.restarts += 1

    def _location(self) -> str:
        name = self.spec.env if self.spec else self._factory.env_name()
        place = f"{name}, lane {self._index}"
        if self.episode < 0:
            return f"{place}, when built"
        return f"{place}, episode {self.episode}, step {len(self.actions)}"


class SyncEnvs:
    """A block of environments stepped in this process; `numbers` are their lanes in the run."""

    replacements: Sequence[str] = ()

    def __init__(
        self,
        factory: EnvFactory,
        lane_indices: Sequence[int],
        seed: int,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`progress` is called whenever an environment was built or has answered."""
        self._env_lanes = [Lane(factory, number, seed) for number in lane_indices]
        self.lanes = len(self._env_lanes)
        self._on_progress = on_progress
        built = set()
        for lane in self._env_lanes:
            built.add(id(lane.ensure_env().unwrapped))
            on_progress()
        if len(built) < self.lanes:
            raise ConfigError(f"{factory.env_name()} must build a new environment at every call")
        spec = self._env_lanes[0].spec
        assert spec is not None
        self.spec = spec
        self._current_step = zero_step(spec, self.lanes)
        self._actions: list[int] = []

    @property
    def dropped_episodes(self) -> int:
        return sum(lane.dropped_episodes for lane in self._env_lanes)

    @property
    def restarts(self) -> int:
        return sum(lane.restarts for lane in self._env_lanes)

    @property
    def episode_numbers(self) -> np.ndarray:
        """The number of each lane's episode, from 0."""
        return np.array([lane.episode for lane in self._env_lanes], np.int64)

    def reset(self, previous_episodes: np.ndarray | None = None) -> Step:
        """Open the next episode in every lane, or the one that follows the numbers `after`."""
        self._current_step = zero_step(self.spec, self.lanes)
        for i, lane in enumerate(self._env_lanes):
            if previous_episodes is not None:
                lane.episode = int(previous_episodes[i])
            self._write_lane(i, lane.begin_episode())
        return self._current_step

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions.tolist()

    def recv(self) -> Step:
        self._current_step = Step(*(x.copy() for x in self._current_step))
        for i, (lane, action) in enumerate(zip(self._env_lanes, self._actions, strict=True)):
            self._write_lane(i, lane.step(action))
        return self._current_step

    def state(self) -> dict[str, np.ndarray]:
        """The current Step, and what leads to it: each lane's episode and the actions taken."""
        return self._current_step._asdict() | {
            "episode": self.episode_numbers,
            "length": np.array([len(lane.actions) for lane in self._env_lanes], np.int64),
            "action": np.array([a for lane in self._env_lanes for a in lane.actions], np.int64),
        }

    def truncate(self, lanes: np.ndarray) -> Step:
        for i in np.flatnonzero(lanes):
            self._env_lanes[i].is_over = True
        self._current_step = self._current_step._replace(
            truncated=self._current_step.truncated | lanes
        )
        return self._current_step

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        """Replay every episode in flight from its seed; go on where the last Step is the same."""
        held = len(state["episode"])
        if held != self.lanes:
            raise CheckpointError(f"the checkpoint holds {held} lanes, this run has {self.lanes}")
        self._current_step = zero_step(self.spec, self.lanes)
        actions = np.split(state["action"], np.cumsum(state["length"])[:-1])
        same = np.zeros(self.lanes, bool)
        for i, lane in enumerate(self._env_lanes):
            same[i] = self._replay_episode(i, int(state["episode"][i]), actions[i].tolist(), state)
            if same[i]:
                self._current_step.dropped[i] = state["dropped"][i]
            else:
                self._write_lane(i, lane.begin_episode())
        return self._current_step, same

    def close(self) -> None:
        for lane in self._env_lanes:
            lane.close()

    def _write_lane(self, i: int, answer: LaneResult) -> None:
        """Write lane i's answer into the current Step, its plane as the newest of the stack."""
        self._on_progress()
        plane, *rest = answer
        step, channels = self._current_step, self.spec.plane[0]
        step.reward[i], step.terminal[i], step.truncated[i], step.first[i], step.dropped[i] = rest
        stack = step.observation[i]
        if self.spec.stack > 1:
            stack[:-channels] = 0 if step.first[i] else stack[channels:]
        stack[-channels:] = plane

    def _replay_episode(self, i: int, episode: int, actions: list[int], state: dict) -> bool:
        """Play an episode again; False where it breaks off or does not end as it did."""
        lane = self._env_lanes[i]
        lane.episode = episode - 1
        self._write_lane(i, lane.begin_episode())
        for action in actions:
            if lane.episode != episode:
                return False
            self._write_lane(i, lane.step(action))
        if state["truncated"][i]:  # maybe by `truncate`, not by the environment
            lane.is_over = self._current_step.truncated[i] = True
        fields = ("observation", "reward", "terminal", "truncated", "first")
        return lane.episode == episode and all(
            state[name][i].tobytes() == getattr(self._current_step, name)[i].tobytes()
            for name in fields
        )


def _integer_bounds(box: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and the largest value of each cell, where the type does not keep to them itself."""
    dtype = np.dtype(box.dtype)
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    whole = (box.low == limits.min).all() and (box.high == limits.max).all()
    return None if whole else (box.low, box.high)


def _check_bounds(plane: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Refuse integers outside their space: in a smaller type they would become other numbers."""
    outside = (plane < low) | (plane > high)
    if outside.any():
        cell = np.unravel_index(int(outside.argmax()), plane.shape)
        value, least, most = int(plane[cell]), int(low[cell]), int(high[cell])
        raise OutOfBoundsValue(f"the observation holds {value}, but its space is {least} to {most}")


def zero_step(spec: Spec, lanes: int) -> Step:
    """A Step of zeros."""
    flags = (np.zeros(lanes, bool) for _ in range(4))
    observation = np.zeros((lanes, *spec.observation_shape), spec.dtype)
    return Step(observation, np.zeros(lanes, np.float32), *flags)


def select_lanes(state: dict[str, np.ndarray], low: int, high: int) -> dict[str, np.ndarray]:
    """The part of a state that concerns the lanes low ... high - 1."""
    ends = np.concatenate([[0], np.cumsum(state["length"])])
    part = {name: x[low:high] for name, x in state.items()}
    return part | {"action": state["action"][ends[low] : ends[high]]}
