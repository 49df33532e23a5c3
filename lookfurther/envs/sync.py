"""Gymnasium environments stepped one after another, each watched for faults."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from lookfurther.envs.factory import Blueprint
from lookfurther.errors import CheckpointError, ConfigError, EnvironmentFault, LookFurtherError
from lookfurther.types import Spec, Step

# What one lane answers: plane, reward, terminal, truncated, first, dropped (see types.Step).
Answer = tuple[np.ndarray, float, bool, bool, bool, bool]

LARGEST = float(np.finfo(np.float32).max)


class BadValue(Exception):
    """A reward or an observation that must not be learned from."""


class NotFinite(BadValue):
    """A value that is infinite or not a number."""


class OutsideSpace(BadValue):
    """An integer observation outside the bounds of its space."""


class Lane:
    """One environment, its episodes and its faults."""

    def __init__(self, blueprint: Blueprint, index: int, seed: int) -> None:
        self._blueprint, self._index, self._seed = blueprint, index, seed
        self._env: gymnasium.Env | None = None
        self.spec: Spec | None = None
        self.episode = -1
        self.actions: list[int] = []  # of the episode so far
        self.over = True
        self.dropped_episodes = 0
        self.restarts = 0
        self._failures = 0  # without a good step between them

    def open(self) -> gymnasium.Env:
        """The environment, built if there is none."""
        while self._env is None:
            try:
                env = self._blueprint.build()
                self._adopt(env)
                self._env = env
            except Exception as error:
                self._fail(error)
        return self._env

    def picture(self, env: str) -> np.ndarray:
        """What the environment `env` looks like now, as it draws itself: [height, width, 3]."""
        try:
            drawn = self.open().render()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFault(f"{env} cannot be drawn: {reason}") from error
        if not isinstance(drawn, np.ndarray) or drawn.ndim != 3 or drawn.dtype != np.uint8:
            raise EnvironmentFault(f"{env} cannot be drawn: it has no render mode rgb_array")
        return drawn

    def begin(self, dropped: bool = False, seed: int | None = None) -> Answer:
        """Open episode k; unless given, its seed depends only on the run's, the lane and k."""
        while True:
            self.episode += 1
            self.actions = []
            try:
                own = np.random.SeedSequence((self._seed, self._index, self.episode))
                chosen = int(own.generate_state(1)[0]) if seed is None else seed
                observation, _ = self.open().reset(seed=chosen)
                plane = self._plane(observation)
            except Exception as error:
                self._fail(error)
            else:
                self.over = False
                return plane, 0.0, False, False, True, dropped

    def step(self, action: int) -> Answer:
        """Answer an action; after an end, open the next episode instead."""
        if self.over:
            return self.begin()
        self.actions.append(action)
        try:
            result = self.open().step(action + self._start)
            observation, reward, terminal, truncated, _ = result
            plane, reward = self._plane(observation), float(reward)
            if not -LARGEST <= reward <= LARGEST:
                raise NotFinite(f"the reward is {reward}")
        except Exception as error:
            self._fail(error)
            self.dropped_episodes += 1
            return self.begin(dropped=True)
        self._failures = 0
        self.over = bool(terminal or truncated)
        return plane, reward, bool(terminal), bool(truncated and not terminal), False, False

    def close(self) -> None:
        # What fails to close has failed before and is thrown away.
        with contextlib.suppress(Exception):
            if self._env is not None:
                self._env.close()
        self._env = None

    def _adopt(self, env: gymnasium.Env) -> None:
        """Learn the spaces of the environment; a rebuilt one must have kept them."""
        spec = self._blueprint.spec(env)
        if self.spec is not None and spec != self.spec:
            raise EnvironmentFault(f"{self._where()}: built anew it is {spec}, before {self.spec}")
        self.spec = spec
        box: Any = env.observation_space
        self._shape, self._dtype = box.shape, box.dtype
        self._floats = box.dtype.kind == "f"
        self._bounds = _bounds(box)
        self._hwc = len(box.shape) == 3 and self._blueprint.environment.layout == "hwc"
        self._start = int(env.action_space.start)  # type: ignore[attr-defined]

    def _plane(self, observation: Any) -> np.ndarray:
        """The observation as a plane, or as what NumPy will broadcast to one."""
        plane = np.asarray(observation)
        if plane.shape != self._shape or plane.dtype != self._dtype:
            raise EnvironmentFault(
                f"{self._where()}: the observation is {plane.dtype} {plane.shape},"
                f" but the space says {self._dtype} {self._shape}: make the two agree"
            )
        if self._floats:
            plane = plane.astype(np.float32, copy=False)
            if np.count_nonzero(np.isfinite(plane)) != plane.size:
                raise NotFinite("the observation holds a value that is not finite")
        elif self._bounds is not None:
            _check_bounds(plane, *self._bounds)
        return plane.transpose(2, 0, 1) if self._hwc else plane

    def _fail(self, error: Exception) -> None:
        """Throw the environment away, or raise where that is not allowed or has not helped."""
        if isinstance(error, LookFurtherError):
            raise error
        environment = self._blueprint.environment
        if isinstance(error, BadValue) and environment.on_fault == "stop":
            raise EnvironmentFault(
                f"{self._where()}: {error}; --environment.on_fault drop forgets such episodes"
            ) from None
        self._failures += 1
        if self._failures >= environment.max_failures:
            raise EnvironmentFault(
                f"{self._where()}: failure {self._failures} in a row, the last is "
                + textwrap.shorten(f"{type(error).__name__}: {error}", 300)
            ) from error
        self.close()
        self.restarts += 1

    def _where(self) -> str:
        name = self.spec.env if self.spec else self._blueprint.name()
        place = f"{name}, lane {self._index}"
        if self.episode < 0:
            return f"{place}, when built"
        return f"{place}, episode {self.episode}, step {len(self.actions)}"


