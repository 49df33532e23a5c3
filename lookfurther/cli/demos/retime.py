"""lookfurther demos retime"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import tyro

from lookfurther.cli.demos.align import check_alignable
from lookfurther.cli.demos.arguments import NewSetName, SetName
from lookfurther.cli.demos.formatting import format_episode_size, print_progress
from lookfurther.cli.demos.transfer import save_new_set
from lookfurther.config import ClockUnit
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.envs.clock import ClockDisplay
from lookfurther.settings.bounds import check_bound
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
    clock_unit: ClockUnit = "steps"
    """the environment.clock_unit of this agent"""


def retime_set(options: RetimeOptions) -> int:
    """Save a new set; an episode that does not get better is kept unchanged."""
    check_bound("environment.clock_period", options.clock_period, "--clock-period")
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    clock = ClockDisplay(options.clock_period, options.clock_unit, env_config.action_repeat)
    episodes = retime_episodes(demo_set, clock)
    source = f"retimed from {demo_set.name}"
    save_new_set(name, episodes, spec, source, env_config)
    return 0


def retime_episodes(demo_set: catalog.DemoSet, clock: ClockDisplay) -> list[Episode]:
    """Retime all episodes, one process for each group that the clock tells apart from others."""
    shows_start = bool(clock.period) and clock.unit == "frames"
    groups: dict[int, list[tuple[int, Episode]]] = {}
    for index, episode in enumerate(demo_set.episodes):
        log = episode.input_log
        start = log.phase % clock.action_repeat if log and shows_start else 0
        groups.setdefault(start, []).append((index, episode))
    retime = partial(retime_group, demo_set.name, demo_set.description.spec.env, clock)
    retimed = [pair for group in parallel_map(retime, list(groups.values())) for pair in group]
    return [episode for _, episode in sorted(retimed, key=lambda pair: pair[0])]


def retime_group(
    set_name: str, env: str, clock: ClockDisplay, numbered: list[tuple[int, Episode]]
) -> list[tuple[int, Episode]]:
    """Retime episodes one after another and print the outcome.

    One policy must play them all, so each one should take the actions of those before it where it
    shows the same.
    """
    from lookfurther.demos.game_policy import NO_POLICY, trace_policy
    from lookfurther.demos.retime import add_to_policy, retime_episode

    action_repeat = clock.action_repeat
    known = shown = NO_POLICY  # screens of the emulator, what an agent sees
    retimed: list[tuple[int, Episode]] = []
    for index, old in numbered:
        label = f"{set_name}, episode {index}"
        on_progress = partial(print_progress, label)
        new = retime_episode(old, env, action_repeat, on_progress, clock=clock, known=known)
        known = add_to_policy(known, new, env, action_repeat, clock)
        before, after = (
            trace_policy(episode, action_repeat, clock, shown) for episode in (old, new)
        )
        print(
            f"{label}: {format_episode_size(new)}, {after.conflicts} conflicting actions,"
            f" before: {format_episode_size(old)}, {before.conflicts} conflicting actions",
            flush=True,
        )
        shown = after.settle()
        retimed.append((index, new))
    return retimed
