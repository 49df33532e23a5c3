"""Who is shown: the agent of a run, and beside it the demonstrations it learned from."""

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

MAX_NAME_LENGTH = 40  # characters of a name in a picture


class Player(NamedTuple):
    """A play that can be seen as often as asked."""

    name: str
    detail: str
    colour: str
    play: Callable[[], Iterator[Frame]]


class ExpertEpisode(NamedTuple):
    """One demonstration."""

    name: str
    episode: Episode


def load_experts(agent: Agent, names: Sequence[str]) -> list[ExpertEpisode]:
    """The episodes of these sets, the best first."""
    found = [
        ExpertEpisode(
            f"{make_printable(name.rpartition('/')[2], MAX_NAME_LENGTH)}, episode {i}", episode
        )
        for name in names
        for i, episode in enumerate(catalog.load_set(name, agent.spec, agent.config.environment))
    ]
    return sorted(found, key=lambda expert: -expert.episode.score)


def make_pair(
    agent: Agent, env_view: EnvView, expert: ExpertEpisode | None, seed: int
) -> tuple[Player, ...]:
    """The agent and an expert, from the same start where the expert's can be repeated."""
    start = seed if expert is None or expert.episode.seed is None else expert.episode.seed

    def perform() -> Iterator[Frame]:
        return play_policy(
            epsilon_greedy_policy(agent.network, DEFAULT_EPSILON, seed), env_view, seed, start
        )

    mine = Player(
        "Agent", make_printable(agent.config.preset, MAX_NAME_LENGTH), AGENT_COLOUR, perform
    )
    if expert is None:
        return (mine,)
    again = Player(
        "Expert",
        expert.name,
        EXPERT_COLOUR,
        lambda: replay_demonstration(expert.episode, env_view, expert.name),
    )
    return mine, again
