"""The actor's trajectories and initial priorities against step-by-step oracles."""

from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther.actor import Actor
from lookfurther.config import Config
from lookfurther.envs import make_envs
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.types import FIRST, TERMINAL, TRUNCATED, Chunk, Spec, Step

SPEC = Spec("toy", (2,), 1, "float32", 3, 1.0)
MAX_HORIZON = 4


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.1, -1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def make_config(lanes: int, **overrides) -> Config:
    return preset(
        "no-demos", env="toy", actor__lanes=lanes, replay__horizons=(1, MAX_HORIZON), **overrides
    )


def make_actor(lanes: int, **overrides) -> Actor:
    weights = MasterWeights(Linear(), torch.float32)
    return Actor(weights, SPEC, make_config(lanes, **overrides), range(lanes))


def select_actions(actor: Actor, step: Step) -> np.ndarray:
    """The actions for a step; `complete_slot` has loaded all steps but the first."""
    if not actor.episode_length.any():
        actor.load_step(step)
    actor.select_actions()
    return actor.open_slot["action"].numpy().copy()


def complete_slot(actor: Actor, step: Step) -> Chunk:
    actor.load_step(step)
    actor.close_slot()
    return Chunk(*(np.array(part) for part in actor.closed_chunk()))


def random_steps(rng: np.random.Generator, count: int, lanes: int) -> list[Step]:
    """Steps with next-step autoreset: `first` follows an end."""
    steps, ended = [], np.ones(lanes, bool)
    for _ in range(count):
        first = ended
        kind = np.where(first, 0, rng.choice(3, lanes, p=[0.7, 0.15, 0.15]))
        step = Step(
            observation=rng.normal(size=(lanes, 2)).astype(np.float32),
            reward=np.where(first, 0, rng.integers(-3, 4, lanes)).astype(np.float32),
            terminal=kind == 1,
            truncated=kind == 2,
            first=first,
            dropped=np.zeros(lanes, bool),
        )
        steps.append(step)
        ended = step.terminal | step.truncated
    return steps


def h(z: float, eps: float = 1e-2) -> float:
    return np.sign(z) * (np.sqrt(abs(z) + 1) - 1) + eps * z


