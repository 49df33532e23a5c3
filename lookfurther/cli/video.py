"""lookfurther video RUN [--demos SET ...] [--out FILE] [--episodes N] [--seed N] [--watch]"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lookfurther.cli.options.parsing import Flag, check_writable, parse_options
from lookfurther.errors import ConfigError
from lookfurther.system.formatting import format_number
from lookfurther.system.printable import make_printable

if TYPE_CHECKING:
    from lookfurther.agent import Agent
    from lookfurther.video.players import ExpertEpisode

LIVE_WIDTH = 960  # pixels, in the browser


@dataclass(frozen=True)
class VideoOptions:
    """Show an agent next to the expert it learned from, as a video or live in the browser."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """run folder, checkpoint or export"""
    demos: tuple[str, ...] = ()
    """demonstration sets of the expert; empty: those of the run"""
    out: Path = Path("video.mp4")
    """video file, .mp4 or .gif"""
    episodes: int = 1
    """pairs shown one after another, starting with the best demonstration"""
    seed: int = 0
    """seed of the agent's first episode; each later episode adds one"""
    speed: float = 0.0
    """playback speed; 0: fast enough that no episode lasts more than a minute"""
    watch: Flag = False
    """play live in the browser instead, one pair after another"""
    host: str = "127.0.0.1"
    """address of the page"""
    port: int = 0
    """port of the page; 0: any free port"""
    modules: tuple[str, ...] = ()
    """modules to import first: they register the environment or define its wrappers"""


def run(args: list[str]) -> int:
    """Write the video and print the scores, or play live."""
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
    experts = load_experts(agent, options.demos or agent.config.demos)
    show = watch_live if options.watch else write_comparison
    return show(options, agent, experts)


def write_comparison(options: VideoOptions, agent: Agent, experts: list[ExpertEpisode]) -> int:
    """Write the video and print a line for each pair."""
    from lookfurther.envs.naming import short_env_title
    from lookfurther.video import VIDEO_WIDTHS, write_video
    from lookfurther.video.chart import format_time
    from lookfurther.video.layout import VideoLayout
    from lookfurther.video.playback import EnvView
    from lookfurther.video.players import make_pair

    seeds = range(options.seed, options.seed + options.episodes)
    chosen = experts[: options.episodes] or [None] * options.episodes
    env_view = EnvView.from_config(agent.config, agent.spec)
    pairs = [
        make_pair(agent, env_view, expert, seed)
        for expert, seed in zip(chosen, seeds, strict=False)
    ]
    layout = VideoLayout(
        short_env_title(env_view.spec.env), env_view, VIDEO_WIDTHS[options.out.suffix.lower()]
    )
    log = partial(print, file=sys.stderr, flush=True)
    results = write_video(layout, pairs, options.out, options.speed, log)
    for players, result in zip(pairs, results, strict=True):
        scores = zip(players, result.scores, strict=True)
        parts = [f"{player.name.lower()} {format_number(score)}" for player, score in scores]
        if result.overtaking_frame is not None:
            parts.append(f"the agent leads from {format_time(result.overtaking_frame, env_view)}")
        print(", ".join(parts))
    print(f"video: {options.out}")
    return 0


def watch_live(options: VideoOptions, agent: Agent, experts: list[ExpertEpisode]) -> int:
    """Serve the page until Ctrl-C."""
    try:
        from lookfurther.recorder.server import serve_page
    except ImportError as error:
        raise ConfigError(f"--watch needs {error.name}: install lookfurther[record]") from None
    from lookfurther.recorder.watch import WatchSession

    def announce(address: str) -> None:
        print(f"watch {make_printable(agent.config.env)} at {address}")
        print("press Ctrl-C to stop", flush=True)

    source = WatchSession(agent, experts, options.seed, LIVE_WIDTH)
    with contextlib.suppress(KeyboardInterrupt):
        serve_page(source, options.host, options.port, announce)
    return 0
