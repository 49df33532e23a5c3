"""RGB frames of episodes: rendered in a replay if possible, else the stored planes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from lookfurther.cli.demos.formatting import format_episode_size
from lookfurther.config import EnvConfig
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import (
    make_emulator,
    make_lane,
    play_from_seed,
    play_steps,
    step_ends,
)
from lookfurther.errors import DemonstrationError
from lookfurther.system.formatting import pluralize
from lookfurther.system.printable import make_printable
from lookfurther.types import Spec

FRAMES_PER_EPISODE, MAX_SHEET_EPISODES = 8, 10  # of a contact sheet


def render_frames(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yield RGB frames [height, width, 3] of an episode after each of `steps`."""
    if episode.input_log is not None and episode.audit is not None and episode.audit.verified:
        return _render_with_emulator(episode, spec, env_config, steps)
    if len(spec.plane) == 3 and spec.plane[0] in (1, 3) and spec.dtype == "uint8":
        return (_plane_to_rgb(episode.planes[step], spec.high) for step in steps)
    return _render_with_env(episode, spec, env_config, steps)


def _render_with_emulator(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """The brighter of the last two emulator frames of each step: many sprites flicker."""
    input_log, action_repeat = episode.input_log, env_config.action_repeat
    assert input_log is not None
    emulator = make_emulator(input_log, spec.env, action_repeat, env_config.sticky_prob)
    ends = set(step_ends(input_log, action_repeat)[np.asarray(steps)].tolist())
    previous = screen = emulator.rgb_screen()
    for i, _ in enumerate(play_steps(input_log, emulator, action_repeat=1)):
        if i in ends or i + 1 in ends:
            previous, screen = screen, emulator.rgb_screen()
        if i in ends:
            yield np.maximum(previous, screen) if action_repeat > 1 else screen


def _plane_to_rgb(plane: np.ndarray, max_value: float) -> np.ndarray:
    """Convert a plane of one or three channels to RGB."""
    scaled = np.rint(plane * (255 / max_value)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(scaled, (3, *plane.shape[1:])).transpose(1, 2, 0))


def _render_with_env(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """The images that the environment draws while the episode is played from its seed."""
    if episode.seed is None:
        raise DemonstrationError(f"{spec.env} cannot be drawn: no seed, and planes {spec.plane}")
    wanted, t = set(steps), -1
    with closing(make_lane(spec.env, env_config, render=True)) as lane:
        for t, step in enumerate(play_from_seed(episode, lane)):
            (plane,) = step.planes
            if not np.array_equal(plane, episode.planes[t]):
                raise DemonstrationError(f"{spec.env} cannot be drawn: its replay differs at {t}")
            if t in wanted:
                yield lane.render_rgb(spec.env)
    if t < len(episode):
        raise DemonstrationError(f"{spec.env} cannot be drawn: its replay differs at {t + 1}")


def draw_set_sheet(
    demo_set: DemoSet, env_config: EnvConfig, action_counts: Mapping[str, int], out: Path
) -> None:
    """Draw the best episodes of a set on one page."""
    from matplotlib import rc_context

    from lookfurther.report.contact_sheet import EpisodeRow, write_contact_sheet

    name, description, episodes = demo_set
    order = sorted(range(len(episodes)), key=lambda i: -episodes[i].score)
    rows = []
    for i in order[:MAX_SHEET_EPISODES]:
        episode = episodes[i]
        count = min(FRAMES_PER_EPISODE, len(episode) + 1)
        steps = np.linspace(0, len(episode), count).round().astype(int).tolist()
        frames = list(render_frames(episode, description.spec, env_config, steps))
        returns = np.concatenate([[0.0], episode.rewards.cumsum(dtype=np.float64)])
        rows.append(EpisodeRow(_episode_label(i, episode), frames, steps, returns))
    more = f"; the best {MAX_SHEET_EPISODES} are shown" if len(order) > MAX_SHEET_EPISODES else ""
    size = f"{pluralize(len(order), 'episode')}, {pluralize(sum(map(len, episodes)), 'step')}{more}"
    title = f"{make_printable(name)} · {make_printable(description.spec.env)}"
    counts = {make_printable(action): count for action, count in action_counts.items()}
    with rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        write_contact_sheet(title, size, rows, counts, out)


def _episode_label(i: int, episode: Episode) -> str:
    is_verified = episode.audit is not None and episode.audit.verified
    verified = "verified" if is_verified else "not verified"
    return f"episode {i}: {format_episode_size(episode)}, {verified}"
