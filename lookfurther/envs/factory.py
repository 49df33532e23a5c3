"""Find and build Gymnasium environments, and derive a Spec from their spaces."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from lookfurther.config import EnvConfig
from lookfurther.envs.minigrid import silence_level_generator
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, EnvironmentFault
from lookfurther.system.windows import disable_windows
from lookfurther.types import Spec

# Prefix of ids: the module that registers them, and our extra that installs the module.
ENV_FAMILIES = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}
FLATTEN_WRAPPER = "gymnasium.wrappers:FlattenObservation"


def find_env_spec(env: str) -> EnvSpec:
    """The registered environment of an id; for `module:id`, imports the module first."""
    module, _, name = env.rpartition(":")
    extra = ""
    for prefix, family in ENV_FAMILIES.items():
        if name.startswith(prefix):
            module, extra = family
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        _check_atari_name(env)
        raise ConfigError(f"env {env!r}: {error}") from None
    except ImportError as error:
        if extra:
            raise EnvironmentFault(f"{name} needs {module}: install lookfurther[{extra}]") from None
        raise ConfigError(f"env {env!r}: {error}") from None
    except (TypeError, ValueError) as error:  # a relative or empty name of a module
        raise ConfigError(f"env {env!r}: {error}") from None
    if spec.entry_point == "ale_py.env:AtariEnv" and not is_atari(spec.id):
        _check_atari_name(env)
        raise ConfigError(f"env {env!r} is an Atari game: use its ALE/...-v5 id")
    return spec


def find_rendering_spec(env: str) -> EnvSpec:
    """`find_env_spec` of an environment that renders RGB images."""
    spec = copy.deepcopy(find_env_spec(env))
    spec.kwargs["render_mode"] = "rgb_array"
    disable_windows(os.environ)
    return spec


def _check_atari_name(env: str) -> None:
    """Raise if an id is Pong, pong, Pong-v4, PongNoFrameskip-v4 or the like."""
    with contextlib.suppress(ImportError):
        importlib.import_module("ale_py")
    base = re.sub(r"(-ram)?(NoFrameskip|Deterministic)?(-v\d+)?$", "", env.rpartition(":")[2])
    key = f"ale/{base.replace('_', '')}-v5".lower()
    for known in gymnasium.registry:
        if known.lower() == key:
            raise ConfigError(f"env {env!r} is an old or short name of an Atari game: use {known}")


def check_env_function(env: Any) -> None:
    """Raise if `env` is not a function that makes environments."""
    if isinstance(env, gymnasium.Env):
        raise ConfigError(
            "env must be a function that makes a new environment at every call, not an"
            f" environment: give a function such as lambda: gymnasium.make({_id_of(env)!r})"
        )
    if not callable(env):
        raise ConfigError(
            f"env must be a function that makes an environment, not {type(env).__name__}"
        )


def _id_of(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def find_game(env: str) -> str:
    """The ROM name of a registered Atari game; a ConfigError for any other id."""
    spec = find_env_spec(env)
    if not is_atari(spec.id):
        raise ConfigError(f"{env} is no Atari game: its id must be an ALE/...-v5 one")
    return spec.kwargs["game"]


@dataclass(frozen=True)
class EnvFactory:
    """Builds one environment, in this process or another."""

    source: EnvSpec | Callable[[], gymnasium.Env]
    env_config: EnvConfig

    def env_name(self, env: gymnasium.Env | None = None) -> str:
        """The id, else the name of the function that builds `env`, else that of `env` itself."""
        if isinstance(self.source, EnvSpec):
            return self.source.id
        name = getattr(self.source, "__name__", "")
        if env is None or name.isidentifier():
            return name or repr(self.source)
        return env.spec.id if env.spec else type(env.unwrapped).__name__

    def build_env(self) -> gymnasium.Env:
        """A new environment with the configured wrappers."""
        if isinstance(self.source, EnvSpec):
            if self.source.id.startswith("BabyAI-"):
                silence_level_generator()
            # Gymnasium's checker accepts what we refuse, and costs more than our checks.
            env = gymnasium.make(self.source, disable_env_checker=True)
        else:
            env = self.source()
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{self.env_name()} must give a gymnasium.Env, not {type(env).__name__}"
            )
        for wrapper in self.env_config.wrappers:
            env = load_wrapper(wrapper)(env)
        return env

    def reset_arguments(self, action: int) -> dict[str, Any]:
        """Arguments of a reset after the end of an episode; `action` is otherwise ignored."""
        return {}

    def make_spec(self, env: gymnasium.Env) -> Spec:
        """The Spec of `env` after our adaptation; a ConfigError if we cannot adapt it."""
        name, actions, box = self.env_name(env), env.action_space, env.observation_space
        if not isinstance(actions, Discrete):
            raise ConfigError(
                f"{name}: its actions are {_shorten_space(actions)}, and only Discrete ones can be"
                " learned: wrap it, for example --environment.wrappers your_module:DiscreteActions"
            )
        if not isinstance(box, Box):
            is_grid = name.startswith(("MiniGrid-", "BabyAI-"))
            wrapper = "lookfurther.envs.minigrid:OneHotGrid" if is_grid else FLATTEN_WRAPPER
            raise ConfigError(
                f"{name}: its observations are {_shorten_space(box)}, not a Box: wrap it,"
                f" for example --environment.wrappers {wrapper}"
            )
        plane, dtype, high = self._plane_format(name, box)
        stack = self.env_config.frame_stack or 1
        return Spec(name, plane, stack, dtype, int(actions.n), high)

    def _plane_format(self, name: str, box: Box) -> tuple[tuple[int, ...], str, float]:
        """Shape, dtype and largest value of one plane."""
        shape = box.shape
        if len(shape) == 1:
            return shape, "float32", 1.0
        if len(shape) == 2:
            shape = (1, *shape)
        elif len(shape) != 3:
            raise ConfigError(
                f"{name}: its observations are {_shorten_space(box)}, neither a vector nor an"
                f" image: wrap it, for example --environment.wrappers {FLATTEN_WRAPPER}"
            )
        elif self.env_config.layout == "hwc":
            shape = (shape[2], *shape[:2])
        if box.dtype is not None and box.dtype.kind == "f":
            return shape, "float32", 1.0
        low, high = float(box.low.min()), float(box.high.max())
        if low < 0 or high > 255:
            raise ConfigError(
                f"{name}: its images hold integers of {low:.0f} to {high:.0f}, and only 0 to"
                " 255 can be kept: declare those bounds, or give floats"
            )
        return shape, "uint8", max(high, 1.0)


def load_wrapper(name: str) -> Callable[[gymnasium.Env], gymnasium.Env]:
    """The wrapper class of `module:Class`."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"environment.wrappers: no {name!r} ({error}); write it as module:Class"
        ) from None


def _shorten_space(space: Any) -> str:
    return textwrap.shorten(str(space), 100)
