"""The players of a video: the agent of a run and the experts it learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.evaluation.results import DEFAULT_EPSILON
from lookfurther.rollout import epsilon_greedy_policy
from lookfurther.system.printable import make_printable
from lookfurther.video.draw import AGENT_COLOUR, EXPERT_COLOUR
from lookfurther.video.playback import EnvView, Frame, play_policy, replay_demonstration

if TYPE_CHECKING:
    from lookfurther.agent import Agent

MAX_NAME_LENGTH = 40  # characters


class Player(NamedTuple):
    """A player; each call of `play` plays its episode from the start."""

    name: str
    detail: str
    colour: str
    play: Callable[[], Iterator[Frame]]


class ExpertEpisode(NamedTuple):
    """One demonstration."""

    name: str
    episode: Episode


def load_experts(agent: Agent, names: Sequence[str]) -> list[ExpertEpisode]:
    """Load the episodes of these sets, the best first."""
    experts = [
        ExpertEpisode(
            f"{make_printable(name.rpartition('/')[2], MAX_NAME_LENGTH)}, episode {i}", episode
        )
        for name in names
        for i, episode in enumerate(catalog.load_set(name, agent.spec, agent.config.environment))
    ]
    return sorted(experts, key=lambda expert: -expert.episode.score)


def make_pair(
    agent: Agent, env_view: EnvView, expert: ExpertEpisode | None, seed: int
) -> tuple[Player, ...]:
    """The agent and, if given, an expert; both start from the expert's seed if it has one."""
    env_seed = seed if expert is None or expert.episode.seed is None else expert.episode.seed

    def play_agent() -> Iterator[Frame]:
        policy = epsilon_greedy_policy(agent.network, DEFAULT_EPSILON, seed)
        return play_policy(policy, env_view, seed, env_seed)

    preset = make_printable(agent.config.preset, MAX_NAME_LENGTH)
    agent_player = Player("Agent", preset, AGENT_COLOUR, play_agent)
    if expert is None:
        return (agent_player,)

    def play_expert() -> Iterator[Frame]:
        return replay_demonstration(expert.episode, env_view, expert.name)

    return agent_player, Player("Expert", expert.name, EXPERT_COLOUR, play_expert)
