"""Games of the emulator that wait."""

from __future__ import annotations

import numpy as np

from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.game_policy import GamePolicy
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.retimed_games import RetimedGame

MONTEZUMA, BREAKOUT = "ALE/MontezumaRevenge-v5", "ALE/Breakout-v5"
NOOP, FIRE, RIGHT, LEFT = 0, 1, 3, 4
PLAYER_X = 42  # the byte of Montezuma's Revenge


def game_episode(*moves: tuple[int, int], phase: int = 0, env: str = MONTEZUMA) -> Episode:
    """(action, steps) of a game, after 8 no-ops as an alignment from a start has."""
    actions = np.concatenate([np.full(n, a) for a, n in ((NOOP, 8), *moves)])
    frames = np.repeat(actions, 4)[-phase % 4 :].astype(np.uint8)
    return episode_from_log(InputLog(frames, phase=phase), env)


def fake_game(conflicts: int, steps: int) -> RetimedGame:
    policy = GamePolicy(np.zeros(1, np.uint8))
    policy.conflicts = conflicts
    return RetimedGame(None, (NOOP,) * steps, policy, is_original=False)  # type: ignore[arg-type]
