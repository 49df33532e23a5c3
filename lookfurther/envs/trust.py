"""Which modules a file may name.

Run folders, checkpoints, demonstration sets and suites name their environment and wrappers.
Building these imports modules and calls their code, so a file from somebody else could run any
code. We use a name from a file only if its module is on the lists below or if the user names the
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
    """Import modules that the user names: they register environments or hold wrappers."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"--modules {module}: {error}") from None


def find_untrusted(env: str, wrappers: Sequence[str], modules: Sequence[str] = ()) -> str:
    """The first name of a file that may not be used, with the reason; "" if all are allowed.

    The user names `modules`.
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


def _is_allowed(module: str, trusted: Sequence[str], named_by_user: Sequence[str] = ()) -> bool:
    prefixes = tuple(f"{name}." for name in trusted)
    is_dotted_name = all(part.isidentifier() for part in module.split("."))
    return module in named_by_user or (is_dotted_name and f"{module}.".startswith(prefixes))


def _refusal_reason(name: str, module: str) -> str:
    return f"{name}: if you trust that module, give --modules {module}"
