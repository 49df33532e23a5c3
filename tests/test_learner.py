"""Algorithm 1, one step at a time, against independent arithmetic."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther import config
from lookfurther.adam import Adam
from lookfurther.errors import TrainingDiverged
from lookfurther.learner import Learner
from lookfurther.master_weights import MasterWeights
from lookfurther.objective import expert_gradient_share
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

    With the two extensions: bootstrap values and anchors not below a floor, advantage learning.
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
        gap = (q[a] - q.max()).detach()
        td = huber(q[a] - h(b.r[i] + b.discount[i] * h_inv(value)) - alpha * gap)
        tc = huber(q_next[a_next] - anchor) if b.discount[i] > 0 else 0.0
        rivals = torch.stack([q[j] + (margin if j != a else 0.0) for j in range(4)])
        im = b.e[i] * (rivals.max() - q[a])
        total = total + b.w[i] * (td + tc + im)
    return total / len(b.a)


def duplicate_batch(b: Batch) -> Batch:
    return Batch(*(v.double() if v.is_floating_point() else v for v in b))


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("prepared", [without_floor, lambda b: b], ids=["no floor", "floor"])
def test_the_step_is_adam_on_the_printed_loss(prepared: Callable[[Batch], Batch], alpha: float):
    settings = config.LearnerConfig(
        agent_items=24, expert_items=8, learning_rate=1e-2, advantage_learning=alpha
    )
    learner = Learner(make_network(), settings, CPU, torch.float32)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    online, target = make_network().double(), make_network(1).double()
    adam = torch.optim.Adam(online.parameters(), lr=1e-2, eps=0.01 / 256)
    for k in range(5):
        b = prepared(make_batch(32, seed=k, agent=24))
        update = learner.step(b)
        adam.zero_grad()
        loss = printed_loss(online, target, duplicate_batch(b), settings.margin, alpha)
        loss.backward()
        adam.step()
        assert float(update.metrics["loss"]) == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(learner.online_network.parameters(), online.parameters(), strict=True):
        assert torch.allclose(ours.double(), theirs, atol=2e-5)


@pytest.mark.parametrize(
    ("changed", "term"), [({"tc_weight": 0.0}, "loss_tc"), ({"im_weight": 0.0}, "loss_im")]
)
def test_an_ablated_term_is_reported_but_has_no_part_in_the_loss(changed: dict, term: str):
    settings = config.LearnerConfig(agent_items=24, expert_items=8, **changed)
    learner = Learner(make_network(), settings, CPU, torch.float32)
    learner.target_weights.load_state_dict(make_network(1).state_dict())
    terms = learner.step(make_batch(32, agent=24)).metrics
    rest = {"loss_td", "loss_tc", "loss_im"} - {term}
    assert float(terms["loss"]) == pytest.approx(sum(float(terms[name]) for name in rest), rel=1e-5)
    assert float(terms[term]) > 0


def test_priorities_are_reported_for_agent_and_expert_apart():
    settings = config.LearnerConfig(agent_items=24, expert_items=8)
    update = Learner(make_network(), settings, CPU, torch.float32).step(make_batch(32, agent=24))
    means = [float(part.mean()) for part in (update.priority[:24], update.priority[24:])]
    reported = [float(update.metrics[name]) for name in ("priority_agent", "priority_expert")]
    assert reported == pytest.approx(means, rel=1e-5)
    assert means[0] != pytest.approx(means[1], rel=1e-3)


def test_experts_share_counts_the_slopes_at_both_states_of_an_item():
    slope = torch.tensor([[1.0, 0.0], [0.0, -2.0], [0.0, 2.0], [3.0, 0.0]])  # x of two, then x'
    assert float(expert_gradient_share(slope, agent_items=1)) == pytest.approx(5 / 8)


def test_gradients_are_clipped_by_their_global_norm():
    settings = config.LearnerConfig(agent_items=32, expert_items=0, max_gradient_norm=1e-3)
    learner = Learner(make_network(), settings, CPU, torch.float32)
    norm = learner.step(make_batch(32)).metrics["gradient_norm"]
    moments = torch.cat([mean.flatten() for mean in learner.adam.first_moments])
    assert norm > 1e-3
    assert float(moments.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-5)  # (1 - beta_1) g


def test_adams_epsilon_is_added_after_bias_correction():
    """Of a first gradient g the step is then rate g / (|g| + eps), here a half of the rate."""
    parameter = torch.zeros(2)
    adam = Adam([parameter], learning_rate=0.25, eps=0.5)
    adam.step([torch.tensor([0.5, -0.5])], torch.tensor(True))
    assert parameter.tolist() == pytest.approx([-0.125, 0.125], rel=1e-5)


def test_parameters_with_gaps_are_told_from_those_without():
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


def test_priorities_are_the_huber_td_loss_before_or_after_the_step():
    b = make_batch(32)
    for after in (False, True):
        settings = config.LearnerConfig(
            agent_items=32, expert_items=0, priority_after_step=after, learning_rate=0.1
        )
        learner = Learner(make_network(), settings, CPU, torch.float32)
        before = learner.compute_priority(b)
        given = learner.step(b).priority
        assert torch.allclose(given, learner.compute_priority(b) if after else before, atol=1e-6)
        assert not torch.allclose(before, learner.compute_priority(b), atol=1e-3)


def test_step_in_bfloat16_computes_with_the_new_weights_from_then_on():
    """The learner keeps weights in float32 and computes with a rounded copy of them."""
    settings = config.LearnerConfig(agent_items=8, expert_items=0, learning_rate=0.1)
    learner, x = Learner(make_network(), settings, CPU, torch.bfloat16), make_batch(8).x
    for k in range(3):
        before = learner.online_weights.q_values(x)
        learner.step(make_batch(8, seed=k))
        rounded = MasterWeights(copy.deepcopy(learner.online_network), torch.bfloat16)
        assert torch.equal(learner.online_weights.q_values(x), rounded.q_values(x))
        assert not torch.equal(learner.online_weights.q_values(x), before)


def test_the_target_network_is_copied_every_period_and_only_then():
    settings = config.LearnerConfig(agent_items=8, expert_items=0, target_period=3)
    learner = Learner(make_network(), settings, CPU, torch.float32)
    held = copy.deepcopy(learner.target_network.state_dict())
    for k in range(1, 7):
        learner.step(make_batch(8, seed=k))
        if k % 3 == 0:
            held = copy.deepcopy(learner.online_network.state_dict())
        assert all(torch.equal(v, held[n]) for n, v in learner.target_network.state_dict().items())


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_once_and_leaves_the_weights(poison: float):
    learner = Learner(
        make_network(), config.LearnerConfig(agent_items=8, expert_items=0), CPU, torch.float32
    )
    learner.step(make_batch(8))
    before = copy.deepcopy(learner.online_network.state_dict())
    b = make_batch(8, seed=1)
    b.w[3] = poison
    with pytest.raises(TrainingDiverged, match="update 2"):
        learner.step(b)
    assert all(torch.equal(v, before[n]) for n, v in learner.online_network.state_dict().items())
    assert learner.updates == 1


def test_state_makes_a_twin():
    settings = config.LearnerConfig(agent_items=8, expert_items=0, target_period=3)
    one = Learner(make_network(), settings, CPU, torch.float32)
    for k in range(4):
        one.step(make_batch(8, seed=k))
    two = Learner(make_network(5), settings, CPU, torch.float32)
    saved = {f: {k: v.clone() for k, v in s.items()} for f, s in one.state().items()}
    two.load_state(saved, one.updates)
    for k in range(4, 8):
        one.step(make_batch(8, seed=k))
        two.step(make_batch(8, seed=k))
    for ours, theirs in zip(one.state().values(), two.state().values(), strict=True):
        assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


SPEC = Spec("toy", (3,), 1, "float32", 4, 1.0)


def make_replay(value: float) -> PrioritizedReplay:
    made = PrioritizedReplay(SPEC, 1, 60, config.ReplayConfig(), 0.9)
    k = 40
    made.add(
        Chunk(
            plane=np.full((k, 1, 3), value, np.float32),
            action=np.zeros((k, 1), np.int64),
            reward=np.zeros((k, 1), np.float32),
            mark=np.zeros((k, 1), np.uint8),
            priority=np.ones((k, 1, 2), np.float32),
            invalidate_newest=np.zeros(1, np.int64),
        )
    )
    return made


def test_a_batch_is_always_192_agent_and_64_expert_items_and_priorities_return_home():
    agent, expert = make_replay(1.0), make_replay(2.0)
    mixture = ReplayMixture(agent, expert, 192, 64)
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
