"""Episodes at play, frame by frame: an agent's, or an expert's again. Outside Atari, a step is a
frame."""

from __future__ import annotations

import copy
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from lookfurther.config import Config, EnvConfig
from lookfurther.demos import playback
from lookfurther.demos.episode import Episode
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError, EnvironmentFault
from lookfurther.rollout import Policy
from lookfurther.types import Spec

ATARI_FPS, DEFAULT_FPS = (
    60.0,
    8.0,
)  # a second: of an Atari game, of what does not say how fast it is


class EnvView(NamedTuple):
    """The environment of a play."""

    env: str  # as the configuration names it
    spec: Spec
    env_config: EnvConfig
    frame_rate: float  # frames a second at its own speed

    @classmethod
    def from_config(cls, config: Config, spec: Spec) -> EnvView:
        """Where an agent of this configuration plays."""
        scene = cls(config.env, spec, config.environment, ATARI_FPS)
        if not scene.is_atari:
            with closing(
                EnvFactory(find_env_spec(config.env), config.environment).build_env()
            ) as env:
                rate = env.metadata.get("render_fps") or DEFAULT_FPS
            return scene._replace(frame_rate=float(rate))
        return scene

    @property
    def is_atari(self) -> bool:
        return is_atari(self.spec.env)


class Frame(NamedTuple):
    """One frame; the first of a play is what the reset shows."""

    reward: float
    render: Callable[[], np.ndarray]  # [height, width, 3] uint8, until the next frame
    is_last: bool  # no frame follows
    lives: int | None = None  # of an Atari game


def play_policy(policy: Policy, env_view: EnvView, seed: int, env_seed: int) -> Iterator[Frame]:
    """An episode of a policy; `seed` decides no-op starts, `start` all else that is random."""
    if env_view.is_atari:
        return _play_atari(policy, env_view, seed)
    return _step_env(env_view, env_seed, _action_selector(policy, env_view.spec))


def replay_demonstration(episode: Episode, env_view: EnvView, name: str) -> Iterator[Frame]:
    """A demonstration again, from its tape or its seed; other rewards than recorded are refused."""
    if env_view.is_atari and episode.input_log is not None:
        shots = _replay_input_log(episode.input_log, env_view)
    elif episode.seed is not None and not env_view.is_atari:
        actions = iter(episode.actions.tolist())
        shots = _step_env(env_view, episode.seed, lambda _: next(actions), len(episode))
    else:
        raise DemonstrationError(f"{name} has neither a tape nor a seed, so it cannot be shown")
    score = 0.0
    for shot in shots:
        score += shot.reward
        if shot.is_last and not np.isclose(score, episode.score, rtol=1e-4, atol=1e-4):
            raise DemonstrationError(
                f"{name} replays to {score:g}, not to its {episode.score:g}: lookfurther demos"
                " verify says where it differs"
            )
        yield shot


def _replay_input_log(input_log: playback.InputLog, env_view: EnvView) -> Iterator[Frame]:
    how = env_view.env_config
    emulator = playback.make_emulator(
        input_log, env_view.spec.env, how.action_repeat, how.sticky_prob
    )
    yield Frame(0.0, emulator.rgb_screen, False, emulator.lives)
    for reward in playback.play_log(input_log, emulator):
        over = emulator.is_over or emulator.frame_number == len(input_log.frame_actions)
        yield Frame(reward, emulator.rgb_screen, over, emulator.lives)