class Lanes:
    """A block of environments stepped in this process; `numbers` are their lanes in the run."""

    replacements: Sequence[str] = ()

    def __init__(
        self,
        blueprint: Blueprint,
        numbers: Sequence[int],
        seed: int,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`progress` is called whenever an environment was built or has answered."""
        self._block = [Lane(blueprint, number, seed) for number in numbers]
        self.lanes = len(self._block)
        self._progress = progress
        built = set()
        for lane in self._block:
            built.add(id(lane.open().unwrapped))
            progress()
        if len(built) < self.lanes:
            raise ConfigError(f"{blueprint.name()} must build a new environment at every call")
        spec = self._block[0].spec
        assert spec is not None
        self.spec = spec
        self._step = blank(spec, self.lanes)
        self._actions: list[int] = []

    @property
    def dropped_episodes(self) -> int:
        return sum(lane.dropped_episodes for lane in self._block)

    @property
    def restarts(self) -> int:
        return sum(lane.restarts for lane in self._block)

    @property
    def episodes(self) -> np.ndarray:
        """The number of each lane's episode, from 0."""
        return np.array([lane.episode for lane in self._block], np.int64)

    def reset(self, after: np.ndarray | None = None) -> Step:
        """Open the next episode in every lane, or the one that follows the numbers `after`."""
        self._step = blank(self.spec, self.lanes)
        for i, lane in enumerate(self._block):
            if after is not None:
                lane.episode = int(after[i])
            self._put(i, lane.begin())
        return self._step

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions.tolist()

    def recv(self) -> Step:
        self._step = Step(*(x.copy() for x in self._step))
        for i, (lane, action) in enumerate(zip(self._block, self._actions, strict=True)):
            self._put(i, lane.step(action))
        return self._step

    def state(self) -> dict[str, np.ndarray]:
        """The current Step, and what leads to it: each lane's episode and the actions taken."""
        return self._step._asdict() | {
            "episode": self.episodes,
            "length": np.array([len(lane.actions) for lane in self._block], np.int64),
            "action": np.array([a for lane in self._block for a in lane.actions], np.int64),
        }

    def truncate(self, lanes: np.ndarray) -> Step:
        for i in np.flatnonzero(lanes):
            self._block[i].over = True
        self._step = self._step._replace(truncated=self._step.truncated | lanes)
        return self._step

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        """Replay every episode in flight from its seed; go on where the last Step is the same."""
        held = len(state["episode"])
        if held != self.lanes:
            raise CheckpointError(f"the checkpoint holds {held} lanes, this run has {self.lanes}")
        self._step = blank(self.spec, self.lanes)
        actions = np.split(state["action"], np.cumsum(state["length"])[:-1])
        same = np.zeros(self.lanes, bool)
        for i, lane in enumerate(self._block):
            same[i] = self._replay(i, int(state["episode"][i]), actions[i].tolist(), state)
            if same[i]:
                self._step.dropped[i] = state["dropped"][i]
            else:
                self._put(i, lane.begin())
        return self._step, same

    def close(self) -> None:
        for lane in self._block:
            lane.close()

    def _put(self, i: int, answer: Answer) -> None:
        """Write lane i's answer into the current Step, its plane as the newest of the stack."""
        self._progress()
        plane, *rest = answer
        step, channels = self._step, self.spec.plane[0]
        step.reward[i], step.terminal[i], step.truncated[i], step.first[i], step.dropped[i] = rest
        stack = step.observation[i]
        if self.spec.stack > 1:
            stack[:-channels] = 0 if step.first[i] else stack[channels:]
        stack[-channels:] = plane

    def _replay(self, i: int, episode: int, actions: list[int], state: dict) -> bool:
        """Play an episode again; False where it breaks off or does not end as it did."""
        lane = self._block[i]
        lane.episode = episode - 1
        self._put(i, lane.begin())
        for action in actions:
            if lane.episode != episode:
                return False
            self._put(i, lane.step(action))
        if state["truncated"][i]:  # maybe by `truncate`, not by the environment
            lane.over = self._step.truncated[i] = True
        fields = ("observation", "reward", "terminal", "truncated", "first")
        return lane.episode == episode and all(
            state[name][i].tobytes() == getattr(self._step, name)[i].tobytes() for name in fields
        )


def _bounds(box: Any) -> tuple[np.ndarray, np.ndarray] | None:
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
        raise OutsideSpace(f"the observation holds {value}, but its space is {least} to {most}")


def blank(spec: Spec, lanes: int) -> Step:
    """A Step of zeros."""
    flags = (np.zeros(lanes, bool) for _ in range(4))
    observation = np.zeros((lanes, *spec.observation), spec.dtype)
    return Step(observation, np.zeros(lanes, np.float32), *flags)


def select(state: dict[str, np.ndarray], low: int, high: int) -> dict[str, np.ndarray]:
    """The part of a state that concerns the lanes low ... high - 1."""
    ends = np.concatenate([[0], np.cumsum(state["length"])])
    part = {name: x[low:high] for name, x in state.items()}
    return part | {"action": state["action"][ends[low] : ends[high]]}
