"""How good an agent is, over whole episodes from no-op starts or human starts (Sec. C)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np

from lookfurther.agent import Agent
from lookfurther.config import EnvConfig
from lookfurther.demos import playback
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import InputLog, best_episode_index
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.atari import max_episode_frames
from lookfurther.envs.emulator import DEFAULT_VARIANT, Emulator
from lookfurther.envs.human_starts import (
    HumanStart,
    check_restorable,
    make_human_start_envs,
)
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.evaluation.results import (
    DEFAULT_EPSILON,
    Evaluation,
    EvaluationConditions,
    ReturnCurve,
)
from lookfurther.rollout import EpisodeResult, epsilon_greedy_policy, play_episodes, uniform_policy
from lookfurther.training import hardware

DEFAULT_EPISODES = 200
DEFAULT_LANES = 20
DEFAULT_SEED = 1_000_000  # far from those of training
MAX_EPISODE_FRAMES = 108_000  # frames: half an hour
NOOP_MAX = 30
HUMAN_START_COUNT = 100  # moments drawn from demonstrations

EpisodeCallback = Callable[[EpisodeResult], None]


def evaluate(
    agent: Agent,
    episodes: int = DEFAULT_EPISODES,
    *,
    epsilon: float = DEFAULT_EPSILON,
    lanes: int = DEFAULT_LANES,
    seed: int = DEFAULT_SEED,
    env: Callable[[], gymnasium.Env] | None = None,
) -> list[EpisodeResult]:
    """Play `episodes` from no-op starts at a small epsilon; the same seed gives the same scores."""
    settings = evaluation_env_config(agent.config.environment)
    envs = make_noop_envs(env or agent.config.env, settings, min(lanes, episodes), seed)
    with closing(envs):
        return play_episodes(epsilon_greedy_policy(agent.network, epsilon, seed), envs, episodes)


def run_evaluation(
    agent: Agent,
    conditions: EvaluationConditions,
    demos: Sequence[DemoSet] = (),
    *,
    episodes: int = DEFAULT_EPISODES,
    lanes: int = DEFAULT_LANES,
    on_episode: EpisodeCallback = lambda _: None,
) -> Evaluation:
    """Play under the conditions; `demos` give human starts, or the expert's curve to no-op ones."""
    settings, seed = (
        evaluation_env_config(agent.config.environment, conditions.sticky),
        conditions.seed,
    )
    lanes = min(lanes, episodes)
    if conditions.starts == "human":
        starts = draw_human_starts(conditions.env, demos, settings, seed)
        settings = replace(settings, processes=hardware.count_cores(), frame_stack=agent.spec.stack)
        envs: Envs = make_human_start_envs(conditions.env, starts, settings, lanes, seed)
    else:
        envs = make_noop_envs(conditions.env, settings, lanes, seed)
    with closing(envs):
        played = play_episodes(
            epsilon_greedy_policy(agent.network, conditions.epsilon, seed),
            envs,
            episodes,
            on_episode,
        )
    expert = demos if conditions.starts == "noop" else ()  # it has played from the beginning
    return _make_evaluation(conditions, played, settings.action_repeat, expert)


def evaluate_random(
    env: str,
    env_config: EnvConfig,
    *,
    episodes: int = DEFAULT_EPISODES,
    lanes: int = DEFAULT_LANES,
    seed: int = DEFAULT_SEED,
    on_episode: EpisodeCallback = lambda _: None,
) -> Evaluation:
    """Random play from no-op starts, to check environments against published scores."""
    conditions = EvaluationConditions(env, sticky=env_config.sticky_prob, epsilon=1.0, seed=seed)
    with closing(make_noop_envs(env, env_config, min(lanes, episodes), seed)) as envs:
        played = play_episodes(uniform_policy(envs.spec.actions, seed), envs, episodes, on_episode)
    return _make_evaluation(conditions, played, env_config.action_repeat, ())


def evaluation_env_config(env_config: EnvConfig, sticky: float | None = None) -> EnvConfig:
    """A run's settings as evaluation has them, with its own sticky actions unless told."""
    sticky = env_config.sticky_prob if sticky is None else sticky
    return replace(
        env_config,
        processes=0,
        noop_max=NOOP_MAX,
        sticky_prob=sticky,
        max_episode_length=MAX_EPISODE_FRAMES,
        episode_length_unit="frames",
    )


