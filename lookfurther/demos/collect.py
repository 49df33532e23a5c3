"""Demonstrations from a policy: a scripted expert, an agent, any function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from lookfurther.config import Environment
from lookfurther.demos.episode import Episode, Tape
from lookfurther.envs import describe
from lookfurther.envs.emulator import Emulator
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.sync import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.types import Spec

# Called with the environment (an Emulator for Atari) after each reset; what it gives is called
# for each action.
Expert = Callable[[Any], Callable[[], int]]

Act = Callable[[np.ndarray], Any]  # from an observation [*spec.observation] to an action
Answer = tuple[np.ndarray, float, bool, bool]  # plane, reward, terminal, truncated


@dataclass(frozen=True)
class Policy:
    """An expert that sees what an agent sees, such as Policy(agent.act)."""

    act: Act


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


def collect(
    env: str, environment: Environment, expert: Expert | Policy, seeds: Iterable[int]
) -> tuple[list[Episode], Spec]:
    """An episode of the expert from each seed, seen as training will see it."""
    source = find(env)
    if source.namespace == "ALE":
        spec = describe(env, environment)
        if not environment.full_actions:
            raise DemonstrationError(
                "demonstrations of Atari games have all 18 actions: leave"
                " environment.full_actions on"
            )
        return [_atari(spec, environment, expert, seed) for seed in seeds], spec
    lane = Lane(Blueprint(source, environment), 0, 0)
    try:
        lane.open()
        assert lane.spec is not None
        return [_gymnasium(lane, lane.spec, expert, seed) for seed in seeds], lane.spec
    finally:
        lane.close()


def _gymnasium(lane: Lane, spec: Spec, expert: Expert | Policy, seed: int) -> Episode:
    plane, *_ = lane.begin(seed=seed)

    def step(action: int) -> Answer:
        *answer, first, _ = lane.step(action)
        if first:
            raise DemonstrationError(
                f"the environment failed at step {len(lane.actions)} of a demonstration"
            )
        return tuple(answer)  # type: ignore[return-value]

    return Episode(*_film(plane, step, _act(expert, lane.open()), spec), seed)


def _atari(spec: Spec, environment: Environment, expert: Expert | Policy, seed: int) -> Episode:
    """An episode that opens with a random number of no-op steps: a tape begins at power-on."""
    repeat = environment.repeat
    emulator = Emulator(spec.env, repeat, environment.sticky, seed)
    legal = emulator.legal
    idle = int(np.random.default_rng(seed).integers(environment.noops // repeat + 1))
    cap = environment.cap * (repeat if environment.cap_unit == "steps" else 1)
    act = _act(expert, emulator)

    def after_idling(observation: np.ndarray) -> Any:
        return act(observation) if emulator.frames >= idle * repeat else 0

    def step(action: int) -> Answer:
        plane, reward, over = emulator.step(legal[action])
        return plane, reward, over, not over and emulator.frames >= cap

    planes, actions, rewards, terminal = _film(emulator.plane(), step, after_idling, spec)
    frames = np.repeat(np.array(legal, np.uint8)[actions], repeat)[: emulator.frames]
    return Episode(planes, actions, rewards, terminal, seed, Tape(frames, seed=seed))


def _act(expert: Expert | Policy, env: Any) -> Act:
    """What chooses the actions of one episode."""
    if isinstance(expert, Policy):
        return expert.act
    blind = expert(env)
    return lambda _: blind()


def _film(
    plane: np.ndarray, step: Callable[[int], Answer], act: Act, spec: Spec
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """One episode from its first plane on: planes, actions, rewards, terminal."""
    stack = np.zeros(spec.observation, spec.dtype)
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
