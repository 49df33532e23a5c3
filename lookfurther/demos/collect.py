"""Demonstrations from a policy: a scripted expert, an agent, any function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.envs import get_spec
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

# Called with the environment (an Emulator for Atari) after each reset; what it gives is called
# for each action.
ScriptedExpert = Callable[[Any], Callable[[], int]]

ActFunction = Callable[[np.ndarray], Any]  # from an observation [*spec.observation] to an action
StepResult = tuple[np.ndarray, float, bool, bool]  # plane, reward, terminal, truncated


@dataclass(frozen=True)
class ObservationPolicy:
    """An expert that sees what an agent sees, such as Policy(agent.act)."""

    act: ActFunction


def babyai_bot(env: gymnasium.Env) -> Callable[[], int]:
    """MiniGrid's own scripted expert for BabyAI levels."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    bot = BabyAIBot(env.unwrapped)
    taken = None

    def act() -> int:
        nonlocal taken
        taken = bot.replan(taken)
        return int(taken)  # type: ignore[arg-type]

    return act


def collect_episodes(
    env: str,
    env_config: EnvConfig,
    expert: ScriptedExpert | ObservationPolicy,
    seeds: Iterable[int],
) -> tuple[list[Episode], Spec]:
    """An episode of the expert from each seed, seen as training will see it."""
    source = find_env_spec(env)
    if is_atari(source.id):
        spec = get_spec(env, env_config)
        if not env_config.full_actions:
            raise DemonstrationError(
                "demonstrations of Atari games have all 18 actions: leave"
                " environment.full_actions on"
            )
        return [_collect_atari(spec, env_config, expert, seed) for seed in seeds], spec
    lane = Lane(EnvFactory(source, env_config), 0, 0)
    try:
        lane.ensure_env()
        assert lane.spec is not None
        return [_collect_gymnasium(lane, lane.spec, expert, seed) for seed in seeds], lane.spec
    finally:
        lane.close()


def _collect_gymnasium(
    lane: Lane, spec: Spec, expert: ScriptedExpert | ObservationPolicy, seed: int
) -> Episode:
    plane, *_ = lane.begin_episode(seed=seed)

    def step(action: int) -> StepResult:
        *answer, first, _ = lane.step(action)
        if first:
            raise DemonstrationError(
                f"the environment failed at step {len(lane.actions)} of a demonstration"
            )
        return tuple(answer)  # type: ignore[return-value]

    return Episode(
        *_run_episode(plane, step, _make_act_function(expert, lane.ensure_env()), spec), seed
    )


def _collect_atari(
    spec: Spec, env_config: EnvConfig, expert: ScriptedExpert | ObservationPolicy, seed: int
) -> Episode:
    """An episode that opens with a random number of no-op steps: a tape begins at power-on."""
    repeat = env_config.action_repeat
    emulator = Emulator(spec.env, repeat, env_config.sticky_prob, seed)
    legal = emulator.legal_actions
    idle = int(np.random.default_rng(seed).integers(env_config.noop_max // repeat + 1))
    cap = env_config.max_episode_length * (
        repeat if env_config.episode_length_unit == "steps" else 1
    )
    act = _make_act_function(expert, emulator)

    def after_idling(observation: np.ndarray) -> Any:
        return act(observation) if emulator.frame_number >= idle * repeat else 0

    def step(action: int) -> StepResult:
        plane, reward, over = emulator.step(legal[action])
        return plane, reward, over, not over and emulator.frame_number >= cap

    planes, actions, rewards, terminal = _run_episode(
        emulator.current_plane(), step, after_idling, spec
    )
    frames = np.repeat(np.array(legal, np.uint8)[actions], repeat)[: emulator.frame_number]
    return Episode(planes, actions, rewards, terminal, seed, InputLog(frames, seed=seed))


def _make_act_function(expert: ScriptedExpert | ObservationPolicy, env: Any) -> ActFunction:
    """What chooses the actions of one episode."""
    if isinstance(expert, ObservationPolicy):
        return expert.act
    blind = expert(env)
    return lambda _: blind()


def _run_episode(
    plane: np.ndarray, step: Callable[[int], StepResult], act: ActFunction, spec: Spec
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """One episode from its first plane on: planes, actions, rewards, terminal."""
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
