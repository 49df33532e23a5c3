"""How good an agent is, over whole episodes from no-op starts or human starts (Sec. C)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np

from lookfurther.agent import Agent
from lookfurther.config import Environment
from lookfurther.demos import playback
from lookfurther.demos.catalog import Held
from lookfurther.demos.episode import Tape, best
from lookfurther.envs import Envs, make_envs
from lookfurther.envs.emulator import STANDARD, Emulator
from lookfurther.envs.human_starts import Start, check, frames_of, make_started
from lookfurther.errors import DemonstrationError
from lookfurther.evaluation.paper_scores import game_of
from lookfurther.evaluation.results import EPSILON, Conditions, Evaluation, Trace
from lookfurther.rollout import Played, greedy, play, uniform
from lookfurther.training import hardware

EPISODES = 200
LANES = 20
SEED = 1_000_000  # far from those of training
CAP = 108_000  # frames: half an hour
NOOPS = 30
STARTS = 100  # moments drawn from demonstrations

Tell = Callable[[Played], None]


def evaluate(
    agent: Agent,
    episodes: int = EPISODES,
    *,
    epsilon: float = EPSILON,
    lanes: int = LANES,
    seed: int = SEED,
    env: Callable[[], gymnasium.Env] | None = None,
) -> list[Played]:
    """Play `episodes` from no-op starts at a small epsilon; the same seed gives the same scores."""
    settings = regime(agent.config.environment)
    envs = lanes_of(env or agent.config.env, settings, min(lanes, episodes), seed)
    with closing(envs):
        return play(greedy(agent.network, epsilon, seed), envs, episodes)


def assess(
    agent: Agent,
    conditions: Conditions,
    demos: Sequence[Held] = (),
    *,
    episodes: int = EPISODES,
    lanes: int = LANES,
    tell: Tell = lambda _: None,
) -> Evaluation:
    """Play under the conditions; `demos` give human starts, or the expert's curve to no-op ones."""
    settings, seed = regime(agent.config.environment, conditions.sticky), conditions.seed
    lanes = min(lanes, episodes)
    if conditions.starts == "human":
        starts = human_starts(conditions.env, demos, settings, seed)
        settings = replace(settings, processes=hardware.cores(), stack=agent.spec.stack)
        envs: Envs = make_started(conditions.env, starts, settings, lanes, seed)
    else:
        envs = lanes_of(conditions.env, settings, lanes, seed)
    with closing(envs):
        played = play(greedy(agent.network, conditions.epsilon, seed), envs, episodes, tell)
    expert = demos if conditions.starts == "noop" else ()  # it has played from the beginning
    return _evaluation(conditions, played, settings.repeat, expert)


def assess_random(
    env: str,
    environment: Environment,
    *,
    episodes: int = EPISODES,
    lanes: int = LANES,
    seed: int = SEED,
    tell: Tell = lambda _: None,
) -> Evaluation:
    """Random play from no-op starts, to check environments against published scores."""
    conditions = Conditions(env, sticky=environment.sticky, epsilon=1.0, seed=seed)
    with closing(lanes_of(env, environment, min(lanes, episodes), seed)) as envs:
        played = play(uniform(envs.spec.actions, seed), envs, episodes, tell)
    return _evaluation(conditions, played, environment.repeat, ())


def regime(environment: Environment, sticky: float | None = None) -> Environment:
    """A run's settings as evaluation has them, with its own sticky actions unless told."""
    sticky = environment.sticky if sticky is None else sticky
    return replace(environment, processes=0, noops=NOOPS, sticky=sticky, cap=CAP, cap_unit="frames")


def lanes_of(
    env: str | Callable[[], gymnasium.Env], environment: Environment, lanes: int, seed: int
) -> Envs:
    """Lanes from no-op starts."""
    return make_envs(env, environment, lanes, seed, environment.threads or hardware.cores())


def human_starts(
    env: str, demos: Sequence[Held], environment: Environment, seed: int, count: int = STARTS
) -> list[Start]:
    """Moments drawn uniformly from all the time of the demonstrations, by replaying their tapes.

    They lie between steps, and before the cap of an episode.
    """
    held = [(tape, each.description.origin.sticky) for each in demos for tape in _tapes(env, each)]
    if not held:
        raise DemonstrationError(f"human starts of {env} need demonstrations: give --demos SET")
    repeat, cap = environment.repeat, frames_of(environment)
    check(env, repeat)
    moments = [_moments(playback.cut(tape, cap), repeat) for tape, _ in held]
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
        starts += _starts(tape, playback.emulator_of(tape, env, repeat, sticky), frames)
    return starts


def _moments(tape: Tape, repeat: int) -> list[int]:
    """The frames after which the steps of a tape begin, but for a last one that is cut short."""
    whole = (len(tape.frames) + -tape.phase % repeat) // repeat
    return playback.step_ends(tape, repeat)[:whole].tolist()


def _tapes(env: str, held: Held) -> list[Tape]:
    """The tapes of a set, which must be of this game."""
    name, theirs = held.name, held.description.spec.env
    if theirs != env:
        raise DemonstrationError(f"{name} shows {theirs}, the agent plays {env}")
    found = [episode.tape for episode in held.episodes if episode.tape is not None]
    if any(tape.variant != STANDARD for tape in found):
        raise DemonstrationError(
            f"{name} was played in another mode or difficulty of the game than the agent plays"
        )
    if not found:
        raise DemonstrationError(
            f"{name} has no tapes to replay, so no human starts: record or import it anew"
        )
    return found


def _starts(tape: Tape, emulator: Emulator, frames: Sequence[int]) -> list[Start]:
    """The moments of a tape after so many frames each."""
    due = set(frames)
    starts = [Start(emulator.state(), 0)] if 0 in due else []
    for _ in playback.play(tape, emulator):
        if emulator.frames in due and not emulator.over:
            starts.append(Start(emulator.state(), int(tape.frames[emulator.frames - 1])))
        if emulator.frames >= max(due):
            break
    return starts


def _evaluation(
    conditions: Conditions, played: Sequence[Played], repeat: int, demos: Sequence[Held]
) -> Evaluation:
    """What was played, with the best episodes over time."""
    repeat = repeat if game_of(conditions.env) else 1
    top = max(played, key=lambda episode: episode.score)
    curves = {"agent": Trace.of(np.asarray(top.rewards), repeat)}
    if episodes := [episode for held in demos for episode in held.episodes]:
        expert = episodes[best(episodes)]
        curves["expert"] = Trace.of(expert.rewards, repeat, expert.tape.phase if expert.tape else 0)
    scores = np.array([episode.score for episode in played])
    steps = np.array([episode.steps for episode in played], np.int64)
    return Evaluation(conditions, scores, steps, curves)
