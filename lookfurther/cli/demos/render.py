"""Episodes as pictures in colour: played again where that can be, else what training sees."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from lookfurther.cli.demos.formatting import format_episode_size, pluralize
from lookfurther.config import EnvConfig
from lookfurther.demos.catalog import DemoSet
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import make_emulator, play_log, step_ends
from lookfurther.envs.factory import EnvFactory, find_env_spec
from lookfurther.envs.lane import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.system.printable import make_printable
from lookfurther.types import Spec

FRAMES_PER_EPISODE, MAX_SHEET_EPISODES = 8, 10  # of a sheet: pictures of an episode, episodes


def render_frames(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """RGB pictures [height, width, 3] of an episode after each of these numbers of steps."""
    if episode.input_log is not None and episode.audit is not None and episode.audit.verified:
        return _render_with_emulator(episode, spec, env_config, steps)
    if len(spec.plane) == 3 and spec.plane[0] in (1, 3) and spec.dtype == "uint8":
        return (_plane_to_rgb(episode.planes[step], spec.high) for step in steps)
    return _render_with_env(episode, spec, env_config, steps)


def _render_with_emulator(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """From the emulator: the brighter of a step's last two frames, as many sprites flicker."""
    tape, repeat = episode.input_log, env_config.action_repeat
    assert tape is not None
    emulator = make_emulator(tape, spec.env, repeat, env_config.sticky_prob)
    ends = set(step_ends(tape, repeat)[np.asarray(steps)].tolist())
    before = emulator.rgb_screen()
    if 0 in ends:
        yield before
    for i, _ in enumerate(play_log(tape, emulator), 1):
        if i in ends or i + 1 in ends:
            screen = emulator.rgb_screen()
            if i in ends:
                yield np.maximum(before, screen) if repeat > 1 else screen
            before = screen


def _plane_to_rgb(plane: np.ndarray, max_value: float) -> np.ndarray:
    """A plane of one or three channels as RGB."""
    bright = np.rint(plane * (255 / max_value)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(bright, (3, *plane.shape[1:])).transpose(1, 2, 0))


def _render_with_env(
    episode: Episode, spec: Spec, env_config: EnvConfig, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """From the environment's own drawing, played again from the seed."""
    if episode.seed is None:
        raise DemonstrationError(f"{spec.env} cannot be drawn: no seed, and planes {spec.plane}")
    source = copy.deepcopy(find_env_spec(spec.env))
    source.kwargs["render_mode"] = "rgb_array"
    lane = Lane(EnvFactory(source, env_config), 0, 0)
    wanted = set(steps)
    with closing(lane):
        plane, *_ = lane.begin_episode(seed=episode.seed)
        for t in range(len(episode) + 1):
            if not np.array_equal(plane, episode.planes[t]):
                raise DemonstrationError(f"{spec.env} cannot be drawn: its replay differs at {t}")
            if t in wanted:
                yield lane.render_rgb(spec.env)
            if t < len(episode):
                plane, *_ = lane.step(int(episode.actions[t]))


def draw_set_sheet(
    held: DemoSet, env_config: EnvConfig, action_counts: Mapping[str, int], out: Path
) -> None:
    """The best episodes of a set on one page."""
    from matplotlib import rc_context

    from lookfurther.report.contact_sheet import EpisodeRow, write_contact_sheet

    name, description, episodes = held
    order = sorted(range(len(episodes)), key=lambda i: -episodes[i].score)
    rows = []
    for i in order[:MAX_SHEET_EPISODES]:
        episode = episodes[i]
        steps = (
            np.linspace(0, len(episode), min(FRAMES_PER_EPISODE, len(episode) + 1))
            .round()
            .astype(int)
        )
        shown = list(render_frames(episode, description.spec, env_config, steps.tolist()))
        returns = np.concatenate([[0.0], episode.rewards.cumsum(dtype=np.float64)])
        rows.append(EpisodeRow(_episode_label(i, episode), shown, steps.tolist(), returns))
    more = f"; the best {MAX_SHEET_EPISODES} are shown" if len(order) > MAX_SHEET_EPISODES else ""
    size = f"{pluralize(len(order), 'episode')}, {pluralize(sum(map(len, episodes)), 'step')}{more}"
    title = f"{make_printable(name)} · {make_printable(description.spec.env)}"
    taken = {make_printable(action): count for action, count in action_counts.items()}
    with rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        write_contact_sheet(title, size, rows, taken, out)


def _episode_label(i: int, episode: Episode) -> str:
    verified = episode.audit is not None and episode.audit.verified
    return (
        f"episode {i}: {format_episode_size(episode)}, {'verified' if verified else 'not verified'}"
    )
