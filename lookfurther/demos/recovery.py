"""Recovery demonstrations: from a place where an agent is stuck back to a demonstration.

The search has two parts. A best-first search plays all actions of the demonstration from the place
and keeps the games whose RAM is closest to some step of the demonstration. From there a beam search
follows the demonstration to its next reward. Only a game that gets this reward too is a recovery.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookfurther.demos.align import verified_episode
from lookfurther.demos.aligned_game import require_aligned
from lookfurther.demos.beam_search import (
    BeamSearch,
    BeamSettings,
    Candidate,
    record_reference,
)
from lookfurther.demos.delayed_log import NOOP, without_delay
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import step_ends
from lookfurther.demos.ram_distance import BYTE_LIMIT_RANGE, ram_distances
from lookfurther.demos.step_emulator import StepEmulator

if TYPE_CHECKING:
    from ale_py import ALEState

MAX_SEARCH_STEPS = 4_000  # emulator steps of the search for a way back
TARGET_WINDOW = 200  # steps of the demonstration before and after the nearest one
MAX_TARGETS = 8  # steps of the demonstration that are followed, nearest first
FOLLOW_BEAM = BeamSettings(48, 1, 0)


class StuckGame(NamedTuple):
    """An agent's game up to a place where it is stuck."""

    noop_frames: int  # before its first step
    action_ids: tuple[int, ...]  # [T] ids of the emulator


class PlaceNode(NamedTuple):
    """A place that the search has reached."""

    distance: int  # from the nearest step of the demonstration
    order: int  # number of the node; no two are equal
    target_step: int  # of the demonstration, the nearest
    state: ALEState
    action_history: tuple[Any, ...]  # (last action, history before it)


