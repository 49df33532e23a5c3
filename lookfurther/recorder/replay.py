"""A recorded episode that is shown again; the episode in progress does not change."""

from __future__ import annotations

import numpy as np

from lookfurther.demos.episode import Episode
from lookfurther.video.playback import EnvView, replay_demonstration


class EpisodeReplay:
    """Shows an episode frame by frame in an environment of its own."""

    def __init__(self, episode: Episode, env_view: EnvView, name: str) -> None:
        self._frames = replay_demonstration(episode, env_view, name)
        self._action_repeat = env_view.env_config.action_repeat if env_view.is_atari else 1
        self._frame = next(self._frames)
        self.score, self.frames = 0.0, 0

    @property
    def is_over(self) -> bool:
        return self._frame.is_last

    @property
    def steps(self) -> int:
        return -(-self.frames // self._action_repeat)

    @property
    def lives(self) -> int | None:
        return self._frame.lives

    def advance(self) -> bool:
        """Play the next frame; return whether there was one."""
        if self.is_over:
            return False
        self._frame = next(self._frames)
        self.score += self._frame.reward
        self.frames += 1
        return True

    def render(self) -> np.ndarray:
        """Return the screen, [height, width, 3] uint8."""
        return self._frame.render()
