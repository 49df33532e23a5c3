"""Batches whose share of demonstrations varies, summed horizons, and spiked replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lookfurther import Config, preset
from lookfurther.config import ReplayConfig
from lookfurther.demos.episode import Episode
from lookfurther.errors import ConfigError
from lookfurther.objective import LossOutput, measure_varying_shares
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.replay.shared import AnnealedMixture, PriorityMixture
from lookfurther.replay.summed import SummedHorizonReplay
from lookfurther.training.build import build_mixture
from lookfurther.types import Batch, Chunk, Spec

SPEC = Spec("x", (2,), 1, "float32", 3, 1.0)
CPU = torch.device("cpu")


def make_chunk(steps: int, value: float, seed: int = 0, horizons: int = 2) -> Chunk:
    rng = np.random.default_rng(seed)
    return Chunk(
        plane=np.full((steps, 1, 2), value, np.float32),
        action=rng.integers(3, size=(steps, 1)),
        reward=rng.normal(size=(steps, 1)).astype(np.float32),
        mark=np.full((steps, 1), 8, np.uint8),
        priority=rng.uniform(0.1, 3, size=(steps, 1, horizons)).astype(np.float32),
        invalidate_newest=np.zeros(1, np.int64),
    )


def make_replay(
    value: float, seed: int = 0, replay_class: Any = PrioritizedReplay, **settings: Any
):
    config = ReplayConfig(horizons=(1, 3), **settings)
    replay = replay_class(SPEC, 1, 40, config, 0.9, seed=seed)
    replay.add(make_chunk(30, value, seed))
    return replay


def make_shared(mixture_class: Any, **settings: Any) -> Any:
    agent, expert = make_replay(1.0, 1, **settings), make_replay(2.0, 2, **settings)
    return mixture_class(agent, expert, 24, 8)


def test_items_are_drawn_in_proportion_to_their_mass_in_both_replays() -> None:
    """The counts of 600 batches, item by item, against the masses of one joint replay."""
    mixture = make_shared(PriorityMixture)
    masses = torch.cat([mixture.agent.tree.masses, mixture.expert.tree.masses])
    counts, size = torch.zeros(len(masses)), len(mixture.agent.tree.masses)
    for _ in range(600):
        item = mixture.sample().item
        counts += torch.bincount(torch.where(item < 0, size - 1 - item, item), minlength=2 * size)
    expected = masses / masses.sum() * 600 * 32
    assert torch.equal(counts > 0, masses > 0)
    # Strata make the variance smaller than that of independent draws, which is `expected`.
    assert ((counts - expected).abs() <= 5 * expected.sqrt()).all()


def test_joint_importance_weights_are_those_of_one_replay() -> None:
    mixture = make_shared(PriorityMixture, beta=0.7)
    batch = mixture.sample()
    agent, expert = mixture.agent.tree.masses, mixture.expert.tree.masses
    is_expert = batch.item < 0
    mass = torch.where(is_expert, expert[(-1 - batch.item) % 80], agent[batch.item % 80])
    probability = mass / (agent.sum() + expert.sum())
    expected = (probability / probability.min()) ** -0.7
    assert torch.allclose(batch.w.double(), expected, rtol=1e-6)
    assert torch.equal(batch.x[:, 0], torch.where(is_expert, 2.0, 1.0))
    assert {False, True} == set(is_expert.tolist())


@pytest.mark.parametrize("mixture_class", [PriorityMixture, AnnealedMixture])
def test_priorities_return_to_the_replay_of_their_item(mixture_class: Any) -> None:
    mixture = make_shared(mixture_class, alpha=1.0, priority_offset=0.5)
    batch = mixture.sample()
    is_expert = batch.item < 0
    mixture.update_priorities(batch.item, torch.where(is_expert, 7.0, 4.0))
    assert (mixture.agent.tree.masses[batch.item[~is_expert]] == 4.5).all()
    assert (mixture.expert.tree.masses[-1 - batch.item[is_expert]] == 7.5).all()
    assert int((mixture.expert.tree.masses == 4.5).sum()) == 0


@pytest.mark.parametrize(("share", "items"), [(0.25, 8), (0.1, 3), (0.01, 0), (0.0, 0), (1.0, 32)])
def test_annealed_share_is_the_share_of_the_batch(share: float, items: int) -> None:
    mixture = make_shared(AnnealedMixture)
    assert mixture.scheduled_share == 0.25  # of the 32 items, before the schedule begins
    mixture.scheduled_share = share
    for _ in range(20):
        batch = mixture.sample()
        drawn = batch.item < 0
        assert abs(int(drawn.sum()) - items) <= 1
        for source in (drawn, ~drawn):
            assert not source.any() or float(batch.w[source].max()) == 1.0


def test_demonstrations_are_never_evicted() -> None:
    mixture = make_shared(PriorityMixture)
    before = mixture.expert.tree.masses.clone()
    for seed in range(5):
        mixture.agent.add(make_chunk(30, 1.0, seed))
    assert torch.equal(mixture.expert.tree.masses, before)
    assert (mixture.sample().x_both[0, :, 0] == 2).any()


def test_source_metrics_follow_the_items() -> None:
    grad = torch.tensor([[1.0, 0], [2, 0], [3, 0], [0, 0], [0, 4.0], [0, 0]])
    priority = torch.tensor([1.0, 10.0, 3.0])
    scalar = torch.zeros(())
    output = LossOutput(grad, scalar, priority, priority, priority, priority)
    metrics = measure_varying_shares(output, torch.tensor([5, -1, 0]), agent_items=3)
    expected = {
        "expert_share": 1 / 3,
        "expert_share_of_gradient": 6 / 10,
        "priority_agent": 2.0,
        "priority_expert": 10.0,
    }
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx(expected)


# Summed horizons


def test_summed_rows_are_all_horizons_of_a_step() -> None:
    replay = make_replay(1.0, replay_class=SummedHorizonReplay)
    batch = replay.sample(16)
    item = batch.item.view(8, 2)
    assert (item[:, 0] % 2 == 0).all()
    assert torch.equal(item[:, 1], item[:, 0] + 1)
    assert batch.e.view(8, 2).tolist() == [[1.0, 0.0]] * 8  # the imitation loss counts once
    slot = item[:, 0] // 2
    rewards = replay.rewards
    assert torch.equal(batch.r.view(8, 2)[:, 0], rewards[slot])
    three = rewards[slot] + 0.9 * rewards[slot + 1] + 0.81 * rewards[slot + 2]
    assert torch.allclose(batch.r.view(8, 2)[:, 1], three, atol=1e-6)


def test_mean_over_summed_rows_is_mean_over_steps_of_sums() -> None:
    replay = make_replay(1.0, replay_class=SummedHorizonReplay, beta=0.5)
    batch = replay.sample(16)
    mass = replay.tree.get(batch.item.view(8, 2)[:, 0].numpy())
    step_weights = (mass / mass.min()) ** -0.5
    losses = np.random.default_rng(0).uniform(size=(8, 2))
    expected = (step_weights * losses.sum(1)).mean()
    assert float((batch.w.numpy() * losses.reshape(-1)).mean()) == pytest.approx(expected, rel=1e-6)


def test_step_has_the_priority_of_its_first_horizon() -> None:
    replay = make_replay(1.0, replay_class=SummedHorizonReplay, alpha=1.0, priority_offset=0.5)
    assert (replay.tree.masses.view(-1, 2)[:, 1] == 0).all()
    assert (replay.tree.masses.view(-1, 2)[:20, 0] > 0).all()
    batch = replay.sample(16)
    replay.update_priorities(batch.item, torch.tensor([6.0, 1.0]).repeat(8))
    assert (replay.tree.masses[batch.item[::2]] == 6.5).all()
    for part in replay.iter_items(8):
        assert torch.equal(part.item[1::2], part.item[::2] + 1)


def test_summed_and_shared_replays_combine() -> None:
    """The replay of DQfD."""
    settings = {"replay_class": SummedHorizonReplay}
    agent, expert = make_replay(1.0, 1, **settings), make_replay(2.0, 2, **settings)
    mixture = PriorityMixture(agent, expert, 32, 0)
    batch = mixture.sample()
    value = batch.x[:, 0].view(16, 2)
    assert torch.equal(value[:, 0], value[:, 1])
    assert torch.equal(value[:, 0] == 2, batch.item[::2] < 0)
    mixture.update_priorities(batch.item, torch.ones(32))


# From the configuration


def random_episode(steps: int, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    planes = rng.normal(size=(steps + 1, 2)).astype(np.float32)
    rewards = rng.normal(size=steps).astype(np.float32)
    return Episode(planes, rng.integers(3, size=steps), rewards, terminal=True)


def shared_config(mode: str, **overrides: Any) -> Config:
    tiny: dict[str, Any] = {"actor__lanes": 2, "replay__capacity": 400, "replay__horizons": (1, 3)}
    items: dict[str, Any] = {"learner__agent_items": 8, "learner__expert_items": 0}
    return preset("apex-dqfd", env="x", learner__demonstrations=mode, **(tiny | items | overrides))


def test_each_source_has_its_own_priority_offset() -> None:
    offsets = {"replay__priority_offset": 0.001, "replay__expert_priority_offset": 1.0}
    config = shared_config("priority", replay__alpha=1.0, **offsets)
    mixture = build_mixture(config, SPEC, [random_episode(20)], CPU)
    assert isinstance(mixture, PriorityMixture)
    assert mixture.demos.tree.masses[:20].tolist() == [2.0] * 20  # a first priority of 1
    mixture.agent.add(make_chunk(10, 1.0), first_lane=0)
    chunk = make_chunk(10, 1.0)
    expected = np.asarray(chunk.priority, np.float64)[3:, 0].reshape(-1) + 0.001
    assert mixture.agent.tree.masses[:14].tolist() == pytest.approx(expected.tolist())


def test_spiked_demonstrations_are_in_the_agents_replay_until_replaced() -> None:
    config = shared_config("spike", learner__im_weight=0.0)
    episodes = [random_episode(40, 1), random_episode(30, 2), random_episode(5, 3)]
    mixture = build_mixture(config, SPEC, episodes, CPU)
    agent = mixture.agent
    assert type(mixture) is ReplayMixture
    assert mixture.expert is None
    assert agent.inserted == 0  # they are not steps of the agent
    assert int((agent.tree.masses > 0).sum()) == 2 * (40 + 30 + 5)
    assert agent.cursor.tolist() == [40 + 1 + 3, 30 + 1 + 3 + 5 + 1 + 3]
    shown = {tuple(x.tolist()) for batch in agent.iter_items(8) for x in batch.x}
    assert shown == {tuple(p.tolist()) for e in episodes for p in e.planes[:-1]}
    returns = [float(batch.r[0]) for batch in agent.iter_items(1)]
    assert returns[0] == pytest.approx(float(episodes[0].rewards[0]))
    for _ in range(20):  # 200 steps in each of the lanes of 200 slots
        for lane in (0, 1):
            agent.add(make_chunk(10, 9.0), first_lane=lane)
    assert {float(x[0]) for batch in agent.iter_items(8) for x in batch.x} == {9.0}


def test_spiked_demonstration_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"demonstration 0 does not fit.*raise replay.capacity"):
        build_mixture(shared_config("spike"), SPEC, [random_episode(200)], CPU)


def test_pretraining_batches_are_demonstrations_alone() -> None:
    config = shared_config("fixed", learner__expert_items=4)
    mixture = build_mixture(config, SPEC, [random_episode(20)], CPU)
    batch: Batch = mixture.expert_only().sample()
    assert len(batch.a) == 12
    assert batch.e.tolist() == [1.0] * 12
