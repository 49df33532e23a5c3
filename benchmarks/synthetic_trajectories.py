"""Synthetic trajectories with the shapes of Atari, and a check of sampled batches against them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

BATCH, HORIZONS, STACK, SIDE, ACTIONS, GAMMA = 256, (1, 10), 4, 84, 18, 0.999
PIXELS = SIDE * SIDE


class Transitions(NamedTuple):
    """Transitions: a sampled batch, or those that one step of all lanes adds."""

    x: Any  # [B, 4, 84, 84] uint8
    a: Any  # [B]
    r: Any  # [B] n-step rewards
    discount: Any  # [B] 0 where x' is terminal
    x_next: Any  # [B, 4, 84, 84] uint8


class LaneStep(NamedTuple):
    """One step of all lanes, as a vector environment returns it and as transitions."""

    x: np.ndarray  # [m, 4, 84, 84]
    action: np.ndarray  # [m]
    reward: np.ndarray  # [m]
    first: np.ndarray  # [m] bool
    terminal: np.ndarray  # [m] bool: x is terminal, so no transition starts here
    ends: np.ndarray  # [m] bool: the action leads to a terminal observation
    rows: Transitions  # the transitions that start here, horizon 1 first, then horizon 10
    priority: np.ndarray  # [m, 2]


class SyntheticTrajectories:
    """Trajectories computed from lane and time; the first pixels of a plane are its number."""

    def __init__(self, lanes: int, seed: int = 0) -> None:
        self.lanes = lanes
        self.rng = np.random.default_rng(seed)
        self.noise = self.rng.integers(0, 256, (512, PIXELS), dtype=np.uint8)
        self.lane = np.arange(lanes)

    def episode_length(self, lane: np.ndarray) -> np.ndarray:
        """Slots per episode of a lane; the last one is terminal."""
        return 200 + 7 * lane

    def plane(self, lane: np.ndarray, t: np.ndarray) -> np.ndarray:
        """[..., 7056] noise whose first eight pixels are the bytes of 1 + t * lanes + lane."""
        number = t * self.lanes + lane
        planes = self.noise[number % len(self.noise)]
        planes[..., :8] = (number + 1).astype("<i8")[..., None].view(np.uint8)
        return planes

    def observation(self, lane: np.ndarray, t: np.ndarray) -> np.ndarray:
        """[n, 4, 84, 84], zero before the start of the episode."""
        age = t % self.episode_length(lane)
        back = np.arange(STACK - 1, -1, -1)
        planes = self.plane(lane[:, None], t[:, None] - back)
        planes[back > age[:, None]] = 0
        return planes.reshape(-1, STACK, SIDE, SIDE)

    def reward(self, lane: np.ndarray, t: np.ndarray) -> np.ndarray:
        return ((7 * t + lane) % 5 - 2).astype(np.float32)

    def action(self, lane: np.ndarray, t: np.ndarray) -> np.ndarray:
        return (t + lane) % ACTIONS

    def n_step_outcome(self, lane: np.ndarray, t: np.ndarray, n: int) -> tuple[np.ndarray, ...]:
        """n-step reward, discount and number of steps from nonterminal times t."""
        left = self.episode_length(lane) - 1 - t % self.episode_length(lane)
        steps, j = np.minimum(n, left), np.arange(n)
        rewards = self.reward(lane[:, None], t[:, None] + j) * (j < steps[:, None])
        discount = np.where(steps == left, 0.0, GAMMA**steps)
        return (rewards * GAMMA**j).sum(-1), discount, steps

    def transitions(self, lane: np.ndarray, t: np.ndarray, n: int) -> Transitions:
        r, discount, steps = self.n_step_outcome(lane, t, n)
        x, x_next = self.observation(lane, t), self.observation(lane, t + steps)
        return Transitions(x, self.action(lane, t), r, discount, x_next)

    def lane_step(self, time: int) -> LaneStep:
        """Step `time` of all lanes."""
        lane, t = self.lane, np.full(self.lanes, time)
        age, last = t % self.episode_length(lane), self.episode_length(lane) - 1
        is_running = age < last
        halves = [self.transitions(lane[is_running], t[is_running], n) for n in HORIZONS]
        return LaneStep(
            self.observation(lane, t),
            self.action(lane, t),
            np.where(is_running, self.reward(lane, t), np.float32(0)),
            age == 0,
            age == last,
            age == last - 1,
            Transitions(*map(np.concatenate, zip(*halves, strict=True))),
            self.rng.lognormal(0, 1, (self.lanes, len(HORIZONS))).astype(np.float32),
        )

    def check_batch(self, batch: Transitions, newest: int) -> None:
        """Fail unless all items are transitions of these trajectories, about half per horizon."""
        x, a, r, discount, x_next = (np.asarray(part) for part in batch)
        assert x.shape == x_next.shape == (BATCH, STACK, SIDE, SIDE)
        assert x.dtype == x_next.dtype == np.uint8
        lane, t = self._plane_number(x) % self.lanes, self._plane_number(x) // self.lanes
        assert (a.reshape(-1) == self.action(lane, t)).all()
        self._check_stacks(x, lane, t)
        matches = []
        for n in HORIZONS:
            expected_r, expected_discount, steps = self.n_step_outcome(lane, t, n)
            is_running = expected_discount > 0  # x' does not matter where the discount is 0
            match = np.isclose(r.reshape(-1), expected_r, atol=1e-4)
            match &= np.isclose(discount.reshape(-1), expected_discount)
            match &= ~is_running | (self._plane_number(x_next) == (t + steps) * self.lanes + lane)
            self._check_stacks(
                x_next[match & is_running],
                lane[match & is_running],
                (t + steps)[match & is_running],
            )
            matches.append(match)
        known = t + max(HORIZONS) <= newest  # tianshou shortens horizons at the newest slots
        assert known.mean() > 0.5
        assert (matches[0] | matches[1])[known].all()
        assert 0.3 < matches[0][known].mean() < 0.7

    def _plane_number(self, x: np.ndarray) -> np.ndarray:
        """The number in the newest planes of stacks [n, 4, 84, 84]: t * lanes + lane."""
        return np.ascontiguousarray(x[:, -1, 0, :8]).view("<i8")[:, 0] - 1

    def _check_stacks(self, x: np.ndarray, lane: np.ndarray, t: np.ndarray) -> None:
        """Compare full stacks; libraries differ in how they pad the start of an episode."""
        is_full = t % self.episode_length(lane) >= STACK - 1
        assert np.array_equal(x[is_full], self.observation(lane[is_full], t[is_full]))
