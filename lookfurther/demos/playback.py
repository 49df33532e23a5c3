"""Play demonstrations again: Atari episodes from their input log, others from their seed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.envs.clock import NO_CLOCK, ClockDisplay, draw_clock, make_clock_display
from lookfurther.envs.emulator import FUSED_MULTIPLY_ADD, Emulator
from lookfurther.envs.factory import EnvFactory, find_env_spec, find_rendering_spec
from lookfurther.envs.sync import Lane
from lookfurther.errors import DemonstrationError

PAD_ACTION = 255  # fills the row of a short step


class GameOverError(DemonstrationError):
    """The game ends before its input log does."""

    def __init__(self, frames: int, length: int) -> None:
        super().__init__(f"the game is over at frame {frames} of {length}")
        self.frames_played = frames


class PlaybackStep(NamedTuple):
    """One step of an episode that is played again. The first one is the reset."""

    reward: float
    planes: Iterable[np.ndarray]  # the newest plane, in each way a processor may round it
    is_terminal: bool
    is_last: bool  # no step follows


def play_log(input_log: InputLog, emulator: Emulator) -> Iterator[float]:
    """Play an input log on an emulator after its reset and yield the reward of each frame."""
    return emulator.play_frames(input_log.frame_actions.tolist(), input_log.ram_writes.tolist())


def play_steps(
    input_log: InputLog,
    emulator: Emulator,
    action_repeat: int = 0,
    on_frame: Callable[[Emulator, float], None] = lambda *_: None,
) -> Iterator[PlaybackStep]:
    """Play an input log in steps of `action_repeat` frames (0: as many as the emulator repeats)."""
    ends = set(step_ends(input_log, action_repeat or emulator.action_repeat).tolist())
    yield PlaybackStep(0.0, _possible_planes(emulator), False, False)
    reward = 0.0
    for frame_reward in play_log(input_log, emulator):
        on_frame(emulator, frame_reward)
        reward += frame_reward
        is_over = emulator.is_over
        if is_over or emulator.frame_number in ends:
            is_last = is_over or emulator.frame_number == len(input_log.frame_actions)
            yield PlaybackStep(reward, _possible_planes(emulator), is_over, is_last)
            reward = 0.0


def _possible_planes(emulator: Emulator) -> Iterator[np.ndarray]:
    """The plane as this processor rounds it, then as others do."""
    yield emulator.current_plane(FUSED_MULTIPLY_ADD)
    yield emulator.current_plane(not FUSED_MULTIPLY_ADD)


def make_lane(
    env: str, env_config: EnvConfig, render: bool = False, index: int = 0, seed: int = 0
) -> Lane:
    """A lane with one Gymnasium environment, which draws RGB images if `render` is set.

    `index` and `seed` determine the seeds of its episodes, as in training.
    """
    env_spec = find_rendering_spec(env) if render else find_env_spec(env)
    return Lane(EnvFactory(env_spec, env_config), index, seed)


def play_lane(
    lane: Lane,
    seed: int | None,
    select_action: Callable[[np.ndarray], int],
    max_steps: int = sys.maxsize,
) -> Iterator[PlaybackStep]:
    """Play an episode of a lane until it ends or fails; a failure is not the last step."""
    plane, *_ = lane.begin_episode(seed=seed)
    yield PlaybackStep(0.0, (plane,), False, False)
    for step in range(1, max_steps + 1):
        plane, reward, terminal, _, first, _ = lane.step(select_action(plane))
        if first:  # the environment failed and was built again
            return
        yield PlaybackStep(reward, (plane,), terminal, lane.is_over or step == max_steps)
        if lane.is_over:
            return


def play_from_seed(episode: Episode, lane: Lane) -> Iterator[PlaybackStep]:
    """Play the actions of an episode on a lane, from the seed of the episode."""
    actions = iter(episode.actions.tolist())
    return play_lane(lane, episode.seed, lambda _: next(actions), len(episode))


def episode_from_log(
    input_log: InputLog,
    env: str,
    action_repeat: int = 4,
    sticky_prob: float = 0.0,
    on_frame: Callable[[Emulator, float], None] = lambda *_: None,
) -> Episode:
    """The episode of an input log. The last step may have fewer frames than `action_repeat`.

    `on_frame` receives the emulator and the reward after every frame and may raise to stop.
    """
    emulator = make_emulator(input_log, env, action_repeat, sticky_prob)
    num_steps = len(step_ends(input_log, action_repeat)) - 1
    planes = np.empty((num_steps + 1, *emulator.current_plane().shape), np.uint8)
    rewards = np.zeros(num_steps + 1, np.float32)
    for t, step in enumerate(play_steps(input_log, emulator, on_frame=on_frame)):
        planes[t], rewards[t] = emulator.current_plane(), step.reward
    if emulator.frame_number < len(input_log.frame_actions):
        raise GameOverError(emulator.frame_number, len(input_log.frame_actions))
    actions, _ = majority_actions(input_log, emulator)
    return Episode(planes, actions, rewards[1:], emulator.is_over, input_log=input_log)


def make_emulator(
    input_log: InputLog,
    env: str,
    action_repeat: int,
    sticky_prob: float = 0.0,
    clock: ClockDisplay = NO_CLOCK,
) -> Emulator:
    """An emulator after its reset, ready to play an input log."""
    log = input_log
    return Emulator(env, action_repeat, sticky_prob, log.seed, log.phase, log.variant, clock)


def step_ends(input_log: InputLog, action_repeat: int) -> np.ndarray:
    """The number of frames before the first step and after each step, [T + 1]."""
    frames = len(input_log.frame_actions)
    first = input_log.phase % action_repeat or action_repeat
    return np.unique(np.concatenate([[0], np.arange(first, frames, action_repeat), [frames]]))


def draw_demo_clock(episode: Episode, env_config: EnvConfig, name: str) -> None:
    """Draw the time since power-on into the planes of an Atari episode."""
    if episode.input_log is None:
        raise DemonstrationError(
            f"{name} has no input log, so its time since power-on is not known:"
            " set environment.clock_period 0"
        )
    frames = step_ends(episode.input_log, env_config.action_repeat)
    draw_clock(episode.planes[:, 0], frames, make_clock_display(env_config))


def with_best_phase(input_log: InputLog, action_repeat: int) -> InputLog:
    """The input log with the phase that has the fewest steps of several actions.

    If a player held each button for `action_repeat` frames, but not from the first frame on, each
    step then has one action. The smallest of equally good phases is taken.
    """
    candidates = [replace(input_log, phase=phase) for phase in range(action_repeat)]
    return min(candidates, key=lambda log: count_ambiguous_steps(log, action_repeat))


def truncate_log(input_log: InputLog, length: int) -> InputLog:
    """The first `length` frames of an input log."""
    return replace(
        input_log,
        frame_actions=input_log.frame_actions[:length],
        ram_writes=input_log.ram_writes[input_log.ram_writes[:, 0] < length],
    )


def majority_actions(input_log: InputLog, emulator: Emulator) -> tuple[np.ndarray, int]:
    """The environment's action of each step, and the number of steps with several actions."""
    ids, ambiguous = block_majority(
        frames_by_step(input_log.frame_actions, emulator.action_repeat, input_log.phase)
    )
    if not set(ids.tolist()) <= set(emulator.legal_actions):
        raise DemonstrationError(f"the input log has actions that {emulator.game} does not have")
    return np.searchsorted(emulator.legal_actions, ids), ambiguous


