"""Environments behind one interface: m lanes stepped together, whatever is inside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from lookfurther.config import EnvConfig
from lookfurther.envs.atari import AtariEnvs
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.subproc import SubprocEnvs
from lookfurther.envs.sync import SyncEnvs
from lookfurther.types import Spec, Step


class Envs(Protocol):
    """m environments with next-step autoreset; the arrays of a Step are never written again.

    `send` and `recv` alternate, and `state` belongs after a `recv`. After an end the next action
    of that lane is ignored, and its answer is the first observation of the next episode.
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def lanes(self) -> int: ...

    @property
    def dropped_episodes(self) -> int:
        """Episodes cut short by a fault, to be forgotten."""
        ...

    @property
    def restarts(self) -> int:
        """Environments rebuilt after an exception."""
        ...

    @property
    def replacements(self) -> Sequence[str]:
        """A line for each worker process that was lost and replaced."""
        ...

    def reset(self) -> Step:
        """Open a new episode in every lane."""
        ...

    def send(self, actions: np.ndarray) -> None:
        """Give each lane its action, int [m]; returns at once where environments step elsewhere."""
        ...

    def recv(self) -> Step:
        """What followed the actions sent."""
        ...

    def truncate(self, lanes: np.ndarray) -> Step:
        """The last Step again, with the episodes of `lanes` [m] bool truncated there.

        Only episodes in progress can be. The next answer of these lanes opens a new episode.
        """
        ...

    def state(self) -> dict[str, np.ndarray]:
        """What `restore` needs to take up the episodes in flight."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> tuple[Step, np.ndarray]:
        """The Step of the time of `state`, and bool [m]: which lanes truly go on from it.

        The other lanes have begun a new episode.
        """
        ...

    def close(self) -> None:
        """Let go of environments, processes and memory; may be called twice."""
        ...


def make_envs(
    env: str | Callable[[], gymnasium.Env],
    env_config: EnvConfig,
    lanes: int,
    seed: int,
    threads: int,
) -> Envs:
    """m lanes of an environment id, or of what a function without arguments builds."""
    source = find_env_spec(env) if isinstance(env, str) else env
    if isinstance(source, EnvSpec) and source.namespace == "ALE":
        return AtariEnvs(source, env_config, lanes, seed, threads)
    blueprint = EnvFactory(source, env_config)
    if env_config.processes:
        return SubprocEnvs(blueprint, lanes, seed)
    return SyncEnvs(blueprint, range(lanes), seed)


def get_spec(env: str | Callable[[], gymnasium.Env], env_config: EnvConfig) -> Spec:
    """What the lanes of `make_envs` will show and accept; builds one environment to see."""
    source = find_env_spec(env) if isinstance(env, str) else env
    if isinstance(source, EnvSpec) and source.namespace == "ALE":
        envs = AtariEnvs(source, env_config, lanes=1, seed=0, threads=1)
    else:
        envs = SyncEnvs(EnvFactory(source, env_config), range(1), seed=0)
    envs.close()
    return envs.spec
