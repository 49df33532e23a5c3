"""Which modules a file may name.

A run folder, a checkpoint, a demonstration set and a suite say which environment and wrappers they
belong to. Building those imports modules and calls what is in them, so a file from somebody else
could run any code. What a file names is used only if it is on the lists below or the user names its
module in the same call.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import gymnasium

from lookfurther.envs.factory import ENV_FAMILIES, load_wrapper
from lookfurther.errors import ConfigError

WRAPPER_MODULES = ("lookfurther.envs", "gymnasium.wrappers", "minigrid.wrappers")
ENV_MODULES = ("lookfurther.envs", *sorted({module for module, _ in ENV_FAMILIES.values()}))


def import_modules(modules: Sequence[str]) -> None:
    """Import what the user names: modules that register environments or hold wrappers."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"--modules {module}: {error}") from None


def find_untrusted(env: str, wrappers: Sequence[str], modules: Sequence[str] = ()) -> str:
    """The first thing that may not be used, and why, of those a file names; "" if there is none.

    `modules` are those that the user names.
    """
    module, colon, _ = env.rpartition(":")
    if colon and not _is_allowed(module, ENV_MODULES, modules):
        return _refusal_reason(env, module)
    for wrapper in wrappers:
        module = wrapper.partition(":")[0]
        if module in modules:
            continue
        if not _is_allowed(module, WRAPPER_MODULES):
            return _refusal_reason(wrapper, module)
        loaded = load_wrapper(wrapper)
        if not (isinstance(loaded, type) and issubclass(loaded, gymnasium.Wrapper)):
            return f"{wrapper}, which is not a Gymnasium wrapper"
    return ""


def _is_allowed(module: str, listed: Sequence[str], named: Sequence[str] = ()) -> bool:
    inside = tuple(f"{known}." for known in listed)
    plain = all(part.isidentifier() for part in module.split("."))
    return module in named or (plain and f"{module}.".startswith(inside))


def _refusal_reason(name: str, module: str) -> str:
    return f"{name}: if you trust that module, give --modules {module}"
