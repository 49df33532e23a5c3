"""One environment for rollouts: at the start of an episode, or at a step of a demonstration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

import numpy as np

from lookfurther.agent import Agent
from lookfurther.demos import playback
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import PlaybackStep
from lookfurther.envs.atari import NOOP_MAX
from lookfurther.envs.clock import make_clock_display
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.human_starts import check_restorable
from lookfurther.envs.lane import Lane
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError, EnvironmentFault


class RolloutEnv(Protocol):
    """An episode in progress."""

    @property
    def is_over(self) -> bool: ...

    @property
    def lives(self) -> int:
        """The lives left; 0 if the environment does not count them."""
        ...

    def step(self, action: int) -> tuple[np.ndarray, float]:
        """The next plane, or an array that broadcasts to it, and the reward."""
        ...

    def picture(self) -> np.ndarray | None:
        """[height, width, 3] uint8; None if the environment cannot be drawn."""
        ...


class EnvStart(NamedTuple):
    """An environment at a step of a demonstration."""

    step: int
    env: RolloutEnv
    picture: np.ndarray | None


class AtariRolloutEnv:
    """One game, with the actions of an agent."""

    def __init__(self, emulator: Emulator, full_actions: bool) -> None:
        self.emulator = emulator
        self.actions = emulator.legal_actions if full_actions else emulator.minimal_actions

    @property
    def is_over(self) -> bool:
        return self.emulator.is_over

    @property
    def lives(self) -> int:
        return self.emulator.lives

    def step(self, action: int) -> tuple[np.ndarray, float]:
        plane, reward, _ = self.emulator.step(self.actions[action])
        return plane, reward

    def picture(self) -> np.ndarray:
        return self.emulator.rgb_screen()


class LaneRolloutEnv:
    """One Gymnasium environment after its reset."""

    lives = 0

    def __init__(self, lane: Lane, name: str, can_draw: bool) -> None:
        self.lane, self.name, self.can_draw = lane, name, can_draw

    @property
    def is_over(self) -> bool:
        return self.lane.is_over

    def step(self, action: int) -> tuple[np.ndarray, float]:
        plane, reward, _, _, is_first, _ = self.lane.step(action)
        if is_first:
            raise EnvironmentFault(f"{self.name} failed in a step: its rollout cannot continue")
        return plane, float(np.float32(reward))  # as in a demonstration

    def picture(self) -> np.ndarray | None:
        return self.lane.render_rgb(self.name) if self.can_draw else None


class EnvBuilder:
    """Builds the environments of an agent's rollouts."""

    def __init__(self, agent: Agent) -> None:
        self.name, self.env_config = agent.config.env, agent.config.environment
        self.is_atari = is_atari(agent.spec.env)
        self.can_restore = self.is_atari and self._is_restorable()
        self.drawing_fault = "" if self.is_atari else self._find_drawing_fault()

    def begin_episode(self, index: int, seed: int) -> tuple[RolloutEnv, np.ndarray]:
        """The start of episode `index` of an evaluation with this seed, and its first plane.

        Atari games begin with 0 to 30 no-op frames. Their number is drawn here, because the
        evaluation's environment does not return it.
        """
        if not self.is_atari:
            env = self._make_lane_env(index, seed)
            return env, env.lane.begin_episode()[0]
        random = np.random.default_rng((seed, index))
        noops, emulator_seed = (int(random.integers(n)) for n in (NOOP_MAX + 1, 2**31))
        env = self.begin_game(noops, emulator_seed)
        return env, env.emulator.current_plane()

    def begin_game(self, noops: int, seed: int) -> AtariRolloutEnv:
        """A game after this number of no-op frames, where its first step begins."""
        log = InputLog(np.zeros(noops, np.uint8), seed=seed, phase=noops)
        emulator = self._make_emulator(log)
        for _ in playback.play_log(log, emulator):
            pass
        return AtariRolloutEnv(emulator, self.env_config.full_actions)

    def iter_starts(self, episode: Episode, steps: Sequence[int]) -> Iterator[EnvStart]:
        """Environments at these steps of a demonstration, in ascending order."""
        log = episode.input_log if self.is_atari else None
        if log is None and (self.is_atari or episode.seed is None):
            raise DemonstrationError("the demonstration has neither an input log nor a seed")
        if log is not None and self.can_restore:
            yield from self._restored_starts(episode, log, steps)
            return
        for step in steps:
            env, played = self._begin_replay(episode)
            _play_until(played, episode, step)
            yield EnvStart(step, env, env.picture())

    def _restored_starts(
        self, episode: Episode, log: InputLog, steps: Sequence[int]
    ) -> Iterator[EnvStart]:
        """Replay the demonstration once; each environment restores a state of it."""
        emulator = self._make_emulator(log)
        played = enumerate(playback.play_steps(log, emulator))
        for step in steps:
            _play_until(played, episode, step)
            restored = self._make_emulator(log)
            restored.restore_state(emulator.clone_state())
            env = AtariRolloutEnv(restored, self.env_config.full_actions)
            # A restored emulator has drawn nothing yet.
            yield EnvStart(step, env, emulator.rgb_screen())

    def _begin_replay(
        self, episode: Episode
    ) -> tuple[RolloutEnv, Iterator[tuple[int, PlaybackStep]]]:
        """An environment, and the demonstration that is played on it step by step."""
        if episode.input_log is None:
            env = self._make_lane_env()
            return env, enumerate(playback.play_from_seed(episode, env.lane))
        emulator = self._make_emulator(episode.input_log)
        played = playback.play_steps(episode.input_log, emulator)
        return AtariRolloutEnv(emulator, self.env_config.full_actions), enumerate(played)

    def _make_lane_env(self, index: int = 0, seed: int = 0) -> LaneRolloutEnv:
        can_draw = not self.drawing_fault
        lane = playback.make_lane(self.name, self.env_config, can_draw, index, seed)
        return LaneRolloutEnv(lane, self.name, can_draw)

    def _make_emulator(self, log: InputLog) -> Emulator:
        config = self.env_config
        clock = make_clock_display(config)
        repeat, sticky_prob = config.action_repeat, config.sticky_prob
        return playback.make_emulator(log, self.name, repeat, sticky_prob, clock)

    def _is_restorable(self) -> bool:
        try:
            check_restorable(self.name, self.env_config.action_repeat)
        except EnvironmentFault:
            return False
        return True

    def _find_drawing_fault(self) -> str:
        """Why the environment cannot be drawn, such as a missing package; "" if it can."""
        try:
            with closing(playback.make_lane(self.name, self.env_config, render=True)) as lane:
                lane.begin_episode()
                lane.render_rgb(self.name)
        except EnvironmentFault as error:
            return str(error)
        return ""


def _play_until(
    played: Iterator[tuple[int, PlaybackStep]], episode: Episode, last_step: int
) -> None:
    """Continue a replay to a step, where it must show what was recorded."""
    for step, result in played:
        if step == last_step:
            recorded = episode.planes[step]
            if any(
                np.array_equal(np.broadcast_to(p, recorded.shape), recorded) for p in result.planes
            ):
                return
            break
    raise DemonstrationError(
        f"its replay shows something else at step {last_step}: lookfurther demos verify shows where"
        " it differs"
    )
