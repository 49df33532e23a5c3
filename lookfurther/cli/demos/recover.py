"""lookfurther demos recover"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import tyro

from lookfurther.cli.demos.align import check_alignable
from lookfurther.cli.demos.arguments import NewSetName, RunPath
from lookfurther.cli.demos.formatting import format_episode_size
from lookfurther.cli.demos.transfer import save_new_set
from lookfurther.cli.options.minimums import check_minimums
from lookfurther.demos import catalog
from lookfurther.demos.episode import Episode
from lookfurther.envs.atari import NOOP_MAX
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.processes import parallel_map

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.demos.recovery import StuckGame


@dataclass(frozen=True)
class RecoverOptions:
    """Search ways back to a demonstration from places where an Atari agent is stuck.

    Such a place follows its last reward, or a life that it loses later.
    """

    run: RunPath = tyro.MISSING
    """its run folder or checkpoint"""
    demos: str = ""
    """the aligned set (required)"""
    name: NewSetName = ""
    """the new set"""
    episodes: int = 8
    """games of the agent, with 0 to 30 no-op frames before them"""
    max_steps: int = 1_500
    """steps of each game"""
    epsilon: float = 0.0
    """probability of a random action in these games"""
    places: int = 3
    """places of each game, after its last reward or, if it loses a life later, after that loss"""
    interval: int = 60
    """steps between these places"""
    device: str = "auto"
    """device of the network: auto, cpu, cuda or cuda:N; auto takes a GPU if there is one"""


def recover_agent(options: RecoverOptions) -> int:
    """Play games of an agent, search and save the recoveries as a new set."""
    _check_recover_options(options)
    from lookfurther.agent import Agent
    from lookfurther.training.hardware import resolve_device

    name = catalog.new_set_id(options.name)
    agent = Agent.load(options.run, device=resolve_device(options.device, setting="device"))
    demo_set, env_config = catalog.open_set(options.demos), agent.config.environment
    check_alignable(demo_set)
    episodes = catalog.load_set(options.demos, agent.spec, env_config)
    games = play_stuck_games(agent, options, max(episode.score for episode in episodes))
    # The planes of a demonstration are large, and the search does not need them.
    demos = [replace(episode, planes=episode.planes[:0]) for episode in episodes]
    search = partial(search_recoveries, agent.spec.env, env_config.action_repeat, demos)
    found = parallel_map(search, [places for places in games if places])
    recoveries = [episode for episodes_of_game in found for episode in episodes_of_game]
    places = sum(len(places) for places in games)
    print(f"{len(recoveries)} of {pluralize(places, 'place')} with a way back")
    if not recoveries:
        raise DemonstrationError("no way back was found: nothing is saved")
    source = f"recoveries of {options.run} to {demo_set.name}"
    save_new_set(name, recoveries, agent.spec, source, env_config)
    return 0


def _check_recover_options(options: RecoverOptions) -> None:
    """Raise a ConfigError for the first invalid option."""
    if not options.demos:
        raise ConfigError("recover needs an aligned set: give --demos NAME")
    check_minimums(options, episodes=1, max_steps=1, places=1, interval=1)
    if not 0 <= options.epsilon <= 1:
        raise ConfigError(f"--epsilon must be between 0 and 1, not {options.epsilon:g}")
    if options.episodes > NOOP_MAX + 1:
        raise ConfigError(f"--episodes must be at most {NOOP_MAX + 1}, not {options.episodes}")


def play_stuck_games(
    agent: Agent, options: RecoverOptions, best_score: float
) -> list[list[StuckGame]]:
    """The places of each game; none of a game that reaches the demonstration's score."""
    from lookfurther.analysis.agent_games import play_agent_games
    from lookfurther.demos.recovery import StuckGame, find_stuck_steps

    starts = [i * NOOP_MAX // max(1, options.episodes - 1) for i in range(options.episodes)]
    stuck = []
    for game in play_agent_games(agent, starts, options.max_steps, options.epsilon):
        steps = find_stuck_steps(game.rewards, game.lives, options.interval, options.places)
        if game.score >= best_score:
            steps = range(0)
        size = f"return {format_number(game.score)}, {pluralize(len(game.rewards), 'step')}"
        places = ", ".join(f"{step:,}" for step in steps) or "none"
        print(f"start {game.noop_frames}: {size}; places at steps: {places}", flush=True)
        actions = game.action_ids.tolist()
        stuck.append([StuckGame(game.noop_frames, tuple(actions[:step])) for step in steps])
    return stuck


def search_recoveries(
    env: str, action_repeat: int, demos: Sequence[Episode], places: Sequence[StuckGame]
) -> list[Episode]:
    """The recoveries from the places of one game, and print what became of each place."""
    from lookfurther.demos.recovery import RecoverySearch, choose_demonstration

    start = places[0].noop_frames
    index = choose_demonstration(demos, start, action_repeat)
    search = RecoverySearch(demos[index], env, action_repeat)
    recoveries = []
    for place in places:
        episode = search.recover(place)
        result = "no way back"
        if episode is not None:
            steps = pluralize(len(episode) - episode.first_imitated_step, "step")
            result = f"{format_episode_size(episode)}, the last {steps} imitated"
            recoveries.append(episode)
        print(f"start {start}, step {len(place.action_ids):,}: {result}", flush=True)
    return recoveries