class RecoverySearch:
    """Searches ways back to one aligned demonstration."""

    def __init__(self, demonstration: Episode, env: str, action_repeat: int) -> None:
        log, action_ids = require_aligned(demonstration, action_repeat)
        self.log, self.env, self.action_repeat = log, env, action_repeat
        self.rewards = demonstration.rewards
        self.actions = sorted(set(action_ids.tolist()) | {NOOP})
        self.reference = record_reference(log, env, action_repeat)
        self.frames = step_ends(log, action_repeat)  # after each step
        self.ram = self.reference.ram[self.frames]
        self.is_key_byte = self.reference.byte_limits > BYTE_LIMIT_RANGE[0]
        self.beam = BeamSearch(self.reference, without_delay(log), env, action_repeat)

    def recover(self, stuck: StuckGame) -> Episode | None:
        """The agent's game, the way back and the demonstration up to its next reward.

        None if no way back is found. Only the steps after the agent's are imitated.
        """
        for nodes in self.group_by_target(self.find_ways_back(stuck)):
            found = self.follow_demonstration(nodes)
            if found is not None:
                return self._make_episode(stuck, found.action_sequence())
        return None

    def find_ways_back(self, stuck: StuckGame) -> list[PlaceNode]:
        """All places that a best-first search reaches without losing a life, nearest first."""
        emulator = StepEmulator(self.log, self.env, self.action_repeat)
        for _ in range(stuck.noop_frames):
            emulator.ale.act(NOOP)
        for action in stuck.action_ids:
            emulator.play_step(action)
        ale, lives = emulator.ale, emulator.ale.lives()
        window = self._target_window(ale.getRAM())
        first = self._make_node(ale.getRAM(), ale.cloneState(), 0, (), window)
        nodes, queue, seen = [first], [first], {self._place_key(ale.getRAM())}
        for _ in range(MAX_SEARCH_STEPS // len(self.actions)):
            if not queue:
                break
            node = heapq.heappop(queue)
            for action in self.actions:
                emulator.play_from(node.state, [action])
                ram = ale.getRAM()
                key = self._place_key(ram)
                if key in seen or ale.lives() < lives or ale.game_over(with_truncation=False):
                    continue
                seen.add(key)
                history = (action, node.action_history)
                new = self._make_node(ram, ale.cloneState(), len(nodes), history, window)
                nodes.append(new)
                heapq.heappush(queue, new)
        return sorted(nodes)

    def group_by_target(self, nodes: Sequence[PlaceNode]) -> list[list[PlaceNode]]:
        """The nodes of each target step, for the nearest steps that are followed."""
        groups: dict[int, list[PlaceNode]] = {}
        for node in nodes:
            groups.setdefault(node.target_step, []).append(node)
        return [group[: FOLLOW_BEAM.width] for group in list(groups.values())[:MAX_TARGETS]]

    def follow_demonstration(self, nodes: Sequence[PlaceNode]) -> Candidate | None:
        """Follow the demonstration from a step to its next reward; None if that is not reached."""
        begin = nodes[0].target_step
        later = np.flatnonzero(self.rewards[begin:] > 0)
        if not len(later):
            return None
        end = begin + int(later[0]) + 1
        # Score and losses count from here, as if they were the demonstration's.
        score = float(self.reference.scores[self.frames[begin]])
        losses = int(self.reference.losses[self.frames[begin]])
        candidates = [
            Candidate(n.distance, n.state, score, n.action_history, losses) for n in nodes
        ]
        followed = self.beam.extend(candidates, begin, end, FOLLOW_BEAM)
        wanted = float(self.reference.scores[self.frames[end]])
        return next((found for found in followed if found.score >= wanted), None)

    def _make_episode(self, stuck: StuckGame, found: np.ndarray) -> Episode:
        """The whole game, verified by replay."""
        actions = np.concatenate([np.array(stuck.action_ids, np.uint8), found])
        frames = np.repeat(actions, self.action_repeat)
        frames = np.concatenate([np.full(stuck.noop_frames, NOOP, np.uint8), frames])
        phase = stuck.noop_frames % self.action_repeat
        log = InputLog(frames, seed=self.log.seed, phase=phase, variant=self.log.variant)
        steps = len(step_ends(log, self.action_repeat)) - 1
        episode = verified_episode(log, self.env, self.action_repeat)
        return replace(episode, first_imitated_step=steps - len(found))

    def _target_window(self, ram: np.ndarray) -> range:
        """The steps of the demonstration around the one that is nearest to a place."""
        nearest = int(ram_distances(ram, self.ram, self.reference.byte_limits).argmin())
        return range(max(0, nearest - TARGET_WINDOW), min(len(self.ram), nearest + TARGET_WINDOW))

    def _make_node(
        self,
        ram: np.ndarray,
        state: ALEState,
        order: int,
        history: tuple[Any, ...],
        window: range,
    ) -> PlaceNode:
        targets = self.ram[window.start : window.stop]
        distances = ram_distances(ram, targets, self.reference.byte_limits)
        nearest = int(distances.argmin())
        return PlaceNode(int(distances[nearest]), order, window.start + nearest, state, history)

    def _place_key(self, ram: np.ndarray) -> bytes:
        """Equal for places that differ only in timers."""
        return ram[self.is_key_byte].tobytes()


def find_stuck_steps(rewards: np.ndarray, lives: np.ndarray, interval: int, count: int) -> range:
    """At most `count` steps of a game [T], `interval` apart, after its last progress.

    They follow the last positive reward or, if the agent loses a life later, the first such loss.
    """
    earned = np.flatnonzero(rewards > 0)
    first = int(earned[-1]) + 1 if len(earned) else 0
    lost = np.flatnonzero(np.diff(lives) < 0) + 1
    lost = lost[lost >= first]
    if len(lost):
        first = int(lost[0]) + 1
    return range(first + interval, len(rewards) + 1, interval)[:count]


def choose_demonstration(episodes: Sequence[Episode], noop_frames: int, action_repeat: int) -> int:
    """Index of the best aligned episode, of those with the phase of a start if there are any."""

    def rank(index: int) -> tuple[bool, float]:
        log = episodes[index].input_log
        is_same_phase = log is not None and (noop_frames - log.phase) % action_repeat == 0
        return is_same_phase, episodes[index].score

    return max(range(len(episodes)), key=rank)
