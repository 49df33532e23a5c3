"""Evaluate an agent over whole episodes from no-op starts or human starts (App. C)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import torch

from lookfurther.agent import Agent
from lookfurther.config import EnvConfig
from lookfurther.demos import playback
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import InputLog, best_episode_index
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.atari import NOOP_MAX, max_episode_frames
from lookfurther.envs.emulator import DEFAULT_VARIANT, Emulator
from lookfurther.envs.human_starts import (
    HumanStart,
    check_restorable,
    make_human_start_envs,
)
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.evaluation.results import (
    DEFAULT_EPSILON,
    Evaluation,
    EvaluationConditions,
    ReturnCurve,
)
from lookfurther.networks.dueling import DuelingNetwork
from lookfurther.rollout import (
    EpisodeResult,
    GraphedPolicy,
    Policy,
    epsilon_greedy_policy,
    play_episodes,
    uniform_policy,
)
from lookfurther.system.processes import count_cores

DEFAULT_EPISODES = 200
CPU_LANES = 20
MAX_GPU_LANES = 256
DEFAULT_SEED = 1_000_000  # far from the seeds of training
MAX_EPISODE_FRAMES = 108_000  # half an hour
HUMAN_START_COUNT = 100  # states drawn from demonstrations

EpisodeCallback = Callable[[EpisodeResult], None]


def evaluate(
    agent: Agent,
    episodes: int = DEFAULT_EPISODES,
    *,
    epsilon: float = DEFAULT_EPSILON,
    lanes: int | None = None,
    seed: int = DEFAULT_SEED,
    env: Callable[[], gymnasium.Env] | None = None,
) -> list[EpisodeResult]:
    """Play `episodes` from no-op starts at a small epsilon; the same seed gives the same scores."""
    if not isinstance(agent, Agent):
        raise ConfigError(f"agent must be an Agent, not {type(agent).__name__}: Agent.load(run)")
    if not isinstance(episodes, int) or episodes < 1:
        raise ConfigError(f"episodes must be a whole number of 1 or more, not {episodes!r}")
    env_config = evaluation_env_config(agent.config.environment)
    lanes = count_lanes(episodes, lanes, agent.device)
    with closing(make_noop_envs(env or agent.config.env, env_config, lanes, seed)) as envs:
        return play_episodes(make_policy(agent, lanes, epsilon, seed), envs, episodes)


def run_evaluation(
    agent: Agent,
    conditions: EvaluationConditions,
    demos: Sequence[DemoSet] = (),
    *,
    episodes: int = DEFAULT_EPISODES,
    lanes: int | None = None,
    on_episode: EpisodeCallback = lambda _: None,
) -> Evaluation:
    """Play under `conditions`. `demos` provide human starts, or the expert's curve for no-ops."""
    env, seed = conditions.env, conditions.seed
    env_config = evaluation_env_config(agent.config.environment, conditions.sticky)
    lanes = count_lanes(episodes, lanes, agent.device)
    if conditions.starts == "human":
        starts = draw_human_starts(env, demos, env_config, seed)
        human_config = replace(env_config, processes=count_cores(), frame_stack=agent.spec.stack)
        envs: Envs = make_human_start_envs(env, starts, human_config, lanes, seed)
    else:
        envs = make_noop_envs(env, env_config, lanes, seed)
    with closing(envs):
        policy = make_policy(agent, lanes, conditions.epsilon, seed)
        results = play_episodes(policy, envs, episodes, on_episode)
    expert = demos if conditions.starts == "noop" else ()  # an expert plays from the beginning
    return _make_evaluation(conditions, results, env_config.action_repeat, expert)


def evaluate_random(
    env: str,
    env_config: EnvConfig,
    *,
    episodes: int = DEFAULT_EPISODES,
    lanes: int | None = None,
    seed: int = DEFAULT_SEED,
    on_episode: EpisodeCallback = lambda _: None,
) -> Evaluation:
    """Random play from no-op starts, to check environments against published scores."""
    conditions = EvaluationConditions(env, sticky=env_config.sticky_prob, epsilon=1.0, seed=seed)
    lanes = count_lanes(episodes, lanes, torch.device("cpu"))
    with closing(make_noop_envs(env, env_config, lanes, seed)) as envs:
        policy = uniform_policy(envs.spec.actions, seed)
        results = play_episodes(policy, envs, episodes, on_episode)
    return _make_evaluation(conditions, results, env_config.action_repeat, ())


def count_lanes(episodes: int, lanes: int | None, device: torch.device) -> int:
    """At most one lane per episode. By default a GPU gets just that, for large batches."""
    if lanes is None:
        lanes = MAX_GPU_LANES if device.type == "cuda" else CPU_LANES
    return min(lanes, episodes)


def make_policy(agent: Agent, lanes: int, epsilon: float, seed: int) -> Policy:
    """The agent's epsilon-greedy policy; on a GPU as a CUDA graph, except for user networks."""
    if agent.device.type == "cuda" and isinstance(agent.network, DuelingNetwork):
        return GraphedPolicy(agent.network, agent.spec, lanes, epsilon, seed)
    return epsilon_greedy_policy(agent.network, epsilon, seed)


