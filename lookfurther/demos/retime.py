"""Change the lengths of an aligned game's waits, so that fewer observations have two actions.

An agent without memory has one action for each observation. Some bytes of RAM do not change while
the player waits. They describe the player and what it has done. A wait is a number of consecutive
steps in which these bytes stay the same. The search varies the length of each wait and plays the
game's own actions between the waits. It keeps the games in which the player has reached the same
place with the same rewards. It prefers games in which equal observations have equal actions: a wait
then ends where the player can see that something has changed. Among those it prefers the shortest.
Where no length of a wait avoids a second action, it also changes the first steps after the wait.
For an agent with a clock, two observations are equal if the clock shows the same time as well. Such
an agent can play nearly all waits, so the search then keeps those that add no second action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookfurther.demos.align import verified_episode
from lookfurther.demos.aligned_game import (
    AlignedGame,
    find_enemy_bytes,
    find_player_bytes,
    find_waits,
    join_waits,
    record_game,
    require_aligned,
)
from lookfurther.demos.alignment_search import ProgressCallback
from lookfurther.demos.delayed_log import NOOP
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.game_policy import NO_GAME_CLOCK, NO_POLICY, GameClock, GamePolicy, Policy
from lookfurther.demos.playback import step_ends
from lookfurther.demos.retimed_games import (
    PassedGames,
    RetimedGame,
    best_games,
    least_conflicts,
)
from lookfurther.demos.step_emulator import StepEmulator
from lookfurther.demos.wait_trials import (
    EDITED_TRIALS,
    LONG_TRIALS,
    UNCHANGED_TRIALS,
    USUAL_TRIALS,
    TrialLimits,
    Wait,
    WaitLimits,
    WaitTrials,
)
from lookfurther.envs.clock import NO_CLOCK, ClockDisplay

if TYPE_CHECKING:
    from ale_py import ALEState

NO_PICTURE = np.zeros(0, np.uint8)  # of a restored emulator, before its next frame

MAX_GAMES = 10  # games of different lengths that are kept, and as many with different enemies
MAX_EDITED_GAMES = 6  # of those before a wait, games whose steps after it are changed
MAX_EDITED_STRETCH = 100  # steps to the next wait; there are about a thousand changes to play

# Where nearly all games fail, waits may be much longer, because enemies then return to where they
# were. If that does not help, the search goes back some waits and keeps more games.
MAX_GOOD_CONFLICTS = 2  # that a wait adds if it was passed well; with a clock, none
BACKTRACK_WAITS = (6, 12, 24)  # each time with twice as many games


def retime_episode(
    episode: Episode,
    env: str,
    action_repeat: int,
    on_progress: ProgressCallback | None = None,
    *,
    clock: ClockDisplay = NO_CLOCK,
    known: Policy = NO_POLICY,
) -> Episode:
    """The episode with other waits, verified by replay, or the episode itself.

    Its actions should agree with those of other games, which are `known`.
    """
    search = begin_search(episode, env, action_repeat, clock, known)
    best = search.find_best(on_progress)
    if best.is_original:
        return episode
    input_log = require_aligned(episode, action_repeat)[0]
    lengths = np.full(len(best.actions), action_repeat)
    lengths[0] = input_log.phase or action_repeat
    frames = np.repeat(np.array(best.actions, np.uint8), lengths)
    log = InputLog(frames, seed=input_log.seed, phase=input_log.phase, variant=input_log.variant)
    retimed = verified_episode(log, env, action_repeat)
    return retimed if retimed.score >= episode.score else episode


def add_to_policy(
    known: Policy, episode: Episode, env: str, action_repeat: int, clock: ClockDisplay
) -> Policy:
    """The actions of an aligned episode and of other games."""
    search = begin_search(episode, env, action_repeat, clock, known)
    return search.play_original().policy.settle()


def begin_search(
    episode: Episode, env: str, action_repeat: int, clock: ClockDisplay, known: Policy
) -> WaitSearch:
    """The search over the waits of an aligned episode."""
    input_log, action_ids = require_aligned(episode, action_repeat)
    emulator = StepEmulator(input_log, env, action_repeat)
    game = record_game(emulator, action_ids, input_log.phase)
    frames = int(step_ends(input_log, action_repeat)[game.first_step])
    return WaitSearch(emulator, game, GameClock(clock, frames), known)


class WaitSearch:
    """A beam search over the lengths of all waits."""

    def __init__(
        self,
        emulator: StepEmulator,
        game: AlignedGame,
        clock: GameClock = NO_GAME_CLOCK,  # before the first step that acts
        known: Policy = NO_POLICY,
    ) -> None:
        self.emulator, self.game, self.clock, self.known = emulator, game, clock, known
        self.player = find_player_bytes(game)
        self.enemies = find_enemy_bytes(game, self.player)
        waits = join_waits(find_waits(game.ram[:, self.player], game.first_step), game.action_ids)
        begins = [begin for begin, _ in waits] + [len(game.action_ids)]
        self.waits = [
            Wait(*wait, following) for wait, following in zip(waits, begins[1:], strict=True)
        ]
        self.first_wait = begins[0]

    def find_best(self, on_progress: ProgressCallback | None = None) -> RetimedGame:
        """The shortest game with the fewest conflicts; of equal ones the original."""
        history = [[self._begin_game()]]  # the games before each wait
        repeated_until, efforts = 0, 0  # while it plays waits again: up to which one, how often
        while len(history) <= len(self.waits):
            index = len(history) - 1
            games = [] if efforts else self.keep_wait(history[-1], self.waits[index])
            if not games:
                games = self.pass_wait(history[-1], self.waits[index], MAX_GAMES << efforts)
            if self._is_lost(history[-1], games) and efforts < len(BACKTRACK_WAITS):
                del history[max(1, len(history) - BACKTRACK_WAITS[efforts]) :]
                repeated_until, efforts = index, efforts + 1
                continue
            history.append(games)
            if index >= repeated_until:
                efforts = 0
            if on_progress:
                on_progress(self.waits[index].next_begin, len(self.game.action_ids))
        return min(history[-1], key=lambda game: game.cost)

    def play_original(self) -> RetimedGame:
        """The whole game with its own waits."""
        whole = Wait(self.first_wait, self.first_wait, len(self.game.action_ids))
        return self._pass_as_original(self._begin_game(), whole)

    def _begin_game(self) -> RetimedGame:
        """The original up to its first wait."""
        game, ale = self.game, self.emulator.ale
        actions = game.action_ids[: self.first_wait].tolist()
        policy = GamePolicy(NO_PICTURE, self.clock, self.known)
        self.play_on(game.first_state, policy, actions[game.first_step :])
        policy.settle()
        return RetimedGame(ale.cloneState(), tuple(actions), policy, is_original=True)

    def _is_lost(self, before: Sequence[RetimedGame], after: Sequence[RetimedGame]) -> bool:
        new_conflicts = least_conflicts(after) - least_conflicts(before)
        return new_conflicts > (0 if self.clock.display.period else MAX_GOOD_CONFLICTS)

    def keep_wait(self, games: Sequence[RetimedGame], wait: Wait) -> list[RetimedGame]:
        """The games after an unchanged wait; none without a clock or with another conflict."""
        if not self.clock.display.period:
            return []
        passed = [self._pass_as_original(game, wait) for game in games if game.is_original]
        changed = [game for game in games if not game.is_original]
        if changed:
            unchanged = wait._replace(end=wait.begin)  # all of its steps come after it
            passed += self.try_waits(changed, unchanged, MAX_GAMES, UNCHANGED_TRIALS)
        fewest = least_conflicts(games)
        return passed if any(game.policy.conflicts <= fewest for game in passed) else []

    def pass_wait(
        self, games: Sequence[RetimedGame], wait: Wait, max_games: int
    ) -> list[RetimedGame]:
        """The games after a wait and the steps up to the next one."""
        originals = [self._pass_as_original(game, wait) for game in games if game.is_original]
        passed = originals + self.try_waits(games, wait, max_games, USUAL_TRIALS)
        is_short = wait.next_begin - wait.end <= MAX_EDITED_STRETCH
        if is_short and least_conflicts(passed) > least_conflicts(games):
            passed += self.try_waits(
                best_games(games, MAX_EDITED_GAMES), wait, max_games, EDITED_TRIALS
            )
        if self._is_lost(games, passed):
            passed = originals + self.try_waits(games, wait, max_games, LONG_TRIALS)
        return passed

    def try_waits(
        self, games: Sequence[RetimedGame], wait: Wait, max_games: int, trials: WaitTrials
    ) -> list[RetimedGame]:
        """The games that pass a wait, with any of its lengths.

        Two games with the same number of steps and the same RAM after the wait are one game, so
        only the first of them is played on.
        """
        after = tuple(self.game.action_ids[wait.end : wait.next_begin].tolist())
        steps_after = trials.steps_after(after)
        new_conflicts = 0 if self.clock.display.period else trials.max_new_conflicts
        passed = PassedGames(least_conflicts(games) + new_conflicts)
        tried: set[tuple[int, bytes, int]] = set()
        for game in sorted(games, key=lambda game: game.cost):
            max_conflicts = passed.max_conflicts
            for waited in self.play_waits(game, wait, max_conflicts, trials.limits):
                key = (len(waited.actions), self._ram(waited.state), waited.policy.conflicts)
                if key in tried:
                    continue
                tried.add(key)
                for actions in steps_after:
                    played = self._play_to_next_wait(waited, actions, wait, max_conflicts)
                    if played:
                        enemies = self.emulator.ale.getRAM()[self.enemies].tobytes()
                        passed.add(played, enemies)
        kept = passed.select(max_games)
        for game in kept:
            game.policy.settle()
        return kept

    def _ram(self, state: ALEState) -> bytes:
        self.emulator.ale.restoreState(state)
        return self.emulator.ale.getRAM().tobytes()

    def _pass_as_original(self, game: RetimedGame, wait: Wait) -> RetimedGame:
        actions = self.game.action_ids[wait.begin : wait.next_begin].tolist()
        policy = game.policy.copy()
        self.play_on(game.state, policy, actions)
        policy.settle()
        state = self.emulator.ale.cloneState()
        return RetimedGame(state, (*game.actions, *actions), policy, is_original=True)

    def play_waits(
        self, game: RetimedGame, wait: Wait, max_conflicts: int, limits: WaitLimits
    ) -> Iterator[RetimedGame]:
        """The game after 0, 1, ... no-ops instead of a wait."""
        waited = game._replace(policy=game.policy.copy(), is_original=False)
        yield waited
        for _ in range(limits.longest(wait, len(game.actions))):
            policy = waited.policy.copy()
            if self.play_on(waited.state, policy, [NOOP], TrialLimits(max_conflicts)) is None:
                return
            state = self.emulator.ale.cloneState()
            waited = RetimedGame(state, (*waited.actions, NOOP), policy, is_original=False)
            yield waited

    def _play_to_next_wait(
        self, waited: RetimedGame, after: tuple[int, ...], wait: Wait, max_conflicts: int
    ) -> RetimedGame | None:
        """The game up to the next wait, or None if it is not where the original is."""
        game, policy = self.game, waited.policy.copy()
        rewards = np.cumsum(game.rewards[wait.end : wait.next_begin])
        lives = game.lives[wait.end : wait.next_begin + 1]  # the original may get one more
        limits = TrialLimits(max_conflicts, int(lives.min()), rewards)
        reward = self.play_on(waited.state, policy, after, limits)
        if reward != game.rewards[wait.end : wait.next_begin].sum():
            return None
        if self.emulator.ale.lives() < lives[-1]:
            return None
        if (self.emulator.ale.getRAM() != game.ram[wait.next_begin])[self.player].any():
            return None
        state = self.emulator.ale.cloneState()
        return RetimedGame(state, (*waited.actions, *after), policy, is_original=False)

    def play_on(
        self,
        state: ALEState,
        policy: GamePolicy,
        actions: Sequence[int],
        limits: TrialLimits | None = None,
    ) -> float | None:
        """The rewards of more steps; None once they are outside of the limits."""
        ale, reward = self.emulator.ale, 0.0
        ale.restoreState(state)
        for step, action in enumerate(actions):
            step_reward, frame = self.emulator.play_observed_step(action)
            policy.add_step(action, frame)
            reward += step_reward
            if limits and not limits.hold(step, policy.conflicts, ale.lives(), reward):
                return None
        return reward
