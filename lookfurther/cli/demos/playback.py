"""lookfurther demos verify, play, align"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import tyro

from lookfurther.cli.demos.arguments import Name, Names, Out
from lookfurther.cli.demos.formatting import found, number, plural, sized
from lookfurther.cli.demos.transfer import announce
from lookfurther.cli.parsing import check_output
from lookfurther.config import Environment
from lookfurther.demos import catalog, storage
from lookfurther.demos.episode import Episode, best
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.system.parallel import each
from lookfurther.system.printable import printable

ATARI, OTHER = 60.0, 10.0  # frames of a game a second; steps of other environments
SMOOTH = 30.0  # pictures a second beyond which some are left out
HEIGHT = 420  # pixels that small pictures are enlarged to
SAID = 200  # steps of an alignment from one line of progress to the next


@dataclass(frozen=True)
class VerifyOptions:
    """Replay every episode of sets: equal, or the first difference."""

    names: Names = ()
    """the sets"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


@dataclass(frozen=True)
class PlayOptions:
    """Make an animated picture or a film of an episode."""

    name: Name = tyro.MISSING
    """the set"""
    out: Out = tyro.MISSING
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

    source: Name = tyro.MISSING
    """the set"""
    name: str = ""
    """the new set"""


def verify_sets(options: VerifyOptions) -> int:
    """Replay sets; the exit code is that of bad demonstrations where anything differs."""
    if not options.names:
        raise ConfigError("verify needs the name of a set: lookfurther demos list has them")
    differ = sum(_differ(name, options.modules) for name in options.names)
    return DemonstrationError.exit_code if differ else 0


def _differ(word: str, modules: tuple[str, ...]) -> int:
    """How many episodes of a set differ from their replay; prints each."""
    from lookfurther.demos.verify import verify

    name, description, episodes = catalog.opened(word)
    environment = catalog.trusted(description, modules)
    replay = partial(verify, spec=description.spec, environment=environment)
    differ = 0
    for i, audit in enumerate(each(replay, episodes)):
        differ += not audit.verified
        print(f"{printable(name)}, episode {i}: {found(audit)}{_forced(episodes[i])}", flush=True)
    how = f"{differ} of them not equal" if differ else "all equal"
    print(f"{name}: {plural(len(episodes), 'episode')}, {how}")
    return differ


def _forced(episode: Episode) -> str:
    """What an import by force had to overlook: a replay of what it made cannot show it."""
    overlooked = episode.audit.mismatch if episode.audit else ""
    return f", but imported by force: {printable(overlooked)}" if overlooked else ""


def play(options: PlayOptions) -> int:
    """Write the animation and say what it shows."""
    from lookfurther.video.encode import check_film

    check_film(options.out)
    check_output("OUT", options.out)
    held = catalog.opened(options.name)
    chosen = best(held.episodes) if options.episode == -1 else options.episode
    if not 0 <= chosen < len(held.episodes):
        raise ConfigError(f"{held.name} has episodes 0 ... {len(held.episodes) - 1}, not {chosen}")
    steps = draw(options, held, held.episodes[chosen])
    score = number(held.episodes[chosen].score)
    print(f"{options.out}: {held.name}, episode {chosen}, return {score}, steps {steps}")
    return 0


def draw(options: PlayOptions, held: catalog.Held, episode: Episode) -> str:
    """Write the animation of an episode; the steps it shows."""
    from lookfurther.cli.demos.render import pictures
    from lookfurther.video.encode import animate, check_length

    environment = catalog.trusted(held.description, options.modules)
    rate = ATARI / environment.repeat if episode.tape else OTHER
    steps, fps = moments(options, len(episode), rate)
    check_length(options.out, len(steps))
    drawn = iter(pictures(episode, held.description.spec, environment, steps))
    first = next(drawn)
    frames = itertools.chain([first], drawn)
    scale = options.scale or max(1, round(HEIGHT / len(first)))
    returns = [0.0, *episode.rewards.cumsum(dtype=float).tolist()]
    captions = [f"score {number(returns[step])}   step {step:,}" for step in steps]
    animate(frames, options.out, fps, scale, captions)
    return f"{steps[0]:,} to {steps[-1]:,}"


