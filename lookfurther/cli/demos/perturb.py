"""lookfurther demos perturb"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import tyro

from lookfurther.cli.demos.align import check_alignable
from lookfurther.cli.demos.arguments import NewSetName, SetName
from lookfurther.cli.demos.formatting import format_episode_size, print_progress
from lookfurther.cli.demos.transfer import save_new_set
from lookfurther.cli.options.minimums import check_minimums
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.system.formatting import pluralize
from lookfurther.system.processes import parallel_map

PROGRESS_STEPS = 500  # steps between two progress lines


@dataclass(frozen=True)
class PerturbOptions:
    """Play aligned Atari episodes again with random actions, and search the way back after each."""

    source: SetName = tyro.MISSING
    """the aligned set"""
    name: NewSetName = ""
    """the new set"""
    interval: int = 25
    """steps in which there is one random action, and the way back"""
    copies: int = 1
    """new episodes for each episode of the set"""
    seed: int = 0
    """seed of the random actions"""


def perturb_set(options: PerturbOptions) -> int:
    """Save a new set with the perturbed episodes; the original ones are not in it."""
    check_minimums(options, interval=2, copies=1, seed=0)
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    # The search does not need the planes, which are large.
    episodes = [replace(episode, planes=episode.planes[:0]) for episode in demo_set.episodes]
    jobs = [
        (f"{demo_set.name}, episode {index}, seed {seed}", episode, seed)
        for index, episode in enumerate(episodes)
        for seed in range(options.seed, options.seed + options.copies)
    ]
    perturb = partial(perturb_episode, spec.env, env_config.action_repeat, options.interval)
    perturbed = list(parallel_map(perturb, jobs))
    save_new_set(name, perturbed, spec, f"perturbed from {demo_set.name}", env_config)
    return 0


def perturb_episode(
    env: str, action_repeat: int, interval: int, job: tuple[str, Episode, int]
) -> Episode:
    """A perturbed episode; prints its progress and the outcome."""
    from lookfurther.demos.perturbation import PerturbationSearch

    label, episode, seed = job

    def print_some_progress(step: int, steps: int) -> None:
        if step % PROGRESS_STEPS < interval or step == steps:
            print_progress(label, step, steps)

    search = PerturbationSearch(episode, env, action_repeat, interval, seed)
    perturbed = search.perturb(print_some_progress)
    count = pluralize(len(perturbed.random_steps), "random action")
    before = format_episode_size(episode)
    print(f"{label}: {format_episode_size(perturbed)}, {count}, before: {before}", flush=True)
    return perturbed