def evaluation_env_config(env_config: EnvConfig, sticky: float | None = None) -> EnvConfig:
    """A run's settings changed for evaluation; `sticky` replaces its sticky actions if given."""
    return replace(
        env_config,
        processes=0,
        noop_max=NOOP_MAX,
        sticky_prob=env_config.sticky_prob if sticky is None else sticky,
        max_episode_length=MAX_EPISODE_FRAMES,
        episode_length_unit="frames",
    )


def make_noop_envs(
    env: str | Callable[[], gymnasium.Env], env_config: EnvConfig, lanes: int, seed: int
) -> Envs:
    """Lanes whose episodes begin with no-op starts."""
    return make_envs(env, env_config, lanes, seed, env_config.threads or count_cores())


def draw_human_starts(
    env: str,
    demos: Sequence[DemoSet],
    env_config: EnvConfig,
    seed: int,
    count: int = HUMAN_START_COUNT,
) -> list[HumanStart]:
    """States drawn uniformly from all steps of the demonstrations, by replaying their input logs.

    They are at the start of a step and before the maximum episode length. Recoveries and perturbed
    games are left out: some of their steps are an agent's or random.
    """
    logs = [
        (log, demo_set.description.origin.sticky)
        for demo_set in demos
        for log in _input_logs(env, demo_set)
    ]
    if not logs:
        raise DemonstrationError(f"human starts of {env} need demonstrations: give --demos SET")
    action_repeat, max_frames = env_config.action_repeat, max_episode_frames(env_config)
    check_restorable(env, action_repeat)
    step_starts = [
        _step_start_frames(playback.truncate_log(log, max_frames), action_repeat) for log, _ in logs
    ]
    offsets = np.cumsum([0, *map(len, step_starts)])
    total = int(offsets[-1])
    drawn = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
    frames_by_log: dict[int, list[int]] = defaultdict(list)
    for index in np.sort(drawn).tolist():
        log_index = int(np.searchsorted(offsets, index, side="right")) - 1
        frames_by_log[log_index].append(step_starts[log_index][index - int(offsets[log_index])])
    starts = []
    for log_index, frames in frames_by_log.items():
        log, sticky = logs[log_index]
        emulator = playback.make_emulator(log, env, action_repeat, sticky)
        starts += _collect_starts(log, emulator, frames)
    return starts


def _step_start_frames(log: InputLog, action_repeat: int) -> list[int]:
    """The frame numbers at which the complete steps of an input log begin."""
    complete_steps = (len(log.frame_actions) + -log.phase % action_repeat) // action_repeat
    return playback.step_ends(log, action_repeat)[:complete_steps].tolist()


def _input_logs(env: str, demo_set: DemoSet) -> list[InputLog]:
    """The input logs of a set, which must be of this game."""
    name, set_env = demo_set.name, demo_set.description.spec.env
    if set_env != env:
        raise DemonstrationError(f"{name} contains {set_env}, but the agent plays {env}")
    episodes = [episode for episode in demo_set.episodes if episode.input_log is not None]
    logs = [e.input_log for e in episodes if e.input_log is not None and e.is_fully_demonstrated]
    if any(log.variant != DEFAULT_VARIANT for log in logs):
        raise DemonstrationError(
            f"{name} was played in another mode or difficulty of the game than the agent plays"
        )
    if not episodes:
        raise DemonstrationError(
            f"{name} has no input logs to replay, so no human starts: record or import it again"
        )
    return logs


def _collect_starts(log: InputLog, emulator: Emulator, frames: Sequence[int]) -> list[HumanStart]:
    """Replay an input log and clone the state at the given frame numbers."""
    wanted = set(frames)
    starts = [HumanStart(emulator.clone_state(), 0)] if 0 in wanted else []
    for _ in playback.play_log(log, emulator):
        number = emulator.frame_number
        if number in wanted and not emulator.is_over:
            starts.append(HumanStart(emulator.clone_state(), int(log.frame_actions[number - 1])))
        if number >= max(wanted):
            break
    return starts


def _make_evaluation(
    conditions: EvaluationConditions,
    results: Sequence[EpisodeResult],
    action_repeat: int,
    demos: Sequence[DemoSet],
) -> Evaluation:
    """Scores and lengths of the episodes, and the return curves of the best."""
    action_repeat = action_repeat if is_atari(conditions.env) else 1
    best = max(results, key=lambda result: result.score)
    curves = {"agent": ReturnCurve.from_rewards(np.asarray(best.rewards), action_repeat)}
    if episodes := [episode for demo_set in demos for episode in demo_set.episodes]:
        expert = episodes[best_episode_index(episodes)]
        curves["expert"] = ReturnCurve.from_rewards(
            expert.rewards, action_repeat, expert.input_log.phase if expert.input_log else 0
        )
    scores = np.array([result.score for result in results])
    steps = np.array([result.steps for result in results], np.int64)
    return Evaluation(conditions, scores, steps, curves)
