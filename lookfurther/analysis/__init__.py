"""Analysis of an agent: values along a demonstration, where greedy play leaves it, standstills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lookfurther.agent import Agent
from lookfurther.analysis.rollout_envs import EnvBuilder
from lookfurther.analysis.rollouts import DemonstrationRollout, roll_out_demonstration
from lookfurther.analysis.standstill import (
    EpisodeSettings,
    EpisodeTrace,
    StandstillPlace,
    group_standstills,
    play_traced_episodes,
)
from lookfurther.analysis.values import DemonstrationValues, values_along_episode
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.envs.emulator import ACTION_MEANINGS, Emulator
from lookfurther.envs.naming import is_atari
from lookfurther.errors import DemonstrationError
from lookfurther.networks.dueling import network_value_transform

DEFAULT_ROLLOUTS = 40


class Demonstration(NamedTuple):
    """One episode of a set."""

    name: str
    episode: Episode


class AnalysisSettings(NamedTuple):
    """How many episodes and rollouts are played, and how long."""

    every: int  # steps of the demonstration between rollouts; 0: evenly spaced
    steps: int  # of each rollout from the demonstration
    episodes: EpisodeSettings


class Analysis(NamedTuple):
    """Everything that the page and the JSON file show."""

    agent: Agent
    demonstration: Demonstration
    settings: AnalysisSettings
    action_names: tuple[str, ...]
    values: DemonstrationValues
    rollouts: list[DemonstrationRollout]
    traces: list[EpisodeTrace]
    places: list[StandstillPlace]
    notes: list[str]


def load_demonstration(agent: Agent, names: Sequence[str], index: int | None) -> Demonstration:
    """The best episode of these sets, or episode `index` of all of them together."""
    if not names:
        raise DemonstrationError("the run has no demonstrations: give --demos SET")
    episodes, titles = [], []
    for name in names:
        loaded = catalog.load_set(name, agent.spec, agent.config.environment)
        titles += [f"{name}, episode {i}" for i in range(len(loaded))]
        episodes += loaded
    chosen = best_episode_index(episodes) if index is None else index
    if not 0 <= chosen < len(episodes):
        raise DemonstrationError(f"--episode {chosen}: the sets have 0 to {len(episodes) - 1}")
    return Demonstration(titles[chosen], episodes[chosen])


def analyse_agent(
    agent: Agent,
    demonstration: Demonstration,
    settings: AnalysisSettings,
    log: Callable[[str], None] = lambda _: None,
) -> Analysis:
    """Evaluate the demonstration, play from steps along it and from the evaluation's starts."""
    episode, builder = demonstration.episode, EnvBuilder(agent)
    log(f"values along {demonstration.name}: {len(episode):,} steps")
    transform = network_value_transform(agent.network, agent.config.learner)
    values = values_along_episode(
        agent.q_values, episode, agent.spec.stack, agent.config, transform
    )
    notes = _collect_notes(builder, episode)
    every = settings.every or -(-len(episode) // DEFAULT_ROLLOUTS)
    starts = range(0, len(episode), every)
    log(f"{len(starts)} rollouts of at most {settings.steps:,} steps from the demonstration")
    rollouts: list[DemonstrationRollout] = []
    try:
        rollouts += roll_out_demonstration(agent, builder, episode, starts, settings.steps)
    except DemonstrationError as error:
        notes.append(f"Rollouts from the demonstration are missing: {error}.")
    wanted = settings.episodes
    log(f"{wanted.episodes} episodes of at most {wanted.max_steps:,} steps")
    traces = play_traced_episodes(agent, builder, wanted, episode)
    places = group_standstills(traces, episode)
    names = agent_action_names(agent)
    return Analysis(agent, demonstration, settings, names, values, rollouts, traces, places, notes)


def _collect_notes(builder: EnvBuilder, episode: Episode) -> list[str]:
    """What a reader must know before using the numbers."""
    notes = []
    if not episode.terminal:
        notes.append(
            "The demonstration was cut before its episode ended: its return is a lower bound."
        )
    if not builder.can_restore:
        notes.append(
            "States of this environment cannot be restored: each rollout replays the"
            " demonstration from its start up to its first step."
        )
    if builder.drawing_fault:
        notes.append(f"There are no pictures: {builder.drawing_fault}.")
    return notes


def agent_action_names(agent: Agent) -> tuple[str, ...]:
    """The names of an Atari game's actions; numbers in other environments."""
    env, count = agent.spec.env, agent.spec.actions
    if not is_atari(env):
        return tuple(f"action {i}" for i in range(count))
    emulator = Emulator(env)
    full = agent.config.environment.full_actions
    ids = emulator.legal_actions if full else emulator.minimal_actions
    return tuple(ACTION_MEANINGS[i] for i in ids)