def h_inv(x: float, eps: float = 1e-2) -> float:
    return np.sign(x) * (((np.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1)


def expected_priority(steps: list[Step], actions: list[np.ndarray], lane: int, t: int, n: int):
    """Huber of f(x, a) - h(r + gamma^k h^-1(max f(x'))), or 0 for an end."""
    w = Linear().w.detach().numpy().astype(np.float64)
    value = lambda t: steps[t].observation[lane].astype(np.float64) @ w  # noqa: E731
    if steps[t].terminal[lane] or steps[t].truncated[lane]:
        return 0.0
    r, k = 0.0, 0
    while k < n:
        r += 0.999**k * steps[t + k + 1].reward[lane]
        k += 1
        if steps[t + k].terminal[lane] or steps[t + k].truncated[lane]:
            break
    bootstrap = 0.0 if steps[t + k].terminal[lane] else 0.999**k * h_inv(value(t + k).max())
    error = abs(value(t)[actions[t][lane]] - h(r + bootstrap))
    return 0.5 * error**2 if error <= 1 else error - 0.5


def test_initial_priorities_are_huber_td_loss():
    rng = np.random.default_rng(0)
    lanes, count = 3, 60
    steps = random_steps(rng, count, lanes)
    actor = make_actor(lanes)
    actions, chunks = [], []
    for t in range(count - 1):
        actions.append(select_actions(actor, steps[t]))
        chunks.append(complete_slot(actor, steps[t + 1]))
    assert all((c.priority == 0).all() for c in chunks[:MAX_HORIZON])
    for t in range(count - 1 - MAX_HORIZON):
        for lane in range(lanes):
            for h_index, n in enumerate((1, MAX_HORIZON)):
                expected = expected_priority(steps, actions, lane, t, n)
                priority = chunks[t + MAX_HORIZON].priority[0, lane, h_index]
                assert priority == pytest.approx(expected, rel=1e-4, abs=1e-6)
                assert (priority == 0) == bool(steps[t].terminal[lane] or steps[t].truncated[lane])


def test_item_with_zero_td_error_is_samplable():
    """Its priority is above 0, since 0 means never."""
    actor = make_actor(1)
    with torch.no_grad():
        for parameter in actor.weights.network.parameters():
            parameter.zero_()
    steps = [s._replace(reward=s.reward * 0) for s in random_steps(np.random.default_rng(5), 20, 1)]
    for t, (now, after) in enumerate(pairwise(steps)):
        select_actions(actor, now)
        priority = complete_slot(actor, after).priority[0, 0]
        if t >= MAX_HORIZON:
            ended = bool(steps[t - MAX_HORIZON].terminal[0] or steps[t - MAX_HORIZON].truncated[0])
            assert ((priority > 0) == (not ended)).all()


def test_slot_holds_observation_action_and_reward():
    rng = np.random.default_rng(1)
    steps = random_steps(rng, 30, 2)
    actor = make_actor(2)
    for now, after in pairwise(steps):
        action = select_actions(actor, now)
        chunk = complete_slot(actor, after)
        assert np.array_equal(chunk.plane[0], now.observation)
        assert np.array_equal(chunk.action[0], action)
        assert np.array_equal(chunk.reward[0], after.reward)
        mark = now.first * FIRST + now.terminal * TERMINAL + now.truncated * TRUNCATED
        assert np.array_equal(chunk.mark[0], mark)


def test_rewards_are_clipped_before_summing():
    rng = np.random.default_rng(2)
    steps = random_steps(rng, 10, 2)
    actor = make_actor(2, environment__reward_transform="clip")
    for now, after in pairwise(steps):
        select_actions(actor, now)
        assert np.array_equal(complete_slot(actor, after).reward[0], after.reward.clip(-1, 1))


def test_dropped_episode_is_invalidated_whole():
    rng = np.random.default_rng(3)
    steps = [
        s._replace(terminal=s.terminal & False, truncated=s.truncated & False)
        for s in random_steps(rng, 20, 1)
    ]
    steps = [s._replace(first=np.array([t == 0])) for t, s in enumerate(steps)]
    steps[7] = steps[7]._replace(first=np.array([True]), dropped=np.array([True]))
    actor = make_actor(1)
    chunks = []
    for now, after in pairwise(steps):
        select_actions(actor, now)
        chunks.append(complete_slot(actor, after))
    assert [int(c.invalidate_newest[0]) for c in chunks] == [7 if t == 6 else 0 for t in range(19)]
    released = [bool((c.priority > 0).any()) for c in chunks]
    # Slots 0 and 1 were released before the fault at step 7 and invalidated; 2 to 6 never are.
    assert released == [t in (4, 5) or t >= 11 for t in range(19)]


def test_restored_actor_repeats_chunks():
    rng = np.random.default_rng(4)
    steps = random_steps(rng, 30, 2)
    one = make_actor(2)
    for now, after in pairwise(steps[:16]):
        select_actions(one, now)
        complete_slot(one, after)
    two = make_actor(2, run__seed=7)
    two.load_state({k: v.clone() for k, v in one.state().items()})
    two.copy_to_device(steps[15])
    for now, after in pairwise(steps[15:]):
        assert np.array_equal(select_actions(one, now), select_actions(two, now))
        for ours, theirs in zip(complete_slot(one, after), complete_slot(two, after), strict=True):
            assert np.array_equal(ours, theirs)


def test_newest_planes_rebuild_env_stacks():
    """As on a GPU, on real games, across ends of both kinds."""
    config = preset(
        "no-demos", env="ALE/Breakout-v5", actor__lanes=3, environment__max_episode_length=60
    )
    with closing(make_envs(config.env, config.environment, 3, seed=0, threads=1)) as envs:
        network = make_network_builder(config.network)(envs.spec)
        actor = Actor(MasterWeights(network, torch.float32), envs.spec, config, range(3))
        actor.copies_newest_plane, incremental, random = True, 0, np.random.default_rng(0)
        step = envs.reset()
        for _ in range(150):
            actor.load_step(step)
            assert np.array_equal(actor.x.numpy(), step.observation)
            incremental += not step.first.any()
            envs.send(random.integers(0, 18, 3))
            step = envs.recv()
        assert 100 < incremental < 149
