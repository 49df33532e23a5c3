"""lookfurther video RUN [--demos SET ...] [--out FILE] [--episodes N] [--seed N] [--watch]"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.parsing import check_writable, parse_options
from lookfurther.errors import ConfigError
from lookfurther.system.printable import make_printable

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.video.players import ExpertEpisode

LIVE_WIDTH = 960  # pixels of the picture in a browser


@dataclass(frozen=True)
class VideoOptions:
    """An agent at play beside the expert it learned from, as a film or live in the browser."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder, checkpoint or export"""
    demos: tuple[str, ...] = ()
    """sets of the expert's episodes; empty: those the run was trained on"""
    out: Path = Path("video.mp4")
    """the film, an .mp4 or a .gif"""
    episodes: int = 1
    """pairs shown one after another, beginning with the best demonstration"""
    seed: int = 0
    """of the agent's first episode; each has the next one"""
    speed: float = 0.0
    """times the game's own; 0: such that no episode lasts more than a minute"""
    watch: bool = False
    """live in the browser instead, one pair after another"""
    host: str = "127.0.0.1"
    """address to serve the page at"""
    port: int = 0
    """port to serve it at; 0: any that is free"""
    modules: tuple[str, ...] = ()
    """modules to import first: those that register the environment or hold its wrappers"""


def run(args: list[str]) -> int:
    """Write the film and say how the plays went, or show them live."""
    options = parse_options(VideoOptions, VideoOptions(), args, "lookfurther video")
    if options.episodes < 1 or not 0 <= options.seed < 2**31 - options.episodes:
        raise ConfigError("--episodes must be at least 1 and --seed 0 ... 2^31 - 1")
    if not 0 <= options.speed <= 1000:
        raise ConfigError(f"--speed must be 0 ... 1000, not {options.speed:g}")
    if not options.watch:
        from lookfurther.video.encode import check_video_path

        check_video_path(options.out)
        check_writable("--out", options.out)
    from lookfurther.agent import Agent
    from lookfurther.video.players import load_experts

    agent = Agent.load(options.run, modules=options.modules)
    found = load_experts(agent, options.demos or agent.config.demos)
    return (
        watch_live(options, agent, found) if options.watch else write_video(options, agent, found)
    )


def write_video(options: VideoOptions, agent: Agent, experts: list[ExpertEpisode]) -> int:
    """The film, and a line for each pair in it."""
    from lookfurther.envs.naming import short_env_title
    from lookfurther.video import VIDEO_WIDTHS, write_video
    from lookfurther.video.chart import format_return, format_time
    from lookfurther.video.layout import VideoLayout
    from lookfurther.video.playback import EnvView
    from lookfurther.video.players import make_pair

    seeds = range(options.seed, options.seed + options.episodes)
    cast = experts[: options.episodes] or [None] * options.episodes
    scene = EnvView.from_config(agent.config, agent.spec)
    pairs = [
        make_pair(agent, scene, expert, seed) for expert, seed in zip(cast, seeds, strict=False)
    ]
    stage = VideoLayout(
        short_env_title(scene.spec.env), scene, VIDEO_WIDTHS[options.out.suffix.lower()]
    )
    tell = partial(print, file=sys.stderr, flush=True)
    played = write_video(stage, pairs, options.out, options.speed, tell)
    for sides, shown in zip(pairs, played, strict=True):
        who = [
            f"{s.name.lower()} {format_return(x)}" for s, x in zip(sides, shown.scores, strict=True)
        ]
        if shown.overtaking_frame is not None:
            who.append(f"the agent goes ahead at {format_time(shown.overtaking_frame, scene)}")
        print(", ".join(who))
    print(f"film: {options.out}")
    return 0


def watch_live(options: VideoOptions, agent: Agent, experts: list[ExpertEpisode]) -> int:
    """Serve the page until it is stopped."""
    try:
        from lookfurther.recorder.server import serve
    except ImportError as error:
        raise ConfigError(f"--watch needs {error.name}: install lookfurther[record]") from None
    from lookfurther.recorder.watch import WatchSession

    def announce(address: str) -> None:
        print(f"watch {make_printable(agent.config.env)} at {address}; Ctrl-C ends", flush=True)

    source = WatchSession(agent, experts, options.seed, LIVE_WIDTH)
    with contextlib.suppress(KeyboardInterrupt):
        serve(source, options.host, options.port, announce)
    return 0