def moments(options: PlayOptions, length: int, rate: float) -> tuple[list[int], float]:
    """The steps to show, and how many of them a second."""
    end = options.end or length
    if not 0 <= options.begin < end <= length:
        raise ConfigError(f"--begin and --end must lie in 0 ... {length}, in this order")
    if not 0 < options.speed <= 1000:
        raise ConfigError(f"--speed must be above 0 and at most 1000, not {options.speed:g}")
    stride = math.ceil(rate * options.speed / SMOOTH)
    return list(range(options.begin, end + 1, stride)), rate * options.speed / stride


def align_set(options: AlignOptions) -> int:
    """Save a new set; what cannot be played so is in it as it was."""
    name, held = catalog.new(options.name), catalog.opened(options.source)
    environment = storage.environment_of(held.description)
    alignable(held, environment)
    numbered = list(enumerate(held.episodes))
    work = partial(aligned, held.name, held.description.spec.env, environment.repeat)
    found = list(each(work, numbered))
    if not any(found):
        raise DemonstrationError(f"no episode of {held.name} could be aligned: use it as it is")
    episodes = [new or old for new, old in zip(found, held.episodes, strict=True)]
    source = f"aligned from {held.name}"
    place = storage.save(name, episodes, held.description.spec, source, environment=environment)
    announce(name, episodes, place)
    return 0


def alignable(held: catalog.Held, environment: Environment) -> None:
    """Refuse a set in which there is nothing to align, or no way to."""
    if not held.description.origin.game:
        raise DemonstrationError(f"{held.name} is not of an Atari game: only those are aligned")
    if environment.sticky:
        raise DemonstrationError(f"{held.name} has sticky actions: such games cannot be aligned")
    if not any(several(episode, environment.repeat) for episode in held.episodes):
        raise DemonstrationError(f"{held.name} has one action in every step: use it as it is")


def several(episode: Episode, repeat: int) -> int:
    """How many steps of an episode hold more than one action."""
    from lookfurther.demos.playback import ambiguous

    return ambiguous(episode.tape, repeat) if episode.tape else 0


def aligned(label: str, env: str, repeat: int, numbered: tuple[int, Episode]) -> Episode | None:
    """One episode with one action a step, None to keep it as it was; says which."""
    from lookfurther.demos.align import Astray, align, done, own_actions, verified

    i, episode = numbered
    label = f"{label}, episode {i}"
    before = several(episode, repeat)
    if not before:
        print(f"{label}: one action in every step, kept as it is", flush=True)
        return None

    own = done(episode, env, repeat)
    if own == episode.score:
        print(f"{label}: its own actions, one in every step, give {number(own)}", flush=True)
        return verified(own_actions(episode, env, repeat), env, repeat)
    gave = f"{plural(before, 'ambiguous block')}, whose actions give {number(own)}"
    print(f"{label}: {sized(episode)}; {gave}: searching", flush=True)

    def say(step: int, steps: int) -> None:
        if step % SAID == 0 or step == steps:
            print(f"{label}: step {step:,} of {steps:,}", flush=True)

    try:
        new = align(episode, env, repeat, say)
    except Astray as error:
        print(f"{label}: {error}, kept as it is: {sized(episode)}", flush=True)
        return None
    if new.score <= own:
        better = f"its own actions give {number(own)}, aligned ones {number(new.score)}"
        print(f"{label}: {better}, kept as it is: {sized(episode)}", flush=True)
        return None
    blocks = plural(before, "ambiguous block")
    gave = f"{blocks} before, whose actions gave {number(own)}, none now"
    print(f"{label}: {sized(new)}, of {number(episode.score)}; {gave}", flush=True)
    return new
