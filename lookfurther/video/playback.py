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

from lookfurther.config import Config, Environment
from lookfurther.demos import playback
from lookfurther.demos.episode import Episode
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.sync import Lane
from lookfurther.errors import DemonstrationError, EnvironmentFault
from lookfurther.rollout import Policy
from lookfurther.types import Spec

FRAMES, STEPS = 60.0, 8.0  # a second: of an Atari game, of what does not say how fast it is


class Scene(NamedTuple):
    """The environment of a play."""

    env: str  # as the configuration names it
    spec: Spec
    environment: Environment
    rate: float  # frames a second at its own speed

    @classmethod
    def of(cls, config: Config, spec: Spec) -> Scene:
        """Where an agent of this configuration plays."""
        scene = cls(config.env, spec, config.environment, FRAMES)
        if not scene.atari:
            with closing(Blueprint(find(config.env), config.environment).build()) as env:
                rate = env.metadata.get("render_fps") or STEPS
            return scene._replace(rate=float(rate))
        return scene

    @property
    def atari(self) -> bool:
        return self.spec.env.startswith("ALE/")


class Shot(NamedTuple):
    """One frame; the first of a play is what the reset shows."""

    reward: float
    picture: Callable[[], np.ndarray]  # [height, width, 3] uint8, until the next frame
    over: bool  # no frame follows
    lives: int | None = None  # of an Atari game


def act(policy: Policy, scene: Scene, seed: int, start: int) -> Iterator[Shot]:
    """An episode of a policy; `seed` decides no-op starts, `start` all else that is random."""
    if scene.atari:
        return _act_atari(policy, scene, seed)
    return _stepped(scene, start, _choices(policy, scene.spec))


def repeat(episode: Episode, scene: Scene, name: str) -> Iterator[Shot]:
    """A demonstration again, from its tape or its seed; other rewards than recorded are refused."""
    if scene.atari and episode.tape is not None:
        shots = _taped(episode.tape, scene)
    elif episode.seed is not None and not scene.atari:
        actions = iter(episode.actions.tolist())
        shots = _stepped(scene, episode.seed, lambda _: next(actions), len(episode))
    else:
        raise DemonstrationError(f"{name} has neither a tape nor a seed, so it cannot be shown")
    score = 0.0
    for shot in shots:
        score += shot.reward
        if shot.over and not np.isclose(score, episode.score, rtol=1e-4, atol=1e-4):
            raise DemonstrationError(
                f"{name} replays to {score:g}, not to its {episode.score:g}: lookfurther demos"
                " verify says where it differs"
            )
        yield shot


def _taped(tape: playback.Tape, scene: Scene) -> Iterator[Shot]:
    how = scene.environment
    emulator = playback.emulator_of(tape, scene.spec.env, how.repeat, how.sticky)
    yield Shot(0.0, emulator.screen, False, emulator.lives)
    for reward in playback.play(tape, emulator):
        over = emulator.over or emulator.frames == len(tape.frames)
        yield Shot(reward, emulator.screen, over, emulator.lives)


def _act_atari(policy: Policy, scene: Scene, seed: int) -> Iterator[Shot]:
    """From power-on, after up to `noops` frames without an action, to the cap."""
    how = scene.environment
    emulator = Emulator(scene.spec.env, how.repeat, how.sticky, seed)
    actions = range(scene.spec.actions) if how.full_actions else emulator.actions
    idle = int(np.random.default_rng(seed).integers(how.noops // how.repeat + 1)) * how.repeat
    cap = how.cap * (how.repeat if how.cap_unit == "steps" else 1)
    choose, action = _choices(policy, scene.spec), 0
    yield Shot(0.0, emulator.screen, False, emulator.lives)
    over = False
    while not over:
        if emulator.frames % how.repeat == 0:
            chosen = actions[choose(emulator.plane())]
            action = chosen if emulator.frames >= idle else 0
        reward = emulator.frame(action)
        over = emulator.over or emulator.frames >= cap
        yield Shot(reward, emulator.screen, over, emulator.lives)


def _choices(policy: Policy, spec: Spec) -> Callable[[np.ndarray], int]:
    """From each new plane of an episode to an action of the policy, which sees a stack of them."""
    stack = np.zeros(spec.observation, spec.dtype)
    channels = spec.plane[0]

    def choose(plane: np.ndarray) -> int:
        stack[:-channels] = stack[channels:].copy()
        stack[-channels:] = plane
        return int(policy(stack[None])[0])

    return choose


def _stepped(
    scene: Scene, start: int, choose: Callable[[np.ndarray], int], length: int = sys.maxsize
) -> Iterator[Shot]:
    """An episode of a Gymnasium environment, or the first `length` steps of it."""
    source = copy.deepcopy(find(scene.env))
    source.kwargs["render_mode"] = "rgb_array"
    lane = Lane(Blueprint(source, scene.environment), 0, 0)
    with closing(lane):
        plane, *_ = lane.begin(seed=start)
        yield Shot(0.0, lambda: lane.picture(scene.env), False)
        over = False
        while not over:
            plane, reward, _, _, first, _ = lane.step(choose(plane))
            if first:
                raise EnvironmentFault(f"{scene.env} failed in a step, so it cannot be shown")
            over = lane.over or len(lane.actions) == length
            yield Shot(reward, lambda: lane.picture(scene.env), over)


class Reel:
    """A play as it unrolls: its return after every frame so far, and its picture now."""

    def __init__(self, shots: Iterator[Shot]) -> None:
        self._shots = shots
        self._shot = next(shots)
        self._before: np.ndarray | None = None  # the picture a frame ago
        self._returns = array("d", [0.0])

    @property
    def frames(self) -> int:
        return len(self._returns) - 1

    @property
    def returns(self) -> np.ndarray:
        """[frames + 1]: the return so far."""
        return np.array(self._returns)

    @property
    def over(self) -> bool:
        return self._shot.over

    @property
    def lives(self) -> int | None:
        return self._shot.lives

    def show(self, frame: int) -> np.ndarray:
        """The picture at a frame, or the last one there is.

        In an Atari game it is the brighter of two frames: sprites flicker.
        """
        while self.frames < frame and not self.over:
            if self.lives is not None:
                self._before = self._shot.picture()
            self._shot = next(self._shots)
            self._returns.append(self._returns[-1] + self._shot.reward)
        now = self._shot.picture()
        return now if self._before is None else np.maximum(self._before, now)


def rehearse(shots: Iterator[Shot]) -> np.ndarray:
    """The returns [frames + 1] of a whole play, without its pictures."""
    return np.cumsum([shot.reward for shot in shots])


def overtaking(agent: np.ndarray, expert: np.ndarray) -> int | None:
    """The frame at which the agent goes ahead of the expert, never to fall behind again.

    A play that has ended keeps its return.
    """
    frames = np.arange(max(len(agent), len(expert)))
    lead = agent[np.minimum(frames, len(agent) - 1)] - expert[np.minimum(frames, len(expert) - 1)]
    behind = np.flatnonzero(lead < 0)
    since = int(behind[-1]) + 1 if len(behind) else 0
    ahead = np.flatnonzero(lead[since:] > 0)
    return since + int(ahead[0]) if len(ahead) else None
