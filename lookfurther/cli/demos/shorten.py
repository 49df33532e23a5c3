"""lookfurther demos shorten"""

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
class ShortenOptions:
    """Shorten the waits of aligned Atari episodes."""

    source: SetName = tyro.MISSING
    """the set"""
    name: NewSetName = ""
    """the new set"""


def shorten_set(options: ShortenOptions) -> int:
    """Save a new set; an episode whose waits are all needed is kept unchanged."""
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    shorten = partial(print_shortened, demo_set.name, spec.env, env_config.action_repeat)
    episodes = list(parallel_map(shorten, list(enumerate(demo_set.episodes))))
    source = f"shortened from {demo_set.name}"
    save_new_set(name, episodes, spec, source, env_config)
    return 0


def print_shortened(
    set_name: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode:
    """Shorten one episode and print the outcome."""
    from lookfurther.demos.shorten import shorten_episode

    index, episode = numbered
    label = f"{set_name}, episode {index}"

    def print_progress(step: int, steps: int) -> None:
        print(f"{label}: step {step:,} of {steps:,}", flush=True)

    shortened = shorten_episode(episode, env, action_repeat, print_progress)
    before, after = format_episode_size(episode), format_episode_size(shortened)
    print(f"{label}: {after}, before: {before}", flush=True)
    return shortened
