"""lookfurther demos retime"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import tyro

from lookfurther.cli.demos.align import check_alignable
from lookfurther.cli.demos.arguments import NewSetName, SetName
from lookfurther.cli.demos.formatting import format_episode_size
from lookfurther.cli.demos.transfer import save_new_set
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError
from lookfurther.settings.bounds import BOUNDS
from lookfurther.system.processes import parallel_map


@dataclass(frozen=True)
class RetimeOptions:
    """Change the waits of aligned Atari episodes, so that fewer observations have two actions."""

    source: SetName = tyro.MISSING
    """the set"""
    name: NewSetName = ""
    """the new set"""
    clock_period: int = 0
    """the environment.clock_period of the agent that learns from the set; 0: it has no clock"""


def retime_set(options: RetimeOptions) -> int:
    """Save a new set; an episode that does not get better is kept unchanged."""
    check_clock_period(options.clock_period)
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    action_repeat, clock_period = env_config.action_repeat, options.clock_period
    retime = partial(print_retimed, demo_set.name, spec.env, action_repeat, clock_period)
    episodes = list(parallel_map(retime, list(enumerate(demo_set.episodes))))
    source = f"retimed from {demo_set.name}"
    save_new_set(name, episodes, spec, source, env_config)
    return 0


def print_retimed(
    set_name: str,
    env: str,
    action_repeat: int,
    clock_period: int,
    numbered: tuple[int, Episode],
) -> Episode:
    """Retime one episode and print the outcome."""
    from lookfurther.demos.retime import retime_episode

    index, episode = numbered
    label = f"{set_name}, episode {index}"

    def print_progress(step: int, steps: int) -> None:
        print(f"{label}: step {step:,} of {steps:,}", flush=True)

    retimed = retime_episode(episode, env, action_repeat, print_progress, clock_period=clock_period)
    before, after = (format_retimed(e, clock_period) for e in (episode, retimed))
    print(f"{label}: {after}, before: {before}", flush=True)
    return retimed


def check_clock_period(clock_period: int) -> None:
    """Raise if no agent can have such a clock."""
    bound = BOUNDS["environment.clock_period"]
    if not bound.holds(clock_period):
        raise ConfigError(f"--clock-period must be {bound.description}, not {clock_period}")


def format_retimed(episode: Episode, clock_period: int) -> str:
    """Size and conflicts of an episode."""
    from lookfurther.demos.game_policy import count_conflicts

    conflicts = count_conflicts(episode, clock_period)
    return f"{format_episode_size(episode)}, {conflicts} conflicting actions"
