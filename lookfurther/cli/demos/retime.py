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
from lookfurther.system.processes import parallel_map


@dataclass(frozen=True)
class RetimeOptions:
    """Change the waits of aligned Atari episodes, so that fewer observations have two actions."""

    source: SetName = tyro.MISSING
    """the set"""
    name: NewSetName = ""
    """the new set"""


def retime_set(options: RetimeOptions) -> int:
    """Save a new set; an episode that does not get better is kept unchanged."""
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    retime = partial(print_retimed, demo_set.name, spec.env, env_config.action_repeat)
    episodes = list(parallel_map(retime, list(enumerate(demo_set.episodes))))
    source = f"retimed from {demo_set.name}"
    save_new_set(name, episodes, spec, source, env_config)
    return 0


def print_retimed(
    set_name: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode:
    """Retime one episode and print the outcome."""
    from lookfurther.demos.retime import retime_episode

    index, episode = numbered
    label = f"{set_name}, episode {index}"

    def print_progress(step: int, steps: int) -> None:
        print(f"{label}: step {step:,} of {steps:,}", flush=True)

    retimed = retime_episode(episode, env, action_repeat, print_progress)
    before, after = format_retimed(episode), format_retimed(retimed)
    print(f"{label}: {after}, before: {before}", flush=True)
    return retimed


def format_retimed(episode: Episode) -> str:
    """Size and conflicts of an episode."""
    from lookfurther.demos.game_policy import count_conflicts

    return f"{format_episode_size(episode)}, {count_conflicts(episode)} conflicting actions"
