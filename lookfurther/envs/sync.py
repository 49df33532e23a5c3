"""Gymnasium environments stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lookfurther.envs.factory import EnvFactory
from lookfurther.envs.lane import Lane, LaneResult
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.types import Spec, Step


class SyncEnvs:
    """Lanes stepped in this process; `lane_indices` are their numbers in the run."""

    replacements: Sequence[str] = ()
    lives = None

    def __init__(
        self,
        factory: EnvFactory,
        lane_indices: Sequence[int],
        seed: int,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_progress` is called after every construction, reset and step of an environment."""
        self._env_lanes = [Lane(factory, index, seed) for index in lane_indices]
        self.lanes = len(self._env_lanes)
        self._on_progress = on_progress
        distinct_envs = set()
        for lane in self._env_lanes:
            distinct_envs.add(id(lane.ensure_env().unwrapped))
            on_progress()
        if len(distinct_envs) < self.lanes:
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
        """Begin the next episode in every lane, or the one that follows `previous_episodes`."""
        self._current_step = zero_step(self.spec, self.lanes)
        for i, lane in enumerate(self._env_lanes):
            if previous_episodes is not None:
                lane.episode = int(previous_episodes[i])
            self._write_lane(i, lane.begin_episode())
        return self._current_step

    def send(self, actions: np.ndarray) -> None:
        self._actions = actions.tolist()

    def recv(self) -> Step:
        self._current_step = Step(*(array.copy() for array in self._current_step))
        for i, (lane, action) in enumerate(zip(self._env_lanes, self._actions, strict=True)):
            self._write_lane(i, lane.step(action))
        return self._current_step

    def state(self) -> dict[str, np.ndarray]:
        """The current Step, and each lane's episode number and actions, which lead to it."""
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
        """Replay every episode in progress from its seed; continue where the Step is the same."""
        check_lane_count(state, self.lanes)
        self._current_step = zero_step(self.spec, self.lanes)
        actions = np.split(state["action"], np.cumsum(state["length"])[:-1])
        continued = np.zeros(self.lanes, bool)
        for i, lane in enumerate(self._env_lanes):
            continued[i] = self._replay_episode(i, actions[i].tolist(), state)
            if continued[i]:
                self._current_step.dropped[i] = state["dropped"][i]
            else:
                self._write_lane(i, lane.begin_episode())
        return self._current_step, continued

    def close(self) -> None:
        for lane in self._env_lanes:
            lane.close()

    def _write_lane(self, i: int, result: LaneResult) -> None:
        """Write lane i's result into the current Step, its plane as the newest of the stack."""
        self._on_progress()
        plane, *flags = result
        step, channels = self._current_step, self.spec.plane[0]
        step.reward[i], step.terminal[i], step.truncated[i], step.first[i], step.dropped[i] = flags
        stack = step.observation[i]
        if self.spec.stack > 1:
            stack[:-channels] = 0 if step.first[i] else stack[channels:]
        stack[-channels:] = plane

    def _replay_episode(self, i: int, actions: list[int], state: dict) -> bool:
        """Play lane i's episode again; False if it ends early or at another Step."""
        lane, episode = self._env_lanes[i], int(state["episode"][i])
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


def zero_step(spec: Spec, lanes: int) -> Step:
    """A Step of zeros."""
    flags = (np.zeros(lanes, bool) for _ in range(4))
    observation = np.zeros((lanes, *spec.observation_shape), spec.dtype)
    return Step(observation, np.zeros(lanes, np.float32), *flags)


def select_lanes(state: dict[str, np.ndarray], low: int, high: int) -> dict[str, np.ndarray]:
    """The part of a state that belongs to the lanes low ... high - 1."""
    ends = np.concatenate([[0], np.cumsum(state["length"])])
    part = {name: array[low:high] for name, array in state.items()}
    return part | {"action": state["action"][ends[low] : ends[high]]}


def check_lane_count(state: dict[str, np.ndarray], lanes: int) -> None:
    """Refuse a state of another number of lanes."""
    count = len(state["episode"])
    if count != lanes:
        raise CheckpointError(f"the checkpoint holds {count} lanes, this run has {lanes}")
