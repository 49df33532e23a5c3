"""Play episodes frame by frame: of a policy, or a demonstration again.

A frame of an Atari game is an emulator frame; in other environments it is a step.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np

from lookfurther.config import Config, EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import make_emulator, make_lane, play_lane, play_steps
from lookfurther.envs.clock import make_clock_display
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError, EnvironmentFault
from lookfurther.rollout import Policy
from lookfurther.types import Spec

ATARI_FPS = 60.0
DEFAULT_FPS = 8.0  # of environments without a render_fps


class EnvView(NamedTuple):
    """The environment in which episodes are shown."""

    env: str  # the name in the configuration
    spec: Spec
    env_config: EnvConfig
    frame_rate: float  # frames per second at normal speed

    @classmethod
    def from_config(cls, config: Config, spec: Spec) -> EnvView:
        """The environment of an agent with this configuration."""
        view = cls(config.env, spec, config.environment, ATARI_FPS)
        if view.is_atari:
            return view
        factory = EnvFactory(find_env_spec(config.env), config.environment)
        with closing(factory.build_env()) as env:
            frame_rate = env.metadata.get("render_fps") or DEFAULT_FPS
        return view._replace(frame_rate=float(frame_rate))

    @property
    def is_atari(self) -> bool:
        return is_atari(self.spec.env)


class Frame(NamedTuple):
    """One frame of an episode; the first is the state after the reset."""

    reward: float
    render: Callable[[], np.ndarray]  # [height, width, 3] uint8; valid until the next frame
    is_last: bool
    lives: int | None = None  # only in Atari games


def play_policy(policy: Policy, env_view: EnvView, seed: int, env_seed: int) -> Iterator[Frame]:
    """Play an episode: `seed` sets the emulator and the no-op start, `env_seed` other envs."""
    if env_view.is_atari:
        return _play_atari(policy, env_view, seed)
    return _step_env(env_view, env_seed, _action_selector(policy, env_view.spec))


def replay_demonstration(episode: Episode, env_view: EnvView, name: str) -> Iterator[Frame]:
    """Play a demonstration again, from its input log or its seed; its score must be the same."""
    if env_view.is_atari and episode.input_log is not None:
        frames = _replay_input_log(episode.input_log, env_view)
    elif episode.seed is not None and not env_view.is_atari:
        actions = iter(episode.actions.tolist())
        frames = _step_env(env_view, episode.seed, lambda _: next(actions), len(episode))
    else:
        raise DemonstrationError(
            f"{name} has neither an input log nor a seed, so it cannot be shown"
        )
    score = 0.0
    for frame in frames:
        score += frame.reward
        if frame.is_last and not np.isclose(score, episode.score, rtol=1e-4, atol=1e-4):
            raise DemonstrationError(
                f"{name} replays to {score:g}, not to its {episode.score:g}: lookfurther demos"
                " verify shows where it differs"
            )
        yield frame


def _replay_input_log(input_log: InputLog, env_view: EnvView) -> Iterator[Frame]:
    env_config = env_view.env_config
    emulator = make_emulator(
        input_log, env_view.spec.env, env_config.action_repeat, env_config.sticky_prob
    )
    for step in play_steps(input_log, emulator, action_repeat=1):
        yield Frame(step.reward, emulator.rgb_screen, step.is_last, emulator.lives)


def _play_atari(policy: Policy, env_view: EnvView, seed: int) -> Iterator[Frame]:
    """Play from power-on, after up to `noop_max` frames without an action."""
    config, repeat = env_view.env_config, env_view.env_config.action_repeat
    clock = make_clock_display(config)
    emulator = Emulator(env_view.spec.env, repeat, config.sticky_prob, seed, clock=clock)
    actions = range(env_view.spec.actions) if config.full_actions else emulator.minimal_actions
    noop_steps = int(np.random.default_rng(seed).integers(config.noop_max // repeat + 1))
    max_frames = config.max_episode_length
    if config.episode_length_unit == "steps":
        max_frames *= repeat
    select_action, action = _action_selector(policy, env_view.spec), 0
    yield Frame(0.0, emulator.rgb_screen, False, emulator.lives)
    is_last = False
    while not is_last:
        if emulator.frame_number % repeat == 0:
            selected = actions[select_action(emulator.current_plane())]
            action = selected if emulator.frame_number >= noop_steps * repeat else 0
        reward = emulator.step_frame(action)
        is_last = emulator.is_over or emulator.frame_number >= max_frames
        yield Frame(reward, emulator.rgb_screen, is_last, emulator.lives)


def _action_selector(policy: Policy, spec: Spec) -> Callable[[np.ndarray], int]:
    """A function from each new plane to an action; it keeps the frame stack of the policy."""
    stack = np.zeros(spec.observation_shape, spec.dtype)
    channels = spec.plane[0]

    def select_action(plane: np.ndarray) -> int:
        stack[:-channels] = stack[channels:].copy()
        stack[-channels:] = plane
        return int(policy(stack[None])[0])

    return select_action


def _step_env(
    env_view: EnvView,
    env_seed: int,
    select_action: Callable[[np.ndarray], int],
    length: int = sys.maxsize,
) -> Iterator[Frame]:
    """An episode of a Gymnasium environment, or the first `length` steps of it."""
    is_last = False
    with closing(make_lane(env_view.env, env_view.env_config, render=True)) as lane:
        render = partial(lane.render_rgb, env_view.env)
        for step in play_lane(lane, env_seed, select_action, length):
            is_last = step.is_last
            yield Frame(step.reward, render, is_last)
    if not is_last:
        raise EnvironmentFault(f"{env_view.env} failed in a step, so it cannot be shown")


class Playback:
    """An episode in progress: its returns so far and its current picture."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._frame = next(frames)
        self._previous_picture: np.ndarray | None = None
        self._returns = array("d", [0.0])

    @property
    def frame_count(self) -> int:
        return len(self._returns) - 1

    @property
    def returns(self) -> np.ndarray:
        """The cumulative return after each frame so far, [frame_count + 1]."""
        return np.array(self._returns)

    @property
    def is_over(self) -> bool:
        return self._frame.is_last

    @property
    def lives(self) -> int | None:
        return self._frame.lives

    def picture_at(self, frame: int) -> np.ndarray:
        """Advance to a frame, or to the end of the episode, and return the picture.

        In an Atari game it is the maximum of two frames, because sprites flicker.
        """
        while self.frame_count < frame and not self.is_over:
            if self.lives is not None:
                self._previous_picture = self._frame.render()
            self._frame = next(self._frames)
            self._returns.append(self._returns[-1] + self._frame.reward)
        picture = self._frame.render()
        if self._previous_picture is None:
            return picture
        return np.maximum(self._previous_picture, picture)


def cumulative_returns(frames: Iterator[Frame]) -> np.ndarray:
    """Play a whole episode without rendering it; its cumulative returns [frames + 1]."""
    return np.cumsum([frame.reward for frame in frames])


def find_overtaking(agent: np.ndarray, expert: np.ndarray) -> int | None:
    """The first frame from which the agent is ahead of the expert and never falls behind again.

    An episode that has ended keeps its return.
    """
    frames = np.arange(max(len(agent), len(expert)))
    lead = agent[np.minimum(frames, len(agent) - 1)] - expert[np.minimum(frames, len(expert) - 1)]
    behind = np.flatnonzero(lead < 0)
    since = int(behind[-1]) + 1 if len(behind) else 0
    ahead = np.flatnonzero(lead[since:] > 0)
    return since + int(ahead[0]) if len(ahead) else None
