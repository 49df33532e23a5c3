"""Names of environments: which ids are Atari games, ROM names and titles for people."""

from __future__ import annotations

import re

from lookfurther.system.printable import make_printable

# Games whose title is not the id split at its capital letters.
GAME_TITLES = {
    "jamesbond": "James Bond",
    "montezuma_revenge": "Montezuma's Revenge",
    "ms_pacman": "Ms. Pacman",
    "pitfall": "Pitfall!",
    "qbert": "Q*bert",
    "up_n_down": "Up'n'Down",
    "yars_revenge": "Yars' Revenge",
}
WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=\d*[A-Z])|(?<=[A-Z])(?=[A-Z])")


def is_atari(env: str) -> bool:
    """Whether an id, with or without `module:`, names an Atari game."""
    return env.rpartition(":")[2].startswith("ALE/")


def game_of(env: str) -> str:
    """ROM name of an Atari id: montezuma_revenge for ALE/MontezumaRevenge-v5; "" for other ids."""
    return WORD_BOUNDARY.sub("_", base_name(env)).lower() if is_atari(env) else ""


def base_name(env: str) -> str:
    """The id without module, namespace and version: UnlockPickup for x/UnlockPickup-v0."""
    return re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])


def env_title(env: str) -> str:
    """The title of an Atari game; the full id of any other environment."""
    return short_env_title(env) if is_atari(env) else make_printable(env)


def short_env_title(env: str) -> str:
    """The title of an Atari game; the base name of any other environment."""
    name = base_name(env)
    if is_atari(env):
        name = GAME_TITLES.get(game_of(env)) or WORD_BOUNDARY.sub(" ", name)
    return make_printable(name)
