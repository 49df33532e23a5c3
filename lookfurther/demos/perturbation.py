"""Perturbed demonstrations: random actions in between, and the way back after each of them.

An agent that imitates a demonstration has not seen what follows a random action or its own mistake,
and one such step can lose the game. A perturbed game shows both: the place that a random action
leads to, and the actions from there. The random actions themselves are not imitated. This is the
injection of noise into the demonstrations of Laskey et al. 2017 (arXiv:1703.09327).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lookfurther.demos.align import verified_episode
from lookfurther.demos.aligned_game import require_aligned
from lookfurther.demos.alignment_search import ProgressCallback
from lookfurther.demos.beam_search import BeamSearch, BeamSettings, Candidate, record_reference
from lookfurther.demos.delayed_log import without_delay
from lookfurther.demos.episode import Episode
from lookfurther.demos.playback import make_emulator, with_step_actions

RETURN_BEAM = BeamSettings(24, 2, 0)
MAX_DISTANCE = 30  # after an interval; less than the penalty for another score or a lost life
ATTEMPTS = 3  # random actions that are tried in an interval
MAX_LEFT_OUT = 64  # random actions that are left out where the game is lost


class PerturbedGame(NamedTuple):
    """Games up to a step. All of them have the same random actions."""

    step: int
    candidates: list[Candidate]
    random_step: int | None = None  # the latest random action, if the last interval has one


class PerturbationSearch:
    """Plays an aligned demonstration, with a random action in each interval of some steps.

    A beam search then plays the demonstration's actions of nearby steps, until the game is the
    demonstration again. At the end of the interval it must at least be close. Otherwise another
    random action is tried.
    """

    def __init__(
        self, demonstration: Episode, env: str, action_repeat: int, interval: int, seed: int
    ) -> None:
        self.log, self.action_ids = require_aligned(demonstration, action_repeat)
        self.env, self.action_repeat, self.interval = env, action_repeat, interval
        self.legal_actions = np.array(make_emulator(self.log, env, action_repeat).legal_actions)
        reference = record_reference(self.log, env, action_repeat)
        self.beam = BeamSearch(reference, without_delay(self.log), env, action_repeat)
        self.random = np.random.default_rng(seed)

    def perturb(self, on_progress: ProgressCallback | None = None) -> Episode:
        """The perturbed game, verified by replay."""
        history = self._find_games(on_progress)
        actions = history[-1].candidates[0].action_sequence()
        log = with_step_actions(self.log, actions, self.action_repeat)
        episode = verified_episode(log, self.env, self.action_repeat)
        random_steps = tuple(g.random_step for g in history if g.random_step is not None)
        return replace(episode, random_steps=random_steps)

    def _find_games(self, on_progress: ProgressCallback | None) -> list[PerturbedGame]:
        """The games after each interval.

        A random action can have an effect that only shows later. Where the game is lost, the latest
        one is left out, and twice as many each time that it does not get further. After too many,
        the game ends where it was lost.
        """
        first = self.beam.first_active_step
        start = self._return([self.beam.initial_candidate()], 0, first)
        history, calm = [PerturbedGame(first, start)], set[int]()  # begins of calm intervals
        longest, left_out = history.copy(), 1
        while history[-1].step < self.beam.num_steps and left_out <= MAX_LEFT_OUT:
            game = self._play_interval(history[-1], is_calm=history[-1].step in calm)
            if game is None:
                calm |= leave_out_random_actions(history, left_out)
                left_out *= 2
                continue
            history.append(game)
            if game.step > longest[-1].step:
                longest, left_out = history.copy(), 1
                if on_progress:
                    on_progress(game.step, self.beam.num_steps)
        return longest

    def _play_interval(self, game: PerturbedGame, is_calm: bool) -> PerturbedGame | None:
        """The game after one more interval; None if it is lost even without a random action."""
        end = min(game.step + self.interval, self.beam.num_steps)
        is_whole = end - game.step == self.interval
        for _ in range(ATTEMPTS if is_whole and not is_calm else 0):
            # The second half of the interval is for the way back.
            step = game.step + int(self.random.integers(-(-self.interval // 2)))
            if near := select_near(self._play_random_action(game, step, end)):
                return PerturbedGame(end, near, step)
        near = select_near(self._return(game.candidates, game.step, end))
        return PerturbedGame(end, near) if near else None

    def _play_random_action(self, game: PerturbedGame, step: int, end: int) -> list[Candidate]:
        """The closest games at the end of an interval, with another action than shown at a step.

        Only one game goes on with it: an agent does not prepare for a random action either.
        """
        others = self.legal_actions[self.legal_actions != self.action_ids[step]]
        action = int(self.random.choice(others))
        closest = self._return(game.candidates, game.step, step)[:1]
        return self._return(self.beam.play_action(closest, action, step), step + 1, end)

    def _return(self, candidates: list[Candidate], begin: int, end: int) -> list[Candidate]:
        """The closest games after more steps; only the demonstration if it is one of them."""
        for step in range(begin, end):
            candidates = self.beam.extend(candidates, step, step + 1, RETURN_BEAM)
            if candidates and candidates[0].distance == 0:
                candidates = candidates[:1]
        return candidates


def leave_out_random_actions(history: list[PerturbedGame], count: int) -> set[int]:
    """Go back before the latest random actions; returns the first steps of their intervals."""
    steps = set()
    while len(history) > 1 and len(steps) < count:
        if history.pop().random_step is not None:
            steps.add(history[-1].step)
    return steps


def select_near(candidates: list[Candidate]) -> list[Candidate]:
    """The games that are where the demonstration is."""
    return [candidate for candidate in candidates if candidate.distance <= MAX_DISTANCE]
