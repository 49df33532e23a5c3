"""Shorten the waits of an aligned Atari game.

Some bytes of RAM do not change while the player waits. They describe the player and what it has
done. A wait is a number of consecutive steps in which these bytes stay the same. The search varies
the length of each wait and plays the game's own actions between the waits. It keeps the games in
which the player has reached the same place with the same rewards, and takes the shortest of them.
Enemies and lasers may then be at other places, so a game that is early may have to wait later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookfurther.demos.align import verified_episode
from lookfurther.demos.alignment_search import ProgressCallback
from lookfurther.demos.delayed_log import NOOP, find_true_runs
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import block_majority, frames_by_step
from lookfurther.demos.step_emulator import StepEmulator
from lookfurther.errors import DemonstrationError

if TYPE_CHECKING:
    from ale_py import ALEState

IDLE_STEPS = 4  # no-ops after which the player stands still
MAX_IDLE_RATE = 0.3  # a byte of the player changes less often in idle steps, relative to others
MIN_WAIT = 3  # steps
EXTRA_WAIT = 40  # steps that a wait may become longer, if as many were saved before
MAX_GAMES = 24  # games that are kept, shortest first, next to the original


class AlignedGame(NamedTuple):
    """An aligned game, step by step."""

    action_ids: np.ndarray  # [T] ids of the emulator
    rewards: np.ndarray  # [T]
    ram: np.ndarray  # [T + 1, 128] uint8, before each step and at the end
    first_state: ALEState  # before step `first_step`
    first_step: int  # the first step that acts


class ShortenedGame(NamedTuple):
    """A game up to a step of the original."""

    state: ALEState
    actions: tuple[int, ...]
    is_original: bool  # all waits are as long as they were


def shorten_episode(
    episode: Episode, env: str, action_repeat: int, on_progress: ProgressCallback | None = None
) -> Episode:
    """The episode with shorter waits, verified by replay, or the episode itself."""
    input_log, action_ids = require_aligned(episode, action_repeat)
    emulator = StepEmulator(input_log, env, action_repeat)
    game = record_game(emulator, action_ids, input_log.phase)
    actions = find_shortest(emulator, game, on_progress)
    lengths = np.full(len(actions), action_repeat)
    lengths[0] = input_log.phase or action_repeat
    frames = np.repeat(np.array(actions, np.uint8), lengths)
    log = InputLog(frames, seed=input_log.seed, phase=input_log.phase, variant=input_log.variant)
    shortened = verified_episode(log, env, action_repeat)
    is_better = len(shortened) < len(episode) and shortened.score >= episode.score
    return shortened if is_better else episode


def record_game(emulator: StepEmulator, action_ids: np.ndarray, phase: int) -> AlignedGame:
    """Play a whole game from power-on and record it."""
    active = int(np.argmax(action_ids != NOOP))
    ale = emulator.ale
    ram, rewards, first_state = [], np.zeros(len(action_ids)), ale.cloneState()
    for step, action in enumerate(action_ids.tolist()):
        if step == active:
            first_state = ale.cloneState()
        ram.append(ale.getRAM())
        if step == 0 and phase:
            rewards[0] = sum(ale.act(action) for _ in range(phase))
        else:
            rewards[step] = emulator.play_step(action)
    ram.append(ale.getRAM())
    return AlignedGame(action_ids, rewards, np.array(ram), first_state, active)


def find_shortest(
    emulator: StepEmulator, game: AlignedGame, on_progress: ProgressCallback | None = None
) -> tuple[int, ...]:
    """The actions of the shortest game that reaches the original's places."""
    player = find_player_bytes(game)
    waits = find_waits(game.ram[:, player], game.first_step)
    steps = len(game.action_ids)
    begins = [begin for begin, _ in waits] + [steps]
    lead = game.action_ids[: begins[0]].tolist()
    emulator.play_from(game.first_state, lead[game.first_step :])
    games = [ShortenedGame(emulator.ale.cloneState(), tuple(lead), is_original=True)]
    for (begin, wait_end), end in zip(waits, begins[1:], strict=True):
        games = pass_wait(emulator, game, player, games, (begin, wait_end, end))
        if on_progress:
            on_progress(end, steps)
    return min((shortened.actions for shortened in games), key=len)


