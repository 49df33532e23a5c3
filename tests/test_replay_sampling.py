"""Draws, priorities, saved state and size of the replay."""

from collections import defaultdict
from unittest.mock import patch

import numpy as np
import pytest
import torch

from lookfurther import config
from lookfurther.replay import prioritized, slots, sum_tree
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import BEST, FIRST, TERMINAL, TRUNCATED, Batch, Chunk, Spec
from tests.test_replay import VECTOR


def random_chunk(rng: np.random.Generator, lanes: int, invalidate_newest: int = 0) -> Chunk:
    return Chunk(
        plane=rng.random((1, lanes, 2), np.float32),
        action=rng.integers(4, size=(1, lanes)),
        reward=rng.random((1, lanes), np.float32),
        mark=np.zeros((1, lanes), np.uint8),
        priority=rng.random((1, lanes, 2), np.float32) + 0.01,
        invalidate_newest=np.full(lanes, invalidate_newest),
    )


def filled_replay(alpha: float = 0.6, beta: float = 0.4, seed: int = 0) -> PrioritizedReplay:
    replay = PrioritizedReplay(
        VECTOR, 2, 80, config.ReplayConfig(alpha=alpha, beta=beta), 0.9, seed=seed
    )
    rng = np.random.default_rng(0)
    for _ in range(70):
        replay.add(random_chunk(rng, 2))
    return replay


def test_items_are_sampled_in_proportion_to_mass():
    replay = filled_replay()
    share = (replay.tree.masses / replay.tree.total_mass).numpy()
    draws, rounds = 64, 2000
    counts = np.zeros(len(share))
    for _ in range(rounds):
        counts += np.bincount(replay.sample(draws).item.numpy(), minlength=len(share))
    expected = share * draws * rounds
    assert (counts[share == 0] == 0).all()
    # Stratified draws vary less than independent ones, so the multinomial bound holds.
    deviation = (counts - expected)[share > 0] / np.sqrt(expected[share > 0])
    assert np.abs(deviation).max() < 4.5
    assert (deviation**2).mean() < 1.2


def test_each_stratum_gives_one_item():
    replay = filled_replay()
    edges = replay.tree.masses.cumsum(0) / replay.tree.total_mass
    for _ in range(20):
        item = replay.sample(32).item
        strata = torch.arange(32)
        lower = torch.where(item > 0, edges[item - 1], 0.0)
        assert (lower <= (strata + 1) / 32 + 1e-9).all()
        assert (edges[item] >= strata / 32 - 1e-9).all()


def test_weights_use_probabilities_at_sampling_time():
    replay = filled_replay(beta=0.7)
    batch = replay.sample(40)
    probability = (replay.tree.masses / replay.tree.total_mass)[batch.item]
    expected = (len(replay.tree.masses) * probability) ** -0.7
    assert torch.allclose(batch.w.double(), expected / expected.max(), rtol=1e-6)
    assert batch.w.max() == 1


def test_update_priorities_changes_given_items_only():
    replay = filled_replay(alpha=0.5)
    before = replay.tree.masses.clone()
    item = replay.sample(8).item.unique()
    replay.update_priorities(item, torch.full((len(item),), 4.0))
    assert torch.allclose(replay.tree.masses[item], torch.tensor(2.0).double(), rtol=1e-6)
    rest = torch.ones(len(before), dtype=torch.bool)
    rest[item] = False
    assert torch.equal(replay.tree.masses[rest], before[rest])


def test_initial_mass_is_power_of_priority():
    """For every item, before the first sample."""
    alpha, offset = 0.5, 0.25
    subject = PrioritizedReplay(
        VECTOR, 2, 80, config.ReplayConfig(alpha=alpha, priority_offset=offset), 0.9
    )
    rng, turns = np.random.default_rng(0), 30
    chunks = [random_chunk(rng, 2) for _ in range(turns)]
    for chunk in chunks:
        subject.add(chunk)
    mass = subject.tree.masses.view(2, subject.slots_per_lane, 2)
    for t in range(turns - subject.max_horizon):
        given = torch.from_numpy(chunks[t + subject.max_horizon].priority[0]).double()
        assert torch.allclose(mass[:, t], (given + offset) ** alpha, rtol=1e-9)
    assert (mass[:, turns - subject.max_horizon :] == 0).all()


