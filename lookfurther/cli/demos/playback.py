"""lookfurther demos verify, play"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import tyro

from lookfurther.cli.demos.arguments import OutputPath, SetName, SetNames
from lookfurther.cli.demos.formatting import format_audit
from lookfurther.cli.options.parsing import check_writable
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode, best_episode_index
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.formatting import format_number, pluralize
from lookfurther.system.printable import make_printable

ATARI_FPS, OTHER_FPS = 60.0, 10.0  # emulator frames per second; steps of other environments
MAX_VIDEO_FPS = 30.0  # above it, frames are skipped
MAX_SCALE = 32  # factor by which frames can be enlarged
MIN_VIDEO_HEIGHT = 420  # pixels that small frames are enlarged to


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


def verify_sets(options: VerifyOptions) -> int:
    """Replay sets; return the exit code of DemonstrationError if an episode differs."""
    if not options.names:
        raise ConfigError("verify needs the name of a set: lookfurther demos list shows them")
    mismatches = sum(_count_mismatches(name, options.modules) for name in options.names)
    return DemonstrationError.exit_code if mismatches else 0


def _count_mismatches(name_or_path: str, modules: tuple[str, ...]) -> int:
    """Print the audit of each episode; return the number of episodes that differ."""
    from lookfurther.demos.verify import verify_episodes

    name, description, episodes = catalog.open_set(name_or_path)
    env_config = storage.trusted_env_config(description, modules)
    audits = verify_episodes(episodes, description.spec, env_config, modules)
    mismatches = 0
    for i, audit in enumerate(audits):
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
    if not 0 < options.speed <= 1000:
        raise ConfigError(f"--speed must be above 0 and at most 1000, not {options.speed:g}")
    if not 0 <= options.scale <= MAX_SCALE:
        raise ConfigError(f"--scale must be 0 ... {MAX_SCALE}, not {options.scale}")
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
    stride = math.ceil(rate * options.speed / MAX_VIDEO_FPS)
    return list(range(options.begin, end + 1, stride)), rate * options.speed / stride