def pass_wait(
    emulator: StepEmulator,
    game: AlignedGame,
    player: np.ndarray,
    games: Sequence[ShortenedGame],
    span: tuple[int, int, int],
) -> list[ShortenedGame]:
    """The games after a wait of any length and the steps up to the next one.

    No game becomes longer than the original. Two games with the same number of steps and the same
    RAM after the wait are one game, so only the first of them is played on.
    """
    begin, wait_end, end = span
    after = tuple(game.action_ids[wait_end:end].tolist())
    reward, place = game.rewards[wait_end:end].sum(), game.ram[end, player]
    passed: dict[int, ShortenedGame] = {}
    tried: set[tuple[int, bytes]] = set()
    for shortened in games:
        for state, ram, waited in play_waits(emulator, game, shortened, (begin, wait_end)):
            is_original = shortened.is_original and len(waited) == wait_end
            if is_original or not (
                len(waited) + len(after) in passed or (len(waited), ram) in tried
            ):
                gained = emulator.play_from(state, after)
                if gained == reward and np.array_equal(emulator.ale.getRAM()[player], place):
                    new = ShortenedGame(emulator.ale.cloneState(), (*waited, *after), is_original)
                    passed[len(new.actions)] = new
            tried.add((len(waited), ram))
    ordered = sorted(passed.values(), key=lambda new: len(new.actions))
    originals = [new for new in ordered if new.is_original]
    return originals + [new for new in ordered if not new.is_original][:MAX_GAMES]


def play_waits(
    emulator: StepEmulator, game: AlignedGame, shortened: ShortenedGame, wait: tuple[int, int]
) -> Iterator[tuple[ALEState, bytes, tuple[int, ...]]]:
    """State, RAM and all actions of a game after 0, 1, ... steps of a wait."""
    begin, wait_end = wait
    state, actions = shortened.state, shortened.actions
    extra = min(begin - len(actions), EXTRA_WAIT)
    emulator.ale.restoreState(state)
    yield state, emulator.ale.getRAM().tobytes(), actions
    for action in [*game.action_ids[begin:wait_end].tolist(), *[NOOP] * extra]:
        emulator.play_from(state, [action])
        state, actions = emulator.ale.cloneState(), (*actions, action)
        yield state, emulator.ale.getRAM().tobytes(), actions


def find_player_bytes(game: AlignedGame) -> np.ndarray:
    """The bytes that change rarely in idle steps, compared with others; no clocks.

    A byte that never changes is one of them.
    """
    changes = game.ram[1:] != game.ram[:-1]
    is_noop = game.action_ids == NOOP
    padded = np.append([False] * IDLE_STEPS, is_noop)
    is_idle = np.lib.stride_tricks.sliding_window_view(padded, IDLE_STEPS + 1).all(1)
    idle_rate = changes[is_idle].mean(0) if is_idle.any() else np.zeros(changes.shape[1])
    active_rate = changes[~is_noop].mean(0) if not is_noop.all() else idle_rate
    is_steady = (idle_rate < MAX_IDLE_RATE * active_rate) | (idle_rate + active_rate == 0)
    is_clock = np.array([_is_clock(column) for column in changes.T])
    return np.flatnonzero(is_steady & ~is_clock)


def _is_clock(changes: np.ndarray) -> bool:
    """Whether a byte changes at equal intervals, up to a step."""
    intervals = np.diff(np.flatnonzero(changes))
    return len(intervals) >= 2 and float(intervals.std()) <= 0.05 * intervals.mean() + 0.6


def find_waits(places: np.ndarray, first_step: int) -> list[tuple[int, int]]:
    """(begin, end) of the stretches of steps without a change in [T + 1, n], from a step on."""
    is_same = (places[1:] == places[:-1]).all(1)
    is_same[:first_step] = False
    return find_true_runs(is_same, MIN_WAIT)


def require_aligned(episode: Episode, action_repeat: int) -> tuple[InputLog, np.ndarray]:
    """The input log of an episode that an agent can play, and the action id of each step [T]."""
    log = episode.input_log
    if log is None or len(log.ram_writes):
        raise DemonstrationError("only aligned Atari episodes can be searched: use demos align")
    rows = frames_by_step(log.frame_actions, action_repeat, log.phase)
    action_ids, ambiguous = block_majority(rows)
    if ambiguous:
        raise DemonstrationError("its steps have several actions: use demos align first")
    return log, action_ids
