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
from lookfurther.system.printable import make_printable
from lookfurther.system.processes import parallel_map

ATARI_FPS, OTHER_FPS = 60.0, 10.0  # frames of a game a second; steps of other environments
MAX_VIDEO_FPS = 30.0  # pictures a second beyond which some are left out
MIN_VIDEO_HEIGHT = 420  # pixels that small pictures are enlarged to
PROGRESS_PERIOD = 200  # steps of an alignment from one line of progress to the next


@dataclass(frozen=True)
class VerifyOptions:
    """Replay every episode of sets: equal, or the first difference."""

    names: SetNames = ()
    """the sets"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


@dataclass(frozen=True)
class PlayOptions:
    """Make an animated picture or a film of an episode."""

    name: SetName = tyro.MISSING
    """the set"""
    out: OutputPath = tyro.MISSING
    """file to write: .gif or .mp4"""
    episode: int = -1
    """its number; -1: the best"""
    begin: int = 0
    """first step shown"""
    end: int = 0
    """last step shown; 0: the episode's last"""
    speed: float = 1.0
    """how many times as fast as the game"""
    scale: int = 0
    """pixels for each of the picture's; 0: chosen from its size"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


@dataclass(frozen=True)
class AlignOptions:
    """Play a human's games again with one action in every step."""

    source: SetName = tyro.MISSING
    """the set"""
    name: str = ""
    """the new set"""


def verify_sets(options: VerifyOptions) -> int:
    """Replay sets; the exit code is that of bad demonstrations where anything differs."""
    if not options.names:
        raise ConfigError("verify needs the name of a set: lookfurther demos list has them")
    differ = sum(_count_mismatches(name, options.modules) for name in options.names)
    return DemonstrationError.exit_code if differ else 0


def _count_mismatches(name_or_path: str, modules: tuple[str, ...]) -> int:
    """How many episodes of a set differ from their replay; prints each."""
    from lookfurther.demos.verify import verify_episode

    name, description, episodes = catalog.open_set(name_or_path)
    environment = catalog.trusted_env_config(description, modules)
    replay = partial(verify_episode, spec=description.spec, env_config=environment)
    differ = 0
    for i, audit in enumerate(parallel_map(replay, episodes)):
        differ += not audit.verified
        print(
            f"{make_printable(name)}, episode {i}: {format_audit(audit)}"
            f"{_format_forced_import(episodes[i])}",
            flush=True,
        )
    how = f"{differ} of them not equal" if differ else "all equal"
    print(f"{name}: {pluralize(len(episodes), 'episode')}, {how}")
    return differ


def _format_forced_import(episode: Episode) -> str:
    """What an import by force had to overlook: a replay of what it made cannot show it."""
    overlooked = episode.audit.mismatch if episode.audit else ""
    return f", but imported by force: {make_printable(overlooked)}" if overlooked else ""


def write_animation(options: PlayOptions) -> int:
    """Write the animation and say what it shows."""
    from lookfurther.video.encode import check_video_path

    check_video_path(options.out)
    check_writable("OUT", options.out)
    held = catalog.open_set(options.name)
    chosen = best_episode_index(held.episodes) if options.episode == -1 else options.episode
    if not 0 <= chosen < len(held.episodes):
        raise ConfigError(f"{held.name} has episodes 0 ... {len(held.episodes) - 1}, not {chosen}")
    steps = animate_episode(options, held, held.episodes[chosen])
    score = format_number(held.episodes[chosen].score)
    print(f"{options.out}: {held.name}, episode {chosen}, return {score}, steps {steps}")
    return 0


def animate_episode(options: PlayOptions, held: catalog.DemoSet, episode: Episode) -> str:
    """Write the animation of an episode; the steps it shows."""
    from lookfurther.cli.demos.render import render_frames
    from lookfurther.video.encode import check_gif_length, write_animation

    environment = catalog.trusted_env_config(held.description, options.modules)
    rate = ATARI_FPS / environment.action_repeat if episode.input_log else OTHER_FPS
    steps, fps = select_steps(options, len(episode), rate)
    check_gif_length(options.out, len(steps))
    drawn = iter(render_frames(episode, held.description.spec, environment, steps))
    first = next(drawn)
    frames = itertools.chain([first], drawn)
    scale = options.scale or max(1, round(MIN_VIDEO_HEIGHT / len(first)))
    returns = [0.0, *episode.rewards.cumsum(dtype=float).tolist()]
    captions = [f"score {format_number(returns[step])}   step {step:,}" for step in steps]
    write_animation(frames, options.out, fps, scale, captions)
    return f"{steps[0]:,} to {steps[-1]:,}"