def _play_atari(policy: Policy, env_view: EnvView, seed: int) -> Iterator[Frame]:
    """From power-on, after up to `noops` frames without an action, to the cap."""
    how = env_view.env_config
    emulator = Emulator(env_view.spec.env, how.action_repeat, how.sticky_prob, seed)
    actions = range(env_view.spec.actions) if how.full_actions else emulator.minimal_actions
    idle = (
        int(np.random.default_rng(seed).integers(how.noop_max // how.action_repeat + 1))
        * how.action_repeat
    )
    cap = how.max_episode_length * (how.action_repeat if how.episode_length_unit == "steps" else 1)
    choose, action = _action_selector(policy, env_view.spec), 0
    yield Frame(0.0, emulator.rgb_screen, False, emulator.lives)
    over = False
    while not over:
        if emulator.frame_number % how.action_repeat == 0:
            chosen = actions[choose(emulator.current_plane())]
            action = chosen if emulator.frame_number >= idle else 0
        reward = emulator.step_frame(action)
        over = emulator.is_over or emulator.frame_number >= cap
        yield Frame(reward, emulator.rgb_screen, over, emulator.lives)


def _action_selector(policy: Policy, spec: Spec) -> Callable[[np.ndarray], int]:
    """From each new plane of an episode to an action of the policy, which sees a stack of them."""
    stack = np.zeros(spec.observation_shape, spec.dtype)
    channels = spec.plane[0]

    def choose(plane: np.ndarray) -> int:
        stack[:-channels] = stack[channels:].copy()
        stack[-channels:] = plane
        return int(policy(stack[None])[0])

    return choose


def _step_env(
    env_view: EnvView,
    env_seed: int,
    select_action: Callable[[np.ndarray], int],
    length: int = sys.maxsize,
) -> Iterator[Frame]:
    """An episode of a Gymnasium environment, or the first `length` steps of it."""
    source = copy.deepcopy(find_env_spec(env_view.env))
    source.kwargs["render_mode"] = "rgb_array"
    lane = Lane(EnvFactory(source, env_view.env_config), 0, 0)
    with closing(lane):
        plane, *_ = lane.begin_episode(seed=env_seed)
        yield Frame(0.0, lambda: lane.render_rgb(env_view.env), False)
        over = False
        while not over:
            plane, reward, _, _, first, _ = lane.step(select_action(plane))
            if first:
                raise EnvironmentFault(f"{env_view.env} failed in a step, so it cannot be shown")
            over = lane.is_over or len(lane.actions) == length
            yield Frame(reward, lambda: lane.render_rgb(env_view.env), over)


class Playback:
    """A play as it unrolls: its return after every frame so far, and its picture now."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._frame = next(frames)
        self._previous_picture: np.ndarray | None = None  # the picture a frame ago
        self._returns = array("d", [0.0])

    @property
    def frame_count(self) -> int:
        return len(self._returns) - 1

    @property
    def returns(self) -> np.ndarray:
        """[frames + 1]: the return so far."""
        return np.array(self._returns)

    @property
    def is_over(self) -> bool:
        return self._frame.is_last

    @property
    def lives(self) -> int | None:
        return self._frame.lives

    def picture_at(self, frame: int) -> np.ndarray:
        """The picture at a frame, or the last one there is.

        In an Atari game it is the brighter of two frames: sprites flicker.
        """
        while self.frame_count < frame and not self.is_over:
            if self.lives is not None:
                self._previous_picture = self._frame.render()
            self._frame = next(self._frames)
            self._returns.append(self._returns[-1] + self._frame.reward)
        now = self._frame.render()
        return now if self._previous_picture is None else np.maximum(self._previous_picture, now)


def cumulative_returns(frames: Iterator[Frame]) -> np.ndarray:
    """The returns [frames + 1] of a whole play, without its pictures."""
    return np.cumsum([shot.reward for shot in frames])


def find_overtaking(agent: np.ndarray, expert: np.ndarray) -> int | None:
    """The frame at which the agent goes ahead of the expert, never to fall behind again.

    A play that has ended keeps its return.
    """
    frames = np.arange(max(len(agent), len(expert)))
    lead = agent[np.minimum(frames, len(agent) - 1)] - expert[np.minimum(frames, len(expert) - 1)]
    behind = np.flatnonzero(lead < 0)
    since = int(behind[-1]) + 1 if len(behind) else 0
    ahead = np.flatnonzero(lead[since:] > 0)
    return since + int(ahead[0]) if len(ahead) else None
