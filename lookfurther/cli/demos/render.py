"""Episodes as pictures in colour: played again where that can be, else what training sees."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from lookfurther.cli.demos.formatting import plural, sized
from lookfurther.config import Environment
from lookfurther.demos.catalog import Held
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import emulator_of, play, step_ends
from lookfurther.envs.factory import Blueprint, find
from lookfurther.envs.sync import Lane
from lookfurther.errors import DemonstrationError
from lookfurther.system.printable import printable
from lookfurther.types import Spec

PICTURES, ROWS = 8, 10  # of a sheet: pictures of an episode, episodes


def pictures(
    episode: Episode, spec: Spec, environment: Environment, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """RGB pictures [height, width, 3] of an episode after each of these numbers of steps."""
    if episode.tape is not None and episode.audit is not None and episode.audit.verified:
        return _emulated(episode, spec, environment, steps)
    if len(spec.plane) == 3 and spec.plane[0] in (1, 3) and spec.dtype == "uint8":
        return (_coloured(episode.planes[step], spec.high) for step in steps)
    return _rendered(episode, spec, environment, steps)


def _emulated(
    episode: Episode, spec: Spec, environment: Environment, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """From the emulator: the brighter of a step's last two frames, as many sprites flicker."""
    tape, repeat = episode.tape, environment.repeat
    assert tape is not None
    emulator = emulator_of(tape, spec.env, repeat, environment.sticky)
    ends = set(step_ends(tape, repeat)[np.asarray(steps)].tolist())
    before = emulator.screen()
    if 0 in ends:
        yield before
    for i, _ in enumerate(play(tape, emulator), 1):
        if i in ends or i + 1 in ends:
            screen = emulator.screen()
            if i in ends:
                yield np.maximum(before, screen) if repeat > 1 else screen
            before = screen


def _coloured(plane: np.ndarray, high: float) -> np.ndarray:
    """A plane of one or three channels as RGB."""
    bright = np.rint(plane * (255 / high)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(bright, (3, *plane.shape[1:])).transpose(1, 2, 0))


def _rendered(
    episode: Episode, spec: Spec, environment: Environment, steps: Sequence[int]
) -> Iterator[np.ndarray]:
    """From the environment's own drawing, played again from the seed."""
    if episode.seed is None:
        raise DemonstrationError(f"{spec.env} cannot be drawn: no seed, and planes {spec.plane}")
    source = copy.deepcopy(find(spec.env))
    source.kwargs["render_mode"] = "rgb_array"
    lane = Lane(Blueprint(source, environment), 0, 0)
    wanted = set(steps)
    with closing(lane):
        plane, *_ = lane.begin(seed=episode.seed)
        for t in range(len(episode) + 1):
            if not np.array_equal(plane, episode.planes[t]):
                raise DemonstrationError(f"{spec.env} cannot be drawn: its replay differs at {t}")
            if t in wanted:
                yield lane.picture(spec.env)
            if t < len(episode):
                plane, *_ = lane.step(int(episode.actions[t]))


def draw_sheet(held: Held, environment: Environment, actions: Mapping[str, int], out: Path) -> None:
    """The best episodes of a set on one page."""
    from matplotlib import rc_context

    from lookfurther.report.contact_sheet import Row, sheet

    name, description, episodes = held
    order = sorted(range(len(episodes)), key=lambda i: -episodes[i].score)
    rows = []
    for i in order[:ROWS]:
        episode = episodes[i]
        steps = np.linspace(0, len(episode), min(PICTURES, len(episode) + 1)).round().astype(int)
        shown = list(pictures(episode, description.spec, environment, steps.tolist()))
        returns = np.concatenate([[0.0], episode.rewards.cumsum(dtype=np.float64)])
        rows.append(Row(_label(i, episode), shown, steps.tolist(), returns))
    more = f"; the best {ROWS} are shown" if len(order) > ROWS else ""
    size = f"{plural(len(order), 'episode')}, {plural(sum(map(len, episodes)), 'step')}{more}"
    title = f"{printable(name)} · {printable(description.spec.env)}"
    taken = {printable(action): count for action, count in actions.items()}
    with rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        sheet(title, size, rows, taken, out)


def _label(i: int, episode: Episode) -> str:
    verified = episode.audit is not None and episode.audit.verified
    return f"episode {i}: {sized(episode)}, {'verified' if verified else 'not verified'}"