def select_steps(options: PlayOptions, length: int, rate: float) -> tuple[list[int], float]:
    """The steps to show, and how many of them a second."""
    end = options.end or length
    if not 0 <= options.begin < end <= length:
        raise ConfigError(f"--begin and --end must lie in 0 ... {length}, in this order")
    if not 0 < options.speed <= 1000:
        raise ConfigError(f"--speed must be above 0 and at most 1000, not {options.speed:g}")
    stride = math.ceil(rate * options.speed / MAX_VIDEO_FPS)
    return list(range(options.begin, end + 1, stride)), rate * options.speed / stride


def align_set(options: AlignOptions) -> int:
    """Save a new set; what cannot be played so is in it as it was."""
    name, held = catalog.new_set_id(options.name), catalog.open_set(options.source)
    environment = storage.recorded_env_config(held.description)
    check_alignable(held, environment)
    numbered = list(enumerate(held.episodes))
    work = partial(try_align, held.name, held.description.spec.env, environment.action_repeat)
    found = list(parallel_map(work, numbered))
    if not any(found):
        raise DemonstrationError(f"no episode of {held.name} could be aligned: use it as it is")
    episodes = [new or old for new, old in zip(found, held.episodes, strict=True)]
    source = f"aligned from {held.name}"
    place = storage.save_episodes(
        name, episodes, held.description.spec, source, env_config=environment
    )
    print_saved_set(name, episodes, place)
    return 0


def check_alignable(held: catalog.DemoSet, env_config: EnvConfig) -> None:
    """Refuse a set in which there is nothing to align, or no way to."""
    if not held.description.origin.game:
        raise DemonstrationError(f"{held.name} is not of an Atari game: only those are aligned")
    if env_config.sticky_prob:
        raise DemonstrationError(f"{held.name} has sticky actions: such games cannot be aligned")
    if not any(
        count_ambiguous_steps(episode, env_config.action_repeat) for episode in held.episodes
    ):
        raise DemonstrationError(f"{held.name} has one action in every step: use it as it is")


def count_ambiguous_steps(episode: Episode, action_repeat: int) -> int:
    """How many steps of an episode hold more than one action."""
    from lookfurther.demos.playback import count_ambiguous_steps

    return count_ambiguous_steps(episode.input_log, action_repeat) if episode.input_log else 0


def try_align(
    label: str, env: str, action_repeat: int, numbered: tuple[int, Episode]
) -> Episode | None:
    """One episode with one action a step, None to keep it as it was; says which."""
    from lookfurther.demos.align import (
        AlignmentLost,
        align_episode,
        hold_episode_actions,
        imitation_score,
        verified_episode,
    )

    i, episode = numbered
    label = f"{label}, episode {i}"
    before = count_ambiguous_steps(episode, action_repeat)
    if not before:
        print(f"{label}: one action in every step, kept as it is", flush=True)
        return None

    own = imitation_score(episode, env, action_repeat)
    if own == episode.score:
        print(f"{label}: its own actions, one in every step, give {format_number(own)}", flush=True)
        return verified_episode(
            hold_episode_actions(episode, env, action_repeat), env, action_repeat
        )
    gave = f"{pluralize(before, 'ambiguous block')}, whose actions give {format_number(own)}"
    print(f"{label}: {format_episode_size(episode)}; {gave}: searching", flush=True)

    def say(step: int, steps: int) -> None:
        if step % PROGRESS_PERIOD == 0 or step == steps:
            print(f"{label}: step {step:,} of {steps:,}", flush=True)

    try:
        new = align_episode(episode, env, action_repeat, say)
    except AlignmentLost as error:
        print(f"{label}: {error}, kept as it is: {format_episode_size(episode)}", flush=True)
        return None
    if new.score <= own:
        better = (
            f"its own actions give {format_number(own)}, aligned ones {format_number(new.score)}"
        )
        print(f"{label}: {better}, kept as it is: {format_episode_size(episode)}", flush=True)
        return None
    blocks = pluralize(before, "ambiguous block")
    gave = f"{blocks} before, whose actions gave {format_number(own)}, none now"
    print(
        f"{label}: {format_episode_size(new)}, of {format_number(episode.score)}; {gave}",
        flush=True,
    )
    return new
