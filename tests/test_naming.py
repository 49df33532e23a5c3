"""Names of environments: Atari ids, ROM names and titles."""

from __future__ import annotations

import re

import gymnasium
import pytest

from lookfurther.envs.naming import base_name, env_title, game_of, is_atari, short_env_title
from lookfurther.evaluation.paper_scores import game_titles, reference_table


def registered_games() -> dict[str, str]:
    """The ROM name of every Atari id, as ale-py registers it."""
    ale_py = pytest.importorskip("ale_py", reason="Atari is not installed")
    gymnasium.register_envs(ale_py)
    return {
        env: spec.kwargs["game"]
        for env, spec in gymnasium.registry.items()
        if re.fullmatch(r"ALE/\w+-v5", env)
    }


def test_game_of_matches_ale_py() -> None:
    games = registered_games()
    assert {env: game_of(env) for env in games} == games
    assert set(reference_table("noop")) <= set(games.values())


def test_titles_match_paper() -> None:
    envs = {game: env for env, game in registered_games().items()}
    titles = {game: env_title(envs[game]) for game in game_titles()}
    assert titles == game_titles()


@pytest.mark.parametrize(
    ("env", "game", "name", "title", "short_title"),
    [
        (
            "ALE/MontezumaRevenge-v5",
            "montezuma_revenge",
            "MontezumaRevenge",
            *["Montezuma's Revenge"] * 2,
        ),
        ("ale_py:ALE/Skiing-v5", "skiing", "Skiing", "Skiing", "Skiing"),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d", "TicTacToe3D", *["Tic Tac Toe 3D"] * 2),
        ("CartPole-v1", "", "CartPole", "CartPole-v1", "CartPole"),
        ("Pong-v4", "", "Pong", "Pong-v4", "Pong"),
        ("a:b/UnlockPickup-v0", "", "UnlockPickup", "a:b/UnlockPickup-v0", "UnlockPickup"),
        (
            "MiniGrid-DoorKey-6x6-v0",
            "",
            "MiniGrid-DoorKey-6x6",
            "MiniGrid-DoorKey-6x6-v0",
            "MiniGrid-DoorKey-6x6",
        ),
    ],
)
def test_names_of_environment(env: str, game: str, name: str, title: str, short_title: str) -> None:
    assert is_atari(env) == bool(game)
    assert (game_of(env), base_name(env)) == (game, name)
    assert (env_title(env), short_env_title(env)) == (title, short_title)


def test_titles_are_printable() -> None:
    for env in ("ALE/\x1b[31m" + "x" * 300, "a/\u202e\x07b-v0"):
        assert env_title(env).isprintable()
        assert short_env_title(env).isprintable()
