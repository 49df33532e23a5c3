"""Environments behind one interface: m lanes that step together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from lookfurther.config import EnvConfig
from lookfurther.envs.atari import AtariEnvs
from lookfurther.envs.factory import EnvFactory, check_env_function, find_env_spec
from lookfurther.envs.naming import is_atari
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.envs.sync import SyncEnvs
from lookfurther.types import Spec, Step


class Envs(Protocol):
    """m environments with next-step autoreset; the arrays of a Step are never overwritten.

    `send` and `recv` alternate; call `state` after a `recv`. After the end of an episode, the next
    action of that lane is ignored, and the lane returns the first observation of a new episode.
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def lanes(self) -> int: ...

    @property
    def dropped_episodes(self) -> int:
        """Episodes that a fault cut short, which must not be learned from."""
        ...

    @property
    def restarts(self) -> int:
        """Environments rebuilt after an exception."""
        ...

    @property
    def replacements(self) -> Sequence[str]:
        """One line for each worker process that was lost and replaced."""
        ...

    @property
    def lives(self) -> np.ndarray | None:
        """The lives left in each lane, int [m]; None if the environments do not count them."""
        ...

    def reset(self) -> Step:
        """Begin a new episode in every lane."""
        ...

    def send(self, actions: np.ndarray) -> None:
        """Send each lane its action, int [m]; does not wait for environments in other threads."""
        ...

    def recv(self) -> Step:
        """The Step that follows the actions sent."""
        ...

    def truncate(self, lanes: np.ndarray) -> Step:
        """Truncate the episodes of `lanes` [m] bool at the last Step; return that Step, changed.

        Only episodes in progress can be truncated. The next `recv` begins new ones in these lanes.
        """
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What `restore` needs to continue the episodes in progress."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        """Return the Step of `state`, and bool [m]: which lanes continue from it.

        The other lanes have begun a new episode.
        """
        ...

    def close(self) -> None:
        """Release environments, processes and memory; may be called twice."""
        ...


def make_envs(
    env: str | Callable[[], gymnasium.Env],
    env_config: EnvConfig,
    lanes: int,
    seed: int,
    threads: int,
) -> Envs:
    """m lanes of an environment id, or of the environments that a function builds."""
    source = find_env_spec(env) if isinstance(env, str) else env
    if not isinstance(source, EnvSpec):
        check_env_function(source)
    if isinstance(source, EnvSpec) and is_atari(source.id):
        return AtariEnvs(source, env_config, lanes, seed, threads)
    factory = EnvFactory(source, env_config)
    if env_config.processes:
        return SubprocEnvs(factory, lanes, seed)
    return SyncEnvs(factory, range(lanes), seed)


def get_spec(env: str | Callable[[], gymnasium.Env], env_config: EnvConfig) -> Spec:
    """The Spec of the lanes that `make_envs` makes; builds one environment."""
    envs = make_envs(env, replace(env_config, processes=0), lanes=1, seed=0, threads=1)
    envs.close()
    return envs.spec
