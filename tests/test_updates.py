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
from lookfurther.exploration import LADDERS
from lookfurther.gpu.graphs import Backlog, Captured
from lookfurther.learner import Learner
from lookfurther.master_weights import Weights
from lookfurther.networks import builder, prepare
from lookfurther.objective import Objective
from lookfurther.presets import preset
from lookfurther.training.build import build_mixture, build_source
from lookfurther.training.loop import Loop
from lookfurther.training.updates import STRETCH, Updates
from lookfurther.training.weight_sync import Handover
from lookfurther.types import Spec

CPU = torch.device("cpu")
SPEC = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)


def settings(**overrides: object) -> Config:
    tiny = {
        "actor__lanes": 4,
        "replay__capacity": 400,
        "replay__start": 40,
        "network__hidden": (16,),
        "learner__agent_items": 12,
        "learner__expert_items": 4,
        "learner__target_period": 3,
    }
    base = preset("apex-dqfd", "small", env=SPEC.env, demos=("none",))
    return replace(base, **(tiny | overrides))


def learner(config: Config, compiled: bool = False) -> Learner:
    torch.manual_seed(0)
    return Learner(builder(config.network)(SPEC), config.learner, CPU, torch.float32, compiled)


def shown() -> Episode:
    random = np.random.default_rng(0)
    planes = random.normal(size=(61, 4)).astype(np.float32)
    return Episode(planes, random.integers(0, 2, 60), np.ones(60, np.float32), terminal=True)


