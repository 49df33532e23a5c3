"""Updates one after another, on replays beside the learner or apart; groups that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from lookfurther.config import Config, replace
from lookfurther.demos.episode import Episode
from lookfurther.envs import make_envs
from lookfurther.exploration import EPSILON_SCHEDULES
from lookfurther.gpu.graphs import GraphedCallable, LaunchLimit
from lookfurther.learner import Learner
from lookfurther.master_weights import MasterWeights
from lookfurther.networks import make_network_builder, prepare_inputs
from lookfurther.objective import Objective
from lookfurther.presets import preset
from lookfurther.training.build import build_actor_pool, build_mixture
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
    random = np.random.default_rng(0)
    planes = random.normal(size=(61, 4)).astype(np.float32)
    return Episode(planes, random.integers(0, 2, 60), np.ones(60, np.float32), terminal=True)


@contextmanager
def make_loop(config: Config, parts: int) -> Iterator[TrainingLoop]:
    """A loop whose lanes stand in `parts` groups, all with the environments they would have."""
    envs = [make_envs(SPEC.env, config.environment, 4 // parts, seed, 1) for seed in range(parts)]
    made = make_learner(config)
    source = build_actor_pool(config, envs, made)
    mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
    try:
        yield TrainingLoop(config, source, mixture, made, is_learning_concurrent=False)
    finally:
        for group in envs:
            group.close()


def flat_weights(made: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.parameters])


def test_replays_apart_from_the_learner_lead_to_the_same_weights() -> None:
    """Host memory with a GPU is the case; here both devices are the CPU's."""
    found = []
    for apart in (False, True):
        with make_loop(make_config(), 1) as loop:
            work = loop.update_runner
            if apart:
                work.graphed_update = GraphedCallable(work._update_from_host_batch, CPU)
                work.host_batch = work.mixture.empty_batch()
                work.run_updates = work._run_with_host_replay
            for _ in range(60):
                loop.run_iteration()
            assert loop.learner.updates > 5
            found.append((flat_weights(loop.learner), loop.mixture.agent.tree.masses.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_learning_beside_the_environments_or_after_them_leads_to_the_same_weights() -> None:
    found = []
    for beside in (False, True):
        with make_loop(make_config(actor__weight_sync_period=3), 1) as loop:
            loop.is_learning_concurrent = beside
            for _ in range(60):
                loop.run_iteration()
            assert loop.learner.updates > 5
            found.append((flat_weights(loop.learner), loop.mixture.agent.tree.masses.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("period", [3, 9, 10])
def test_fetching_ahead_leads_to_what_fetching_in_turn_leads_to(after: bool, period: int) -> None:
    """In stretches, in turns of one and in between, across copies of the target network too."""
    found = []
    for stretch, counts in (
        (1, [26]),
        (1, [1] * 26),
        (1, [2, 3, 0, 21]),
        (UPDATES_PER_GRAPH, [26]),
    ):
        config = make_config(learner__priority_after_step=after, learner__target_period=period)
        mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
        assert mixture.expert is not None
        mixture.agent = mixture.expert
        work = UpdateRunner(mixture, make_learner(config))
        work.updates_per_graph = stretch
        for count in counts:
            work.run(count)
        assert (work.graphed_updates[0, UPDATES_PER_GRAPH, True].calls > 0) == (
            stretch > 1 and period > UPDATES_PER_GRAPH
        )
        found.append(
            torch.cat(
                [flat_weights(work.learner), mixture.agent.tree.masses.float(), work.term_sums]
            )
        )
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_means_are_of_the_updates_since_the_last_call() -> None:
    with make_loop(make_config(), 1) as loop:
        while loop.learner.updates < 4:
            loop.run_iteration()
        kept = loop.update_runner.compute_mean_terms()
        assert kept.keys() >= {"loss", "loss_td", "gradient_norm", "priority_expert"}
        assert loop.update_runner.compute_mean_terms() == {}
        before = loop.update_runner.term_sums.clone()
        loop.update_runner.run(1)
        assert torch.equal(before, torch.zeros_like(before))
        assert loop.update_runner.compute_mean_terms()["loss"] == pytest.approx(
            float(loop.update_runner.term_sums[0]), abs=100
        )


def test_groups_take_turns_and_every_lane_is_stored_alike() -> None:
    """Two groups insert as many steps of each lane as one does, first marks where they belong."""
    with make_loop(make_config(), 2) as loop:
        acted = []
        for _ in range(40):
            loop.run_iteration()
            acted.append(loop.actor_pool.acting_group)
        assert acted == [1, 0] * 20
        replay = loop.mixture.agent
        assert replay.inserted == 40 * 2
        assert replay.cursor.tolist() == [20, 20, 20, 20]
        by_lane = replay.marks.view(4, replay.slots_per_lane)[:, :20]
        assert (by_lane[:, 0] == 1).all()
        assert replay.tree.masses.view(4, replay.slots_per_lane, 2)[:, :9].gt(0).all()


def test_batch_of_a_run_has_the_shares_of_its_settings() -> None:
    """Only expert items carry the mark of the best demonstration."""
    for agent, expert in ((12, 4), (3, 13)):
        shares = {"learner__agent_items": agent, "learner__expert_items": expert}
        with make_loop(make_config(**shares), 1) as loop:
            while not loop.learner.updates:
                loop.run_iteration()
            assert loop.mixture.sample().e.tolist() == [0.0] * agent + [1.0] * expert


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("ladder", EPSILON_SCHEDULES)
def test_groups_of_lanes_play_the_whole_ladder_together(ladder: str, parts: int) -> None:
    with make_loop(make_config(actor__epsilon_schedule=ladder), parts) as loop:
        played = torch.cat([group.actor.epsilon for group in loop.actor_pool.groups])
        assert torch.equal(played, EPSILON_SCHEDULES[ladder](4).float())


def test_actors_take_the_learners_weights_every_period_and_only_then() -> None:
    with make_loop(make_config(actor__weight_sync_period=5), 1) as loop:
        own = loop.actor_pool.weight_sync.actor_weights.network
        for turn in range(1, 41):
            loop.run_iteration()
            same = all(
                torch.equal(p, q)
                for p, q in zip(own.parameters(), loop.learner.parameters, strict=True)
            )
            learned = loop.learner.updates > 0
            if turn % 5 == 0:
                assert same
            elif learned and turn % 5 == 4:
                assert not same


@pytest.mark.slow
@pytest.mark.timeout(3600)  # half a minute of work, most of it the compiler's
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_updates_equal_eager_ones() -> None:
    found = []
    for compiled in (False, True):
        config = make_config()
        made = make_learner(config, compiled)
        mixture = build_mixture(config, SPEC, [random_episode()], CPU, is_compiled=False)
        chunk_source = build_mixture(
            config, SPEC, [random_episode()], CPU, is_compiled=False
        ).expert
        assert chunk_source is not None
        mixture.agent = chunk_source
        work = UpdateRunner(mixture, made)
        work.run(6)
        found.append(flat_weights(made))
    step = make_config().learner.learning_rate
    assert float((found[0] - found[1]).abs().max()) < 0.01 * step
    assert not torch.equal(found[0], flat_weights(make_learner(make_config())))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_observations_are_prepared_alike_by_compiled_kernels() -> None:
    """Planes are folded in words: a compiler that lays them out anew would mix them up."""
    config, spec = preset("apex-dqfd"), Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    x = torch.randint(0, 256, (6, *spec.observation_shape), dtype=torch.uint8)
    network = make_network_builder(config.network)(spec)
    objective, eager = Objective(config.learner), prepare_inputs(network, x)
    objective.compile(network, torch.float32)
    objective.prepare_fn(network, x, found := torch.zeros_like(eager))
    assert torch.equal(found, eager)


def test_a_cpu_has_no_backlog() -> None:
    backlog = LaunchLimit(CPU)
    for _ in range(3):
        backlog.record()
        backlog.wait()
    assert not backlog.events


def test_weights_under_way_in_a_checkpoint_of_a_gpu_are_taken_at_once_without_one() -> None:
    acting, coming = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    handover = WeightSync(MasterWeights(acting, torch.float32), [])
    state = {name: value.clone() for name, value in handover.state().items()}
    under_way = {f"aside.{name}": value for name, value in coming.state_dict().items()}
    handover.load_state(state | under_way | {"turns_left": torch.tensor(2)})
    assert torch.equal(acting.weight, coming.weight)
    handover.tick()
    assert handover.state().keys() == {"network.weight", "network.bias"}
    handover.load_state(state)
    assert not torch.equal(acting.weight, coming.weight)
