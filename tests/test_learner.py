"""Algorithm 1, one update at a time, against independent arithmetic."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther.config import LearnerConfig, ReplayConfig
from lookfurther.errors import TrainingDiverged
from lookfurther.learner import Learner, UpdateResult
from lookfurther.master_weights import MasterWeights
from lookfurther.objective import expert_gradient_share
from lookfurther.optimizers.adam import Adam
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import Batch, Chunk, Spec

CPU = torch.device("cpu")


def make_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def make_batch(size: int, seed: int = 0, agent: int | None = None) -> Batch:
    g = torch.Generator().manual_seed(seed)
    expert = torch.arange(size) >= (size if agent is None else agent)
    return Batch(
        x_both=torch.randn(2, size, 3, generator=g),
        a=torch.randint(4, (size,), generator=g),
        r=3 * torch.randn(size, generator=g),
        discount=torch.where(torch.rand(size, generator=g) < 0.2, 0.0, 0.99),
        e=expert.float(),
        w=torch.rand(size, generator=g) + 0.1,
        floor=torch.where(expert, 3 * torch.randn(size, generator=g), -torch.inf),
        a_next=torch.randint(4, (size,), generator=g),
        item=torch.arange(size),
    )


def run_update(learner: Learner, batch: Batch) -> UpdateResult:
    """One iteration of Algorithm 1, as `training/updates.py` runs it."""
    prepared = learner.prepare_batch(batch)
    learner.prepare_into(prepared)
    result = learner.update(prepared)
    learner.finish_update()
    return result


def h(z: Tensor) -> Tensor:
    return z.sign() * ((z.abs() + 1).sqrt() - 1) + 1e-2 * z


def h_inv(x: Tensor) -> Tensor:
    root = (1 + 0.04 * (x.abs() + 1 + 0.01)).sqrt()
    return x.sign() * (((root - 1) / 0.02) ** 2 - 1)


def huber(x: Tensor) -> Tensor:
    return nn.functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none")


def without_floor(b: Batch) -> Batch:
    return b._replace(floor=torch.full_like(b.floor, -torch.inf))


def printed_loss(
    online: nn.Module, target: nn.Module, b: Batch, margin: float, alpha: float = 0.0
) -> Tensor:
    """L_TD + L_TC + L_IM item by item, as the paper prints them, in float64.

    Includes two extensions: a floor under bootstrap values and anchors, and limited advantage
    learning.
    """
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(b.a)):
        q, q_next = online(b.x[i]), online(b.x_next[i])
        with torch.no_grad():
            frozen = target(b.x_next[i])
        a, a_next = int(b.a[i]), int(q_next.argmax())
        value = anchor = frozen[a_next]
        if b.floor[i] > -torch.inf:
            value = max(value, h(b.floor[i]))
            anchor = value if a_next == int(b.a_next[i]) else anchor
        gap = (q[a] - q.max()).detach().clamp(min=-1)
        td = huber(q[a] - h(b.r[i] + b.discount[i] * h_inv(value)) - alpha * gap)
        tc = huber(q_next[a_next] - anchor) if b.discount[i] > 0 else 0.0
        rivals = torch.stack([q[j] + (margin if j != a else 0.0) for j in range(4)])
        im = b.e[i] * (rivals.max() - q[a])
        total = total + b.w[i] * (td + tc + im)
    return total / len(b.a)


def to_float64(b: Batch) -> Batch:
    return Batch(*(v.double() if v.is_floating_point() else v for v in b))


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("change_batch", [without_floor, lambda b: b], ids=["no floor", "floor"])
def test_update_is_adam_step_on_printed_loss(change_batch: Callable[[Batch], Batch], alpha: float):
    config = LearnerConfig(
        agent_items=24, expert_items=8, learning_rate=1e-2, advantage_learning=alpha
    )
    learner = Learner(make_network(), config, CPU, torch.float32)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    online, target = make_network().double(), make_network(1).double()
    adam = torch.optim.Adam(online.parameters(), lr=1e-2, eps=0.01 / 256)
    for k in range(5):
        b = change_batch(make_batch(32, seed=k, agent=24))
        update = run_update(learner, b)
        adam.zero_grad()
        loss = printed_loss(online, target, to_float64(b), config.margin, alpha)
        loss.backward()
        adam.step()
        assert float(update.metrics["loss"]) == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(learner.online_network.parameters(), online.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("changed", "term"), [({"tc_weight": 0.0}, "loss_tc"), ({"im_weight": 0.0}, "loss_im")]
)
def test_ablated_loss_term_is_reported_only(changed: dict, term: str):
    config = LearnerConfig(agent_items=24, expert_items=8, **changed)
    learner = Learner(make_network(), config, CPU, torch.float32)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    metrics = run_update(learner, make_batch(32, agent=24)).metrics
    rest = {"loss_td", "loss_tc", "loss_im"} - {term}
    assert float(metrics["loss"]) == pytest.approx(
        sum(float(metrics[name]) for name in rest), rel=1e-5
    )
    assert float(metrics[term]) > 0


def test_priority_metrics_separate_agent_and_expert():
    config = LearnerConfig(agent_items=24, expert_items=8)
    learner = Learner(make_network(), config, CPU, torch.float32)
    update = run_update(learner, make_batch(32, agent=24))
    means = [float(part.mean()) for part in (update.priority[:24], update.priority[24:])]
    reported = [float(update.metrics[name]) for name in ("priority_agent", "priority_expert")]
    assert reported == pytest.approx(means, rel=1e-5)
    assert means[0] != pytest.approx(means[1], rel=1e-3)


def test_expert_gradient_share_counts_both_states():
    grad_q = torch.tensor([[1.0, 0.0], [0.0, -2.0], [0.0, 2.0], [3.0, 0.0]])  # x of two, then x'
    assert float(expert_gradient_share(grad_q, agent_items=1)) == pytest.approx(5 / 8)


def test_gradients_are_clipped_by_global_norm():
    config = LearnerConfig(agent_items=32, expert_items=0, max_gradient_norm=1e-3)
    learner = Learner(make_network(), config, CPU, torch.float32)
    norm = run_update(learner, make_batch(32)).metrics["gradient_norm"]
    assert isinstance(learner.optimizer, Adam)
    moments = torch.cat([mean.flatten() for mean in learner.optimizer.first_moments])
    assert norm > 1e-3
    assert float(moments.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-5)  # (1 - beta_1) g


def test_adam_eps_is_added_after_bias_correction():
    """The first step is learning_rate g / (|g| + eps), here half of the learning rate."""
    parameter = torch.zeros(2)
    adam = Adam([parameter], learning_rate=0.25, eps=0.5)
    adam.step([torch.tensor([0.5, -0.5])], torch.tensor(True))
    assert parameter.tolist() == pytest.approx([-0.125, 0.125], rel=1e-5)


def test_adam_detects_parameters_with_gaps():
    whole = torch.zeros(4, 3, 2, 2)
    for p, dense in (
        (whole, True),
        (whole.contiguous(memory_format=torch.channels_last), True),
        (whole.transpose(0, 1), True),
        (torch.tensor(1.0), True),
        (whole[:, ::2], False),
        (whole[:1].expand(4, 3, 2, 2), False),
    ):
        assert Adam([whole, p], 1.0, 1.0).is_dense == dense


def test_priorities_are_huber_loss_before_or_after_step():
    b = make_batch(32)
    for after in (False, True):
        config = LearnerConfig(
            agent_items=32, expert_items=0, priority_after_step=after, learning_rate=0.1
        )
        learner = Learner(make_network(), config, CPU, torch.float32)
        before = learner.compute_priority(b)
        priority = run_update(learner, b).priority
        assert torch.allclose(priority, learner.compute_priority(b) if after else before, atol=1e-6)
        assert not torch.allclose(before, learner.compute_priority(b), atol=1e-3)


@pytest.mark.parametrize("after", [False, True])
def test_imitation_loss_in_priority_is_that_of_wrong_expert_actions(after: bool) -> None:
    b = make_batch(32, agent=20)
    results = []
    for losses in ("td", "td+im"):
        config = LearnerConfig(
            agent_items=20,
            expert_items=12,
            learning_rate=0.1,
            priority_losses=losses,
            priority_after_step=after,
        )
        learner = Learner(make_network(), config, CPU, torch.float32)
        results.append((run_update(learner, b).priority, learner))
    (td, _), (both, learner) = results
    network = learner.online_network if after else make_network()
    q = network(b.x_both[0]).detach()
    q_expert = q.gather(1, b.a.unsqueeze(1)).squeeze(1)
    rival = (q + learner.config.margin).scatter(1, b.a.unsqueeze(1), -torch.inf).max(1).values
    wrong = (rival - q_expert).clamp(min=0)
    assert torch.equal(both[:20], td[:20])
    assert torch.allclose(both[20:], (td + wrong)[20:], atol=1e-5)
    assert (wrong[20:] > 0).any()
    assert torch.allclose(both, learner.compute_priority(b), atol=1e-6) == after


def test_bfloat16_update_refreshes_compute_network():
    """The learner keeps weights in float32 and computes with a rounded copy of them."""
    config = LearnerConfig(agent_items=8, expert_items=0, learning_rate=0.1)
    learner, x = Learner(make_network(), config, CPU, torch.bfloat16), make_batch(8).x
    for k in range(3):
        before = learner.online_weights.q_values(x)
        run_update(learner, make_batch(8, seed=k))
        rounded = MasterWeights(copy.deepcopy(learner.online_network), torch.bfloat16)
        assert torch.equal(learner.online_weights.q_values(x), rounded.q_values(x))
        assert not torch.equal(learner.online_weights.q_values(x), before)


def test_target_network_is_copied_every_period_only():
    config = LearnerConfig(agent_items=8, expert_items=0, target_period=3)
    learner = Learner(make_network(), config, CPU, torch.float32)
    expected = copy.deepcopy(learner.target_network.state_dict())
    for k in range(1, 7):
        run_update(learner, make_batch(8, seed=k))
        if k % 3 == 0:
            expected = copy.deepcopy(learner.online_network.state_dict())
        assert all(
            torch.equal(v, expected[n]) for n, v in learner.target_network.state_dict().items()
        )


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_non_finite_loss_raises_and_keeps_weights(poison: float):
    learner = Learner(
        make_network(), LearnerConfig(agent_items=8, expert_items=0), CPU, torch.float32
    )
    run_update(learner, make_batch(8))
    before = copy.deepcopy(learner.online_network.state_dict())
    b = make_batch(8, seed=1)
    b.w[3] = poison
    with pytest.raises(TrainingDiverged, match="update 2"):
        run_update(learner, b)
    assert all(torch.equal(v, before[n]) for n, v in learner.online_network.state_dict().items())
    assert learner.updates == 1


def test_restored_learner_repeats_updates():
    config = LearnerConfig(agent_items=8, expert_items=0, target_period=3)
    one = Learner(make_network(), config, CPU, torch.float32)
    for k in range(4):
        run_update(one, make_batch(8, seed=k))
    two = Learner(make_network(5), config, CPU, torch.float32)
    saved = {f: {k: v.clone() for k, v in s.items()} for f, s in one.state().items()}
    two.load_state(saved, one.updates)
    for k in range(4, 8):
        run_update(one, make_batch(8, seed=k))
        run_update(two, make_batch(8, seed=k))
    for ours, theirs in zip(one.state().values(), two.state().values(), strict=True):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)


def make_replay(value: float) -> PrioritizedReplay:
    replay = PrioritizedReplay(SPEC, 1, 60, ReplayConfig(), 0.9)
    k = 40
    replay.add(
        Chunk(
            plane=np.full((k, 1, 3), value, np.float32),
            action=np.zeros((k, 1), np.int64),
            reward=np.zeros((k, 1), np.float32),
            mark=np.zeros((k, 1), np.uint8),
            priority=np.ones((k, 1, 2), np.float32),
            invalidate_newest=np.zeros(1, np.int64),
        )
    )
    return replay


def test_mixture_draws_192_agent_and_64_expert_items():
    agent, expert = make_replay(1.0), make_replay(2.0)
    mixture = ReplayMixture(agent, expert, 192, 64)
    batch = mixture.sample()
    for _ in range(10):
        batch = mixture.sample()
        assert (batch.x[:192] == 1).all()
        assert (batch.x[192:] == 2).all()
        assert len(batch.x) == 256
        assert batch.w[:192].max() == batch.w[192:].max() == 1
    mixture.update_priorities(
        batch.item, torch.cat([torch.full((192,), 3.0), torch.full((64,), 5.0)])
    )
    expected = (torch.tensor([3.0, 5.0]).double() + 1e-6) ** 0.6
    assert torch.allclose(agent.tree.masses[batch.item[:192]], expected[0])
    assert torch.allclose(expert.tree.masses[batch.item[192:]], expected[1])