@contextmanager
def loop_of(config: Config, parts: int) -> Iterator[Loop]:
    """A loop whose lanes stand in `parts` groups, all with the environments they would have."""
    envs = [make_envs(SPEC.env, config.environment, 4 // parts, seed, 1) for seed in range(parts)]
    made = learner(config)
    source = build_source(config, envs, made)
    mixture = build_mixture(config, SPEC, [shown()], CPU)
    try:
        yield Loop(config, None, source, mixture, made, None, None)  # type: ignore[arg-type]
    finally:
        for group in envs:
            group.close()


def weights(made: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.parameters])


def test_replays_apart_from_the_learner_lead_to_the_same_weights() -> None:
    """Host memory with a GPU is the case; here both devices are the CPU's."""
    found = []
    for apart in (False, True):
        with loop_of(settings(), 1) as loop:
            work = loop.updates
            if apart:
                work.learn = Captured(work._learn_apart, CPU)
                work.drawn = work.mixture.blank()
                work.run_all = work._apart
            for _ in range(60):
                loop.turn()
            assert loop.learner.updates > 5
            found.append((weights(loop.learner), loop.mixture.agent.tree.mass.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_learning_beside_the_environments_or_after_them_leads_to_the_same_weights() -> None:
    found = []
    for beside in (False, True):
        with loop_of(settings(actor__weights_period=3), 1) as loop:
            loop.beside = beside
            for _ in range(60):
                loop.turn()
            assert loop.learner.updates > 5
            found.append((weights(loop.learner), loop.mixture.agent.tree.mass.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("period", [3, 9, 10])
def test_fetching_ahead_leads_to_what_fetching_in_turn_leads_to(after: bool, period: int) -> None:
    """In stretches, in turns of one and in between, across copies of the target network too."""
    found = []
    for stretch, counts in ((1, [26]), (1, [1] * 26), (1, [2, 3, 0, 21]), (STRETCH, [26])):
        config = settings(learner__priority_after_step=after, learner__target_period=period)
        mixture = build_mixture(config, SPEC, [shown()], CPU)
        assert mixture.expert is not None
        mixture.agent = mixture.expert
        work = Updates(mixture, learner(config))
        work.stretch = stretch
        for count in counts:
            work.run(count)
        assert (work.turns[0, STRETCH, True].calls > 0) == (stretch > 1 and period > STRETCH)
        found.append(torch.cat([weights(work.learner), mixture.agent.tree.mass.float(), work.sums]))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_means_are_of_the_updates_since_the_last_call() -> None:
    with loop_of(settings(), 1) as loop:
        while loop.learner.updates < 4:
            loop.turn()
        kept = loop.updates.means()
        assert kept.keys() >= {"loss", "loss_td", "gradient_norm", "priority_expert"}
        assert loop.updates.means() == {}
        before = loop.updates.sums.clone()
        loop.updates.run(1)
        assert torch.equal(before, torch.zeros_like(before))
        assert loop.updates.means()["loss"] == pytest.approx(float(loop.updates.sums[0]), abs=100)


def test_groups_take_turns_and_every_lane_is_stored_alike() -> None:
    """Two groups insert as many steps of each lane as one does, first marks where they belong."""
    with loop_of(settings(), 2) as loop:
        acted = []
        for _ in range(40):
            loop.turn()
            acted.append(loop.source.turn)
        assert acted == [1, 0] * 20
        replay = loop.mixture.agent
        assert replay.inserted == 40 * 2
        assert replay.cursor.tolist() == [20, 20, 20, 20]
        by_lane = replay.marks.view(4, replay.length)[:, :20]
        assert (by_lane[:, 0] == 1).all()
        assert replay.tree.mass.view(4, replay.length, 2)[:, :9].gt(0).all()


def test_batch_of_a_run_has_the_shares_of_its_settings() -> None:
    """Only expert items carry the mark of the best demonstration."""
    for agent, expert in ((12, 4), (3, 13)):
        shares = {"learner__agent_items": agent, "learner__expert_items": expert}
        with loop_of(settings(**shares), 1) as loop:
            while not loop.learner.updates:
                loop.turn()
            assert loop.mixture.sample().e.tolist() == [0.0] * agent + [1.0] * expert


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("ladder", LADDERS)
def test_groups_of_lanes_play_the_whole_ladder_together(ladder: str, parts: int) -> None:
    with loop_of(settings(actor__ladder=ladder), parts) as loop:
        played = torch.cat([group.actor.epsilon for group in loop.source.groups])
        assert torch.equal(played, LADDERS[ladder](4).float())


def test_actors_take_the_learners_weights_every_period_and_only_then() -> None:
    with loop_of(settings(actor__weights_period=5), 1) as loop:
        own = loop.source.handover.weights.network
        for turn in range(1, 41):
            loop.turn()
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
        config = settings()
        made = learner(config, compiled)
        mixture = build_mixture(config, SPEC, [shown()], CPU)
        chunk_source = build_mixture(config, SPEC, [shown()], CPU).expert
        assert chunk_source is not None
        mixture.agent = chunk_source
        work = Updates(mixture, made)
        work.run(6)
        found.append(weights(made))
    step = settings().learner.learning_rate
    assert float((found[0] - found[1]).abs().max()) < 0.01 * step
    assert not torch.equal(found[0], weights(learner(settings())))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_observations_are_prepared_alike_by_compiled_kernels() -> None:
    """Planes are folded in words: a compiler that lays them out anew would mix them up."""
    config, spec = preset("apex-dqfd"), Spec("ALE/Pong-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
    x = torch.randint(0, 256, (6, *spec.observation), dtype=torch.uint8)
    network = builder(config.network)(spec)
    objective, eager = Objective(config.learner), prepare(network, x)
    objective.compile(network, torch.float32)
    objective.take(network, x, found := torch.zeros_like(eager))
    assert torch.equal(found, eager)


def test_a_cpu_has_no_backlog() -> None:
    backlog = Backlog(CPU)
    for _ in range(3):
        backlog.add()
        backlog.wait()
    assert not backlog.turns


def test_weights_under_way_in_a_checkpoint_of_a_gpu_are_taken_at_once_without_one() -> None:
    acting, coming = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    handover = Handover(Weights(acting, torch.float32), [])
    state = {name: value.clone() for name, value in handover.state().items()}
    under_way = {f"aside.{name}": value for name, value in coming.state_dict().items()}
    handover.load_state(state | under_way | {"turns_left": torch.tensor(2)})
    assert torch.equal(acting.weight, coming.weight)
    handover.turn()
    assert handover.state().keys() == {"network.weight", "network.bias"}
    handover.load_state(state)
    assert not torch.equal(acting.weight, coming.weight)
