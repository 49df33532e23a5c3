"""Collect demonstrations from a policy: a scripted expert, an agent or any function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import make_lane
from lookfurther.envs import get_spec
from lookfurther.envs.clock import with_clock
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

# Called with the environment (an Emulator for Atari) after each reset. It returns a function that
# is called for each action.
ScriptedExpert = Callable[[Any], Callable[[], int]]

ActFunction = Callable[[np.ndarray], Any]  # from an observation [*spec.observation] to an action
StepResult = tuple[np.ndarray, float, bool, bool]  # plane, reward, terminal, truncated


@dataclass(frozen=True)
class ObservationPolicy:
    """An expert that acts on observations as an agent does: ObservationPolicy(agent.act)."""

    act: ActFunction


def babyai_bot(env: gymnasium.Env) -> Callable[[], int]:
    """The scripted expert of MiniGrid for BabyAI levels."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    bot = BabyAIBot(env.unwrapped)
    action = None

    def act() -> int:
        nonlocal action
        action = bot.replan(action)
        return int(action)  # type: ignore[arg-type]

    return act


def collect_episodes(
    env: str,
    env_config: EnvConfig,
    expert: ScriptedExpert | ObservationPolicy,
    seeds: Iterable[int],
) -> tuple[list[Episode], Spec]:
    """One episode of the expert per seed, with the observations of training."""
    env_spec = find_env_spec(env)
    if is_atari(env_spec.id):
        spec = get_spec(env, env_config)
        if not env_config.full_actions:
            raise DemonstrationError(
                "demonstrations of Atari games have all 18 actions: leave"
                " environment.full_actions on"
            )
        return [_collect_atari(spec, env_config, expert, seed) for seed in seeds], spec
    with closing(make_lane(env, env_config)) as lane:
        lane.ensure_env()
        assert lane.spec is not None
        return [_collect_gymnasium(lane, lane.spec, expert, seed) for seed in seeds], lane.spec


def _collect_gymnasium(
    lane: Lane, spec: Spec, expert: ScriptedExpert | ObservationPolicy, seed: int
) -> Episode:
    plane, *_ = lane.begin_episode(seed=seed)

    def step(action: int) -> StepResult:
        *result, first, _ = lane.step(action)
        if first:
            raise DemonstrationError(
                f"the environment failed at step {len(lane.actions)} of a demonstration"
            )
        return tuple(result)  # type: ignore[return-value]

    return Episode(
        *_run_episode(plane, step, _make_act_function(expert, lane.ensure_env()), spec), seed
    )


def _collect_atari(
    spec: Spec, env_config: EnvConfig, expert: ScriptedExpert | ObservationPolicy, seed: int
) -> Episode:
    """An episode that begins with a random number of no-op steps.

    These are part of the input log, because it begins at power-on.
    """
    repeat = env_config.action_repeat
    emulator = Emulator(spec.env, repeat, env_config.sticky_prob, seed)
    legal = emulator.legal_actions
    noop_steps = int(np.random.default_rng(seed).integers(env_config.noop_max // repeat + 1))
    max_frames = env_config.max_episode_length * (
        repeat if env_config.episode_length_unit == "steps" else 1
    )
    act = _make_act_function(expert, emulator)

    def act_after_noops(observation: np.ndarray) -> Any:
        frames = emulator.frame_number
        if frames // repeat < noop_steps:
            return 0
        return act(with_clock(observation, frames, env_config))

    def step(action: int) -> StepResult:
        plane, reward, is_over = emulator.step(legal[action])
        return plane, reward, is_over, not is_over and emulator.frame_number >= max_frames

    planes, actions, rewards, terminal = _run_episode(
        emulator.current_plane(), step, act_after_noops, spec
    )
    frames = np.repeat(np.array(legal, np.uint8)[actions], repeat)[: emulator.frame_number]
    return Episode(planes, actions, rewards, terminal, seed, InputLog(frames, seed=seed))


def _make_act_function(expert: ScriptedExpert | ObservationPolicy, env: Any) -> ActFunction:
    """The function that selects the actions of one episode."""
    if isinstance(expert, ObservationPolicy):
        return expert.act
    next_action = expert(env)
    return lambda _: next_action()


def _run_episode(
    plane: np.ndarray, step: Callable[[int], StepResult], act: ActFunction, spec: Spec
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Play one episode from its first plane on; its planes, actions, rewards and terminal."""
    stack = np.zeros(spec.observation_shape, spec.dtype)
    stack[-spec.plane[0] :] = plane
    planes, actions, rewards = [stack[-spec.plane[0] :].copy()], [], []
    terminal = truncated = False
    while not (terminal or truncated):
        action = int(act(stack))
        plane, reward, terminal, truncated = step(action)
        stack = np.concatenate([stack[spec.plane[0] :], np.broadcast_to(plane, spec.plane)])
        planes.append(stack[-spec.plane[0] :].copy())
        actions.append(action)
        rewards.append(reward)
    return np.stack(planes), np.array(actions, np.int64), np.array(rewards, np.float32), terminal
