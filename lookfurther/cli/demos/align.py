"""lookfurther demos align"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import tyro

from lookfurther.cli.demos.arguments import NewSetName, SetName
from lookfurther.cli.demos.formatting import format_episode_size, print_progress
from lookfurther.cli.demos.transfer import save_new_set
from lookfurther.cli.options.parsing import Flag
from lookfurther.config import ClockUnit
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.processes import parallel_map

if TYPE_CHECKING:
    from lookfurther.demos.alignment_search import ProgressCallback
    from lookfurther.demos.policy_trace import PolicyTable

PROGRESS_PERIOD = 200  # steps between two progress lines


@dataclass(frozen=True)
class AlignOptions:
    """Align human episodes to agent steps, with one action per step."""

    source: SetName = tyro.MISSING
    """the set"""
    name: NewSetName = ""
    """the new set"""
    starts: Flag = False
    """play each episode from power-on and after 1, 2 and 3 no-op frames, as an agent does"""
    steps: int = 0
    """align only the first steps of each episode; 0: all"""
    clock_unit: ClockUnit = "steps"
    """the environment.clock_unit of the agent; frames: starts need not agree, as it shows them"""


def align_set(options: AlignOptions) -> int:
    """Save a new set; an episode that cannot be aligned is kept unchanged."""
    if options.steps < 0:
        raise ConfigError(f"--steps must be 0 or more, not {options.steps}")
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set)
    if options.steps:
        demo_set = take_first_steps(demo_set, options.steps, env_config.action_repeat)
    action_repeat = env_config.action_repeat
    if options.starts:
        episodes = align_every_start(demo_set, action_repeat, options.clock_unit)
    else:
        episodes = align_every_episode(demo_set, action_repeat)
    if not episodes:
        raise DemonstrationError(f"no episode of {demo_set.name} could be aligned: use it as it is")
    source = f"aligned from {demo_set.name}"
    save_new_set(name, episodes, spec, source, env_config)
    return 0


def take_first_steps(demo_set: catalog.DemoSet, steps: int, action_repeat: int) -> catalog.DemoSet:
    """The set with at most `steps` steps of each episode."""
    from lookfurther.demos.align import cut_recording

    episodes = [cut_recording(episode, steps, action_repeat) for episode in demo_set.episodes]
    return demo_set._replace(episodes=episodes)


def align_every_episode(demo_set: catalog.DemoSet, action_repeat: int) -> list[Episode]:
    """Align each ambiguous episode and keep the others; empty if nothing could be aligned."""
    if not any(count_ambiguous(episode, action_repeat) for episode in demo_set.episodes):
        raise DemonstrationError(
            f"{demo_set.name} has one action in every step: use it as it is,"
            " or add --starts to play it from the starts of an evaluation"
        )
    align = partial(try_align, demo_set.name, demo_set.description.spec.env, action_repeat)
    aligned = list(parallel_map(align, list(enumerate(demo_set.episodes))))
    pairs = zip(aligned, demo_set.episodes, strict=True)
    return [new or old for new, old in pairs] if any(aligned) else []


def align_every_start(
    demo_set: catalog.DemoSet, action_repeat: int, clock_unit: ClockUnit
) -> list[Episode]:
    """Play each episode from every distinct start of an evaluation; losing games are left out."""
    name, env, phases = demo_set.name, demo_set.description.spec.env, range(action_repeat)
    if clock_unit == "frames":
        align = partial(align_start, name, env, action_repeat)
        jobs = [(index, e, phase) for index, e in enumerate(demo_set.episodes) for phase in phases]
        return [game for game in parallel_map(align, jobs) if game is not None]
    align_all = partial(align_starts, name, env, action_repeat)
    games = parallel_map(align_all, list(enumerate(demo_set.episodes)))
    return [game for games_of_episode in games for game in games_of_episode]


def align_starts(
    set_name: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> list[Episode]:
    """The games of an episode from all starts, and print what became of them.

    One policy must play them all, so each game takes the actions of those before it where it
    shows the same.
    """
    from lookfurther.demos.policy_trace import PolicyTable, trace_episode

    table, shown, games = PolicyTable(), PolicyTable(), []
    for phase in range(action_repeat):
        game = align_start(set_name, env, action_repeat, (*numbered, phase), table)
        if game is not None:
            trace = trace_episode(game, shown)
            shown.add_game(trace)
            label = label_start(set_name, numbered[0], phase)
            conflicts = pluralize(trace.conflicts, "step")
            print(f"{label}: {conflicts} contradict other starts", flush=True)
            games.append(game)
    return games


def align_start(
    set_name: str,
    env: str,
    action_repeat: int,
    job: tuple[int, Episode, int],
    policy_table: PolicyTable | None = None,
) -> Episode | None:
    """The game of an episode from one start, None if it is lost; prints the outcome."""
    from lookfurther.demos.align import align_from_start

    index, episode, phase = job
    label = label_start(set_name, index, phase)
    search = partial(align_from_start, episode, env, action_repeat, phase, policy_table)
    game = _search_alignment(label, search, "left out")
    if game is not None:
        result = f"{format_episode_size(game)}, of {format_number(episode.score)}"
        print(f"{label}: {result}", flush=True)
    return game


def label_start(set_name: str, index: int, phase: int) -> str:
    return f"{set_name}, episode {index}, start {phase}"


def check_alignable(demo_set: catalog.DemoSet) -> None:
    """Raise if alignment is impossible."""
    name, origin = demo_set.name, demo_set.description.origin
    if not origin.game:
        raise DemonstrationError(f"{name} is not of an Atari game: only those can be aligned")
    if origin.sticky:
        raise DemonstrationError(f"{name} has sticky actions: such games cannot be aligned")


def count_ambiguous(episode: Episode, action_repeat: int) -> int:
    """Count the steps of an episode that hold several actions; none without an input log."""
    from lookfurther.demos.playback import count_ambiguous_steps

    return count_ambiguous_steps(episode.input_log, action_repeat) if episode.input_log else 0


def try_align(
    set_name: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode | None:
    """Return the episode with one action per step, or None to keep it; print the outcome."""
    from lookfurther.demos.align import (
        align_episode,
        hold_episode_actions,
        imitation_score,
        verified_episode,
    )

    index, episode = numbered
    label = f"{set_name}, episode {index}"
    count = count_ambiguous(episode, action_repeat)
    ambiguous = pluralize(count, "ambiguous step")
    if not count:
        print(f"{label}: one action in every step, kept as it is", flush=True)
        return None

    own_score = imitation_score(episode, env, action_repeat)
    own = format_number(own_score)
    if own_score == episode.score:
        print(f"{label}: its own actions, one per step, give {own}", flush=True)
        held = hold_episode_actions(episode, env, action_repeat)
        return verified_episode(held, env, action_repeat)
    size = format_episode_size(episode)
    print(f"{label}: {size}; {ambiguous}, whose actions give {own}: searching", flush=True)

    search = partial(align_episode, episode, env, action_repeat)
    aligned = _search_alignment(label, search, f"kept as it is: {size}")
    if aligned is None:
        return None
    if aligned.score <= own_score:
        scores = f"its own actions give {own}, aligned ones {format_number(aligned.score)}"
        print(f"{label}: {scores}, kept as it is: {size}", flush=True)
        return None
    result = f"{format_episode_size(aligned)}, of {format_number(episode.score)}"
    print(f"{label}: {result}; {ambiguous} before, whose actions gave {own}, none now", flush=True)
    return aligned


def _search_alignment(
    label: str, search: Callable[[ProgressCallback], Episode], consequence: str
) -> Episode | None:
    """Run a search and print its progress; return None if it fails."""
    from lookfurther.demos.alignment_search import AlignmentLost

    def print_some_progress(step: int, steps: int) -> None:
        if step % PROGRESS_PERIOD == 0 or step == steps:
            print_progress(label, step, steps)

    try:
        return search(print_some_progress)
    except AlignmentLost as error:
        print(f"{label}: {error}, {consequence}", flush=True)
        return None
