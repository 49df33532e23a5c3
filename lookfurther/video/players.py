"""Who is shown: the agent of a run, and beside it the demonstrations it learned from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.evaluation.paper_scores import game_of, titles
from lookfurther.evaluation.results import EPSILON
from lookfurther.rollout import greedy
from lookfurther.system.printable import printable
from lookfurther.video.draw import AGENT, EXPERT
from lookfurther.video.playback import Scene, Shot, act, repeat

if TYPE_CHECKING:
    from lookfurther.agent import Agent

LONGEST = 40  # characters of a name in a picture


class Side(NamedTuple):
    """A play that can be seen as often as asked."""

    name: str
    detail: str
    colour: str
    play: Callable[[], Iterator[Shot]]


class Expert(NamedTuple):
    """One demonstration."""

    name: str
    episode: Episode


def experts(agent: Agent, names: Sequence[str]) -> list[Expert]:
    """The episodes of these sets, the best first."""
    found = [
        Expert(f"{printable(name.rpartition('/')[2], LONGEST)}, episode {i}", episode)
        for name in names
        for i, episode in enumerate(catalog.load(name, agent.spec, agent.config.environment))
    ]
    return sorted(found, key=lambda expert: -expert.episode.score)


def title(env: str) -> str:
    """Montezuma's Revenge for ALE/MontezumaRevenge-v5, UnlockPickup for x/UnlockPickup-v0."""
    last = re.sub(r"-v\d+$", "", re.split("[/:]", env)[-1])
    return titles().get(game_of(env) or "", printable(last, LONGEST))


def pair(agent: Agent, scene: Scene, expert: Expert | None, seed: int) -> tuple[Side, ...]:
    """The agent and an expert, from the same start where the expert's can be repeated."""
    start = seed if expert is None or expert.episode.seed is None else expert.episode.seed

    def perform() -> Iterator[Shot]:
        return act(greedy(agent.network, EPSILON, seed), scene, seed, start)

    mine = Side("Agent", printable(agent.config.preset, LONGEST), AGENT, perform)
    if expert is None:
        return (mine,)
    again = Side("Expert", expert.name, EXPERT, lambda: repeat(expert.episode, scene, expert.name))
    return mine, again