def test_overwritten_item_stays_unsamplable():
    replay = filled_replay()
    rng = np.random.default_rng(1)
    batch = replay.sample(64)
    for _ in range(replay.slots_per_lane):
        replay.add(random_chunk(rng, 2)._replace(priority=np.zeros((1, 2, 2), np.float32)))
    replay.update_priorities(batch.item, torch.ones(64))
    assert replay.tree.total_mass == 0


def test_dropped_episode_is_never_sampled():
    replay = filled_replay()
    rng = np.random.default_rng(2)
    replay.add(random_chunk(rng, 2, invalidate_newest=15))
    samplable_times = defaultdict(set)
    for item in replay.tree.masses.nonzero().view(-1).tolist():
        lane, position = divmod(item // 2, replay.slots_per_lane)
        samplable_times[lane].add(70 - (70 - position) % replay.slots_per_lane)
    assert all(max(times) == 70 - 15 for times in samplable_times.values())


def test_state_restores_contents_priorities_and_draws():
    replay = filled_replay(seed=3)
    saved = {name: value.clone() for name, value in replay.state().items()}
    other = PrioritizedReplay(VECTOR, 2, 80, replay.config, 0.9, seed=99)
    other.load_state(saved)
    for _ in range(3):
        for ours, theirs in zip(replay.sample(32), other.sample(32), strict=True):
            assert torch.equal(ours, theirs)
    rng = np.random.default_rng(4), np.random.default_rng(4)
    replay.add(random_chunk(rng[0], 2))
    other.add(random_chunk(rng[1], 2))
    assert all(torch.equal(v, other.state()[k]) for k, v in replay.state().items())


def random_chunks(seed: int, turns: int) -> list[Chunk]:
    """Chunks of 1 and 2 slots of two lanes with starts, ends of both kinds and dropped episodes."""
    rng, chunks = np.random.default_rng(seed), []
    for i in range(turns):
        parts = [random_chunk(rng, 2) for _ in range(1 + i % 2)]
        plane, action, reward, mark, priority, _ = map(np.concatenate, zip(*parts, strict=True))
        marked = rng.random(mark.shape) < 0.2
        mark[marked] = rng.choice([FIRST, TERMINAL, TRUNCATED, BEST], marked.sum())
        priority[rng.random(priority.shape) < 0.2] = 0
        invalidate_newest = np.where(rng.random(2) < 0.05, 7, 0)
        chunks.append(Chunk(plane, action, reward, mark, priority, invalidate_newest))
    return chunks


def sampled_batches(chunks: list[Chunk], compiled: str = "") -> list[Batch]:
    """Batches drawn while chunks arrive and priorities change, then all samplable items."""
    subject = PrioritizedReplay(
        VECTOR, 2, 2 * 47, config.ReplayConfig(horizons=(1, 3, 10)), 0.9, seed=1
    )
    if compiled:
        subject._draw_items = torch.compile(subject._draw_items, fullgraph=True, backend=compiled)
        subject.update_priorities = torch.compile(
            subject.update_priorities, fullgraph=True, backend=compiled
        )
    batches = []
    for i, chunk in enumerate(chunks):
        subject.add(chunk._replace(priority=chunk.priority[..., [0, 1, 1]]))
        if i > 20:
            batches.append(subject.sample(16))
            subject.update_priorities(batches[-1].item, batches[-1].item.float().cos().abs())
    return [*batches, *subject.iter_items(50)]


@pytest.mark.parametrize("compiled", ["", "eager"])
def test_torch_replay_matches_numpy_replay(compiled: str):
    """The torch code that a GPU runs, eager and traced as one graph, against NumPy."""
    chunks = random_chunks(0, 90)
    host = sampled_batches(chunks)
    with (
        patch.object(prioritized, "to_native", lambda x: x),
        patch.object(slots, "to_native", lambda x: x),
        patch.object(sum_tree, "to_native", lambda x: x),
    ):
        device = sampled_batches(chunks, compiled)
    for ours, theirs in zip(host, device, strict=True):
        assert torch.allclose(ours.w, theirs.w, rtol=1e-6)
        for name in ("x_both", "a", "r", "discount", "e", "item"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    discounts = torch.cat([b.discount for b in host]).unique()
    assert torch.allclose(discounts, torch.tensor([0.0, *(0.9**n for n in range(10, 0, -1))]))


def test_memory_matches_estimate():
    spec = Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    replay = PrioritizedReplay(spec, 4, 20_000, config.ReplayConfig(), 0.999)
    estimated = PrioritizedReplay.estimate_bytes(spec, 20_000, 2)
    assert abs(replay.num_bytes - estimated) < 0.01 * estimated
    assert replay.num_bytes / 20_000 < 7300
