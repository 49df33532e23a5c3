"""Update runner and training loop: equal weights however updates and groups are scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from lookfurther.config import Config, replace
from lookfurther.demos.episode import Episode
from lookfurther.envs import make_envs
from lookfurther.exploration import initial_epsilons
from lookfurther.learner import Learner
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder, prepare_inputs
from lookfurther.objective import Objective
from lookfurther.presets import preset
from lookfurther.training.actors import ActorPool
from lookfurther.training.build import build_actor_pool, build_mixture
from lookfurther.training.launch_limit import LaunchLimit
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.updates import UPDATES_PER_GRAPH, UpdateRunner
from lookfurther.training.weight_sync import WeightSync
from lookfurther.types import Spec

CPU = torch.device("cpu")
SPEC = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)


def make_config(**overrides: object) -> Config:
    tiny = {
        "actor__lanes": 4,
        "replay__capacity": 400,
        "replay__learning_starts": 40,
        "network__hidden": (16,),
        "learner__agent_items": 12,
        "learner__expert_items": 4,
        "learner__target_period": 3,
    }
    base = preset("apex-dqfd", "small", env=SPEC.env, demos=("none",))
    return replace(base, **(tiny | overrides))


def make_learner(config: Config, compiled: bool = False) -> Learner:
    torch.manual_seed(0)
    return Learner(
        make_network_builder(config.network)(SPEC), config.learner, CPU, torch.float32, compiled
    )


def random_episode() -> Episode:
    rng = np.random.default_rng(0)
    planes = rng.normal(size=(61, 4)).astype(np.float32)
    return Episode(planes, rng.integers(0, 2, 60), np.ones(60, np.float32), terminal=True)


@contextmanager
def make_loop(config: Config, parts: int) -> Iterator[TrainingLoop]:
    """A loop whose four lanes are split into `parts` groups."""
    envs = [make_envs(SPEC.env, config.environment, 4 // parts, seed, 1) for seed in range(parts)]
    learner = make_learner(config)
    source = build_actor_pool(config, envs, learner)
    mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
    try:
        yield TrainingLoop(config, source, mixture, learner, is_learning_concurrent=False)
    finally:
        for group in envs:
            group.close()


def actor_pool(loop: TrainingLoop) -> ActorPool:
    assert isinstance(loop.chunk_source, ActorPool)
    return loop.chunk_source


def flat_weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters])


def test_host_replay_gives_equal_weights() -> None:
    """Meant for a replay in host memory and a learner on a GPU; here both are on the CPU."""
    found = []
    for is_host_replay in (False, True):
        with make_loop(make_config(), 1) as loop:
            runner = loop.update_runner
            if is_host_replay:
                runner.graphed_update = runner._update_from_host_batch
                runner.host_batch = runner.mixture.empty_batch()
                runner.run_updates = runner._run_with_host_replay
            for _ in range(60):
                loop.run_iteration()
            assert loop.learner.updates > 5
            found.append((flat_weights(loop.learner), loop.mixture.agent.tree.masses.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_concurrent_learning_gives_equal_weights() -> None:
    found = []
    for is_concurrent in (False, True):
        with make_loop(make_config(actor__weight_sync_period=3), 1) as loop:
            loop.is_learning_concurrent = is_concurrent
            for _ in range(60):
                loop.run_iteration()
            assert loop.learner.updates > 5
            found.append((flat_weights(loop.learner), loop.mixture.agent.tree.masses.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("priority_after_step", [False, True])
@pytest.mark.parametrize("target_period", [3, 9, 10])
def test_prefetching_batches_gives_equal_weights(
    priority_after_step: bool, target_period: int
) -> None:
    """Several updates per graph, one per call and between, also across target network copies."""
    found = []
    for updates_per_graph, counts in (
        (1, [26]),
        (1, [1] * 26),
        (1, [2, 3, 0, 21]),
        (UPDATES_PER_GRAPH, [26]),
    ):
        config = make_config(
            learner__priority_after_step=priority_after_step, learner__target_period=target_period
        )
        mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
        assert mixture.expert is not None
        mixture.agent = mixture.expert
        runner = UpdateRunner(mixture, make_learner(config))
        runner.updates_per_graph = updates_per_graph
        key = (0, UPDATES_PER_GRAPH, True)
        runner.graphed_updates[key] = several = Mock(side_effect=runner.graphed_updates[key])
        for count in counts:
            runner.run(count)
        assert several.called == (updates_per_graph > 1 and target_period > UPDATES_PER_GRAPH)
        masses = mixture.agent.tree.masses.float()
        found.append(torch.cat([flat_weights(runner.learner), masses, runner.term_sums]))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_mean_terms_cover_updates_since_last_call() -> None:
    with make_loop(make_config(), 1) as loop:
        while loop.learner.updates < 4:
            loop.run_iteration()
        terms = loop.update_runner.compute_mean_terms()
        assert terms.keys() >= {"loss", "loss_td", "gradient_norm", "priority_expert"}
        assert loop.update_runner.compute_mean_terms() == {}
        before = loop.update_runner.term_sums.clone()
        loop.update_runner.run(1)
        assert torch.equal(before, torch.zeros_like(before))
        assert loop.update_runner.compute_mean_terms()["loss"] == pytest.approx(
            float(loop.update_runner.term_sums[0]), abs=100
        )


def test_two_groups_alternate_and_fill_all_lanes() -> None:
    """Every lane has equally many slots, and its first one is marked as the first of an episode."""
    with make_loop(make_config(), 2) as loop:
        acting_groups = []
        for _ in range(40):
            loop.run_iteration()
            acting_groups.append(actor_pool(loop).acting_group)
        assert acting_groups == [1, 0] * 20
        replay = loop.mixture.agent
        assert replay.inserted == 40 * 2
        assert replay.cursor.tolist() == [20, 20, 20, 20]
        by_lane = replay.marks.view(4, replay.slots_per_lane)[:, :20]
        assert (by_lane[:, 0] == 1).all()
        assert replay.tree.masses.view(4, replay.slots_per_lane, 2)[:, :9].gt(0).all()


def test_batch_has_configured_agent_and_expert_items() -> None:
    """Only expert items are flagged for imitation."""
    for agent, expert in ((12, 4), (3, 13)):
        items = {"learner__agent_items": agent, "learner__expert_items": expert}
        with make_loop(make_config(**items), 1) as loop:
            while not loop.learner.updates:
                loop.run_iteration()
            assert loop.mixture.sample().e.tolist() == [0.0] * agent + [1.0] * expert


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["paper", "apex", "constant", "linear"])
def test_groups_share_one_epsilon_schedule(schedule: str, parts: int) -> None:
    with make_loop(make_config(actor__epsilon_schedule=schedule), parts) as loop:
        epsilon = torch.cat([group.actor.epsilon for group in actor_pool(loop).groups])
        assert torch.equal(epsilon, initial_epsilons(schedule, 4, 0.01).float())


def test_actor_weights_are_synced_every_period_only() -> None:
    with make_loop(make_config(actor__weight_sync_period=5), 1) as loop:
        actor_network = actor_pool(loop).weight_sync.actor_weights.network
        for iteration in range(1, 41):
            loop.run_iteration()
            pairs = zip(actor_network.parameters(), loop.learner.parameters, strict=True)
            is_equal = all(torch.equal(p, q) for p, q in pairs)
            if iteration % 5 == 0:
                assert is_equal
            elif loop.learner.updates > 0 and iteration % 5 == 4:
                assert not is_equal


@pytest.mark.slow
@pytest.mark.timeout(3600)  # half a minute on an idle machine, most of it compilation
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("priority_losses", ["td", "td+im"])
def test_compiled_updates_equal_eager_updates(priority_losses: str) -> None:
    found = []
    for compiled in (False, True):
        config = make_config(learner__priority_losses=priority_losses)
        learner = make_learner(config, compiled)
        mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
        replay = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False).expert
        assert replay is not None
        mixture.agent = replay
        UpdateRunner(mixture, learner).run(6)
        found.append(flat_weights(learner))
    step = make_config().learner.learning_rate
    assert float((found[0] - found[1]).abs().max()) < 0.01 * step
    assert not torch.equal(found[0], flat_weights(make_learner(make_config())))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_compiled_input_preparation_equals_eager() -> None:
    """Planes are folded as words: a compiler that changes their layout would mix up pixels."""
    config, spec = preset("apex-dqfd"), Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    x = torch.randint(0, 256, (6, *spec.observation_shape), dtype=torch.uint8)
    network = make_network_builder(config.network)(spec)
    objective, eager = Objective(config.learner, network, network), prepare_inputs(network, x)
    objective.compile(network, torch.float32)
    objective.prepare_fn(network, x, found := torch.zeros_like(eager))
    assert torch.equal(found, eager)


def test_launch_limit_records_nothing_on_cpu() -> None:
    limit = LaunchLimit(CPU)
    for _ in range(3):
        limit.record()
        limit.wait()
    assert not limit.events


def test_pending_weights_of_gpu_checkpoint_are_applied_on_cpu() -> None:
    actor, pending = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    weight_sync = WeightSync(MasterWeights(actor, torch.float32), [])
    state = {name: value.clone() for name, value in weight_sync.state().items()}
    pending_state = {f"aside.{name}": value for name, value in pending.state_dict().items()}
    weight_sync.load_state(state | pending_state | {"turns_left": torch.tensor(2)})
    assert torch.equal(actor.weight, pending.weight)
    weight_sync.tick()
    assert weight_sync.state().keys() == {"network.weight", "network.bias"}
    weight_sync.load_state(state)
    assert not torch.equal(actor.weight, pending.weight)