def count_ambiguous_steps(input_log: InputLog, action_repeat: int) -> int:
    """The number of steps with several actions."""
    return int(find_ambiguous_steps(input_log, action_repeat).sum())


def find_ambiguous_steps(input_log: InputLog, action_repeat: int) -> np.ndarray:
    """[T] bool: the steps with several actions."""
    return _has_several_actions(
        frames_by_step(input_log.frame_actions, action_repeat, input_log.phase)
    )


def with_step_actions(input_log: InputLog, action_ids: np.ndarray, action_repeat: int) -> InputLog:
    """The first steps of an input log, with one action per step, [T] ids, instead of its own."""
    ends = step_ends(input_log, action_repeat)[: len(action_ids) + 1]
    frame_actions = np.repeat(action_ids.astype(np.uint8), np.diff(ends))
    return replace(truncate_log(input_log, int(ends[-1])), frame_actions=frame_actions)


def frames_by_step(frames: np.ndarray, action_repeat: int, phase: int = 0) -> np.ndarray:
    """The frames of each step, [T, action_repeat] uint8; PAD_ACTION fills short steps."""
    missing = -phase % action_repeat  # frames that a short first step lacks
    length = missing + len(frames)
    padded = np.full(-(-length // action_repeat) * action_repeat, PAD_ACTION, np.uint8)
    padded[missing:length] = frames
    return padded.reshape(-1, action_repeat)


def block_majority(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """The most frequent action of each row, the earliest of equals, and the rows with several.

    It compares each frame with each frame of its row, so it works on a few rows at a time.
    """
    rows = max(1, 2**22 // frames.shape[1] ** 2)
    starts = range(0, max(1, len(frames)), rows)
    actions = np.concatenate([_batch_majority(frames[start : start + rows]) for start in starts])
    return actions, int(_has_several_actions(frames).sum())


def _has_several_actions(frames: np.ndarray) -> np.ndarray:
    """[T] bool: the rows with several actions."""
    return frames.min(1) != np.where(frames == PAD_ACTION, 0, frames).max(1)


def _batch_majority(frames: np.ndarray) -> np.ndarray:
    """The most frequent action of each row, the earliest of equals."""
    counts = (frames[:, :, None] == frames[:, None, :]).sum(-1)
    counts[frames == PAD_ACTION] = 0
    actions = np.take_along_axis(frames, counts.argmax(1)[:, None], 1)
    return actions[:, 0].astype(np.int64)
