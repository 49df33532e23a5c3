"""lookfurther demos verify, play, align"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import tyro

from lookfurther.cli.demos.arguments import OutputPath, SetName, SetNames
from lookfurther.cli.demos.formatting import (
    format_audit,
    format_episode_size,
    pluralize,
)
from lookfurther.cli.demos.transfer import print_saved_set
from lookfurther.cli.parsing import check_writable
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.formatting import format_number
from lookfurther.system.printable import make_printable
from lookfurther.system.processes import parallel_map

ATARI_FPS, OTHER_FPS = 60.0, 10.0  # emulator frames per second; steps of other environments
MAX_VIDEO_FPS = 30.0  # above it, frames are skipped
MIN_VIDEO_HEIGHT = 420  # pixels that small frames are enlarged to
PROGRESS_PERIOD = 200  # steps of an alignment between two progress lines


@dataclass(frozen=True)
class VerifyOptions:
    """Replay every episode of sets and print the first difference."""

    names: SetNames = ()
    """the sets"""
    modules: tuple[str, ...] = ()
    """modules to import first, which register the environment or define its wrappers"""


@dataclass(frozen=True)
class PlayOptions:
    """Write an animated GIF or a video of an episode."""

    name: SetName = tyro.MISSING
    """the set"""
    out: OutputPath = tyro.MISSING
    """file to write: .gif or .mp4"""
    episode: int = -1
    """index of the episode; -1: the best"""
    begin: int = 0
    """first step shown"""
    end: int = 0
    """last step shown; 0: the last of the episode"""
    speed: float = 1.0
    """speed relative to the game"""
    scale: int = 0
    """integer scale factor; 0: chosen from the frame size"""
    modules: tuple[str, ...] = ()
    """modules to import first, which register the environment or define its wrappers"""


@dataclass(frozen=True)
class AlignOptions:
    """Align human episodes to agent steps, with one action per step."""

    source: SetName = tyro.MISSING
    """the set"""
    name: str = ""
    """the new set"""


def verify_sets(options: VerifyOptions) -> int:
    """Replay sets; return the exit code of DemonstrationError if an episode differs."""
    if not options.names:
        raise ConfigError("verify needs the name of a set: lookfurther demos list shows them")
    mismatches = sum(_count_mismatches(name, options.modules) for name in options.names)
    return DemonstrationError.exit_code if mismatches else 0


def _count_mismatches(name_or_path: str, modules: tuple[str, ...]) -> int:
    """Print the audit of each episode; return the number of episodes that differ."""
    from lookfurther.demos.verify import verify_episode

    name, description, episodes = catalog.open_set(name_or_path)
    env_config = storage.trusted_env_config(description, modules)
    replay = partial(verify_episode, spec=description.spec, env_config=env_config)
    mismatches = 0
    for i, audit in enumerate(parallel_map(replay, episodes)):
        mismatches += not audit.verified
        result = format_audit(audit) + _format_forced_import(episodes[i])
        print(f"{make_printable(name)}, episode {i}: {result}", flush=True)
    result = f"{mismatches} of them not equal" if mismatches else "all equal"
    print(f"{name}: {pluralize(len(episodes), 'episode')}, {result}")
    return mismatches


def _format_forced_import(episode: Episode) -> str:
    """Format the mismatch that a forced import accepted; a replay of the result cannot show it."""
    mismatch = episode.audit.mismatch if episode.audit else ""
    return f", but imported by force: {make_printable(mismatch)}" if mismatch else ""


def animate_set(options: PlayOptions) -> int:
    """Write the animation and print a summary."""
    from lookfurther.video.encode import check_video_path

    check_video_path(options.out)
    check_writable("OUT", options.out)
    demo_set = catalog.open_set(options.name)
    name, episodes = demo_set.name, demo_set.episodes
    index = best_episode_index(episodes) if options.episode == -1 else options.episode
    if not 0 <= index < len(episodes):
        raise ConfigError(f"{name} has episodes 0 ... {len(episodes) - 1}, not {index}")
    steps = animate_episode(options, demo_set, episodes[index])
    score = format_number(episodes[index].score)
    print(f"{options.out}: {name}, episode {index}, return {score}, steps {steps}")
    return 0


def animate_episode(options: PlayOptions, demo_set: catalog.DemoSet, episode: Episode) -> str:
    """Write the animation of an episode and return the range of its steps."""
    from lookfurther.cli.demos.render import render_frames
    from lookfurther.video.encode import check_gif_length, write_animation

    env_config = storage.trusted_env_config(demo_set.description, options.modules)
    rate = ATARI_FPS / env_config.action_repeat if episode.input_log else OTHER_FPS
    steps, fps = select_steps(options, len(episode), rate)
    check_gif_length(options.out, len(steps))
    rendered = iter(render_frames(episode, demo_set.description.spec, env_config, steps))
    first = next(rendered)
    frames = itertools.chain([first], rendered)
    scale = options.scale or max(1, round(MIN_VIDEO_HEIGHT / len(first)))
    returns = [0.0, *episode.rewards.cumsum(dtype=float).tolist()]
    captions = [f"score {format_number(returns[step])}   step {step:,}" for step in steps]
    write_animation(frames, options.out, fps, scale, captions)
    return f"{steps[0]:,} to {steps[-1]:,}"


def select_steps(options: PlayOptions, length: int, rate: float) -> tuple[list[int], float]:
    """Return the steps to show and the frame rate."""
    end = options.end or length
    if not 0 <= options.begin < end <= length:
        raise ConfigError(f"--begin and --end must be in 0 ... {length}, in this order")
    if not 0 < options.speed <= 1000:
        raise ConfigError(f"--speed must be above 0 and at most 1000, not {options.speed:g}")
    stride = math.ceil(rate * options.speed / MAX_VIDEO_FPS)
    return list(range(options.begin, end + 1, stride)), rate * options.speed / stride


def align_set(options: AlignOptions) -> int:
    """Save a new set; an episode that cannot be aligned is kept unchanged."""
    name, demo_set = catalog.new_set_id(options.name), catalog.open_set(options.source)
    spec, env_config = demo_set.description.spec, storage.recorded_env_config(demo_set.description)
    check_alignable(demo_set, env_config)
    align = partial(try_align, demo_set.name, spec.env, env_config.action_repeat)
    aligned = list(parallel_map(align, list(enumerate(demo_set.episodes))))
    if not any(aligned):
        raise DemonstrationError(f"no episode of {demo_set.name} could be aligned: use it as it is")
    episodes = [new or old for new, old in zip(aligned, demo_set.episodes, strict=True)]
    source = f"aligned from {demo_set.name}"
    path = storage.save_episodes(name, episodes, spec, source, env_config=env_config)
    print_saved_set(name, episodes, path)
    return 0


def check_alignable(demo_set: catalog.DemoSet, env_config: EnvConfig) -> None:
    """Raise if alignment is impossible or not needed."""
    name, repeat = demo_set.name, env_config.action_repeat
    if not demo_set.description.origin.game:
        raise DemonstrationError(f"{name} is not of an Atari game: only those can be aligned")
    if env_config.sticky_prob:
        raise DemonstrationError(f"{name} has sticky actions: such games cannot be aligned")
    if not any(count_ambiguous(episode, repeat) for episode in demo_set.episodes):
        raise DemonstrationError(f"{name} has one action in every step: use it as it is")


def count_ambiguous(episode: Episode, action_repeat: int) -> int:
    """Count the steps of an episode that hold several actions; none without an input log."""
    from lookfurther.demos.playback import count_ambiguous_steps

    return count_ambiguous_steps(episode.input_log, action_repeat) if episode.input_log else 0


def try_align(
    set_name: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode | None:
    """Return the episode with one action per step, or None to keep it; print the outcome."""
    from lookfurther.demos.align import hold_episode_actions, imitation_score, verified_episode

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

    aligned = _search_alignment(label, episode, env, action_repeat)
    if aligned is None:
        return None
    if aligned.score <= own_score:
        scores = f"its own actions give {own}, aligned ones {format_number(aligned.score)}"
        print(f"{label}: {scores}, kept as it is: {size}", flush=True)
        return None
    result = f"{format_episode_size(aligned)}, of {format_number(episode.score)}"
    print(f"{label}: {result}; {ambiguous} before, whose actions gave {own}, none now", flush=True)
    return aligned


def _search_alignment(label: str, episode: Episode, env: str, action_repeat: int) -> Episode | None:
    """Align an episode and print the progress; return None if the search fails."""
    from lookfurther.demos.align import AlignmentLost, align_episode

    def print_progress(step: int, steps: int) -> None:
        if step % PROGRESS_PERIOD == 0 or step == steps:
            print(f"{label}: step {step:,} of {steps:,}", flush=True)

    try:
        return align_episode(episode, env, action_repeat, print_progress)
    except AlignmentLost as error:
        print(f"{label}: {error}, kept as it is: {format_episode_size(episode)}", flush=True)
        return None