def make_noop_envs(
    env: str | Callable[[], gymnasium.Env], env_config: EnvConfig, lanes: int, seed: int
) -> Envs:
    """Lanes from no-op starts."""
    return make_envs(env, env_config, lanes, seed, env_config.threads or hardware.count_cores())


def draw_human_starts(
    env: str,
    demos: Sequence[DemoSet],
    env_config: EnvConfig,
    seed: int,
    count: int = HUMAN_START_COUNT,
) -> list[HumanStart]:
    """Moments drawn uniformly from all the time of the demonstrations, by replaying their tapes.

    They lie between steps, and before the cap of an episode.
    """
    held = [
        (tape, each.description.origin.sticky) for each in demos for tape in _input_logs(env, each)
    ]
    if not held:
        raise DemonstrationError(f"human starts of {env} need demonstrations: give --demos SET")
    repeat, cap = env_config.action_repeat, max_episode_frames(env_config)
    check_restorable(env, repeat)
    moments = [_step_start_frames(playback.truncate_log(tape, cap), repeat) for tape, _ in held]
    random, before = np.random.default_rng(seed), np.cumsum([0, *map(len, moments)])
    total = int(before[-1])
    drawn = random.choice(total, min(count, total), replace=False)
    wanted: dict[int, list[int]] = defaultdict(list)
    for place in np.sort(drawn).tolist():
        which = int(np.searchsorted(before, place, side="right")) - 1
        wanted[which].append(moments[which][place - int(before[which])])
    starts = []
    for which, frames in wanted.items():
        tape, sticky = held[which]
        starts += _collect_starts(tape, playback.make_emulator(tape, env, repeat, sticky), frames)
    return starts


def _step_start_frames(tape: InputLog, action_repeat: int) -> list[int]:
    """The frames after which the steps of a tape begin, but for a last one that is cut short."""
    whole = (len(tape.frame_actions) + -tape.phase % action_repeat) // action_repeat
    return playback.step_ends(tape, action_repeat)[:whole].tolist()


def _input_logs(env: str, held: DemoSet) -> list[InputLog]:
    """The tapes of a set, which must be of this game."""
    name, theirs = held.name, held.description.spec.env
    if theirs != env:
        raise DemonstrationError(f"{name} shows {theirs}, the agent plays {env}")
    found = [episode.input_log for episode in held.episodes if episode.input_log is not None]
    if any(tape.variant != DEFAULT_VARIANT for tape in found):
        raise DemonstrationError(
            f"{name} was played in another mode or difficulty of the game than the agent plays"
        )
    if not found:
        raise DemonstrationError(
            f"{name} has no tapes to replay, so no human starts: record or import it anew"
        )
    return found


def _collect_starts(tape: InputLog, emulator: Emulator, frames: Sequence[int]) -> list[HumanStart]:
    """The moments of a tape after so many frames each."""
    due = set(frames)
    starts = [HumanStart(emulator.clone_state(), 0)] if 0 in due else []
    for _ in playback.play_log(tape, emulator):
        if emulator.frame_number in due and not emulator.is_over:
            starts.append(
                HumanStart(
                    emulator.clone_state(), int(tape.frame_actions[emulator.frame_number - 1])
                )
            )
        if emulator.frame_number >= max(due):
            break
    return starts


def _make_evaluation(
    conditions: EvaluationConditions,
    results: Sequence[EpisodeResult],
    action_repeat: int,
    demos: Sequence[DemoSet],
) -> Evaluation:
    """What was played, with the best episodes over time."""
    action_repeat = action_repeat if is_atari(conditions.env) else 1
    top = max(results, key=lambda episode: episode.score)
    curves = {"agent": ReturnCurve.from_rewards(np.asarray(top.rewards), action_repeat)}
    if episodes := [episode for held in demos for episode in held.episodes]:
        expert = episodes[best_episode_index(episodes)]
        curves["expert"] = ReturnCurve.from_rewards(
            expert.rewards, action_repeat, expert.input_log.phase if expert.input_log else 0
        )
    scores = np.array([episode.score for episode in results])
    steps = np.array([episode.steps for episode in results], np.int64)
    return Evaluation(conditions, scores, steps, curves)
