"""A cluster inside this process, and loops whose actors are there, local or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch

from lookfurther.config import Config
from lookfurther.envs import get_spec
from lookfurther.exploration import initial_epsilons
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.build import RANDOM_STREAMS, build_actor_pool, build_envs, build_mixture
from lookfurther.training.cluster.backend import ActorBackend, ActorLost
from lookfurther.training.cluster.lane_ranges import select_epsilons
from lookfurther.training.cluster.messages import PlayRequest
from lookfurther.training.cluster.options import ClusterOptions
from lookfurther.training.cluster.remote_actor import ActorSetup, RemoteActor
from lookfurther.training.cluster.source import ClusterSource
from lookfurther.training.loop import TrainingLoop

CPU = torch.device("cpu")
NODE = "this node"
OPTIONS = ClusterOptions(actors=2, steps_per_chunk=8, weights_seconds=0.0)


def make_config(**overrides: Any) -> Config:
    """A run of a few hundred steps: 4 lanes, batches of 16 items, 16 hidden units."""
    small: dict[str, Any] = {
        "env": "CartPole-v1",
        "actor__lanes": 4,
        "actor__weight_sync_period": 3,
        "replay__capacity": 1000,
        "replay__learning_starts": 60,
        "network__name": "mlp",
        "network__hidden": (16,),
        "learner__agent_items": 16,
        "learner__learning_rate": 1e-2,
        "learner__target_period": 5,
        "run__precision": "float32",
        "run__device": "cpu",
        "run__threads": 1,
    }
    return preset("no-demos", **(small | overrides))


class InProcessBackend:
    """Actors of this process. A call runs when it is waited for, and some are lost or repeated."""

    local_node = NODE

    def __init__(self, setup: ActorSetup) -> None:
        self.setup = setup
        self.launched: list[tuple[int, int]] = []  # (range, incarnation)
        self.requests: list[tuple[int, PlayRequest]] = []
        self.free_cores = 1000
        self.node = NODE
        self.answers: dict[Hashable, Any] = {}
        self.thunks: dict[Hashable, Callable[[], Any]] = {}
        self.on_play: Callable[[RemoteActor], None] = lambda actor: None
        self.is_hanging: Callable[[RemoteActor], bool] = lambda actor: False

    def launch_actor(self, index: int, incarnation: int) -> RemoteActor:
        self.launched.append((index, incarnation))
        return RemoteActor(self.setup, index, incarnation)

    def locate(self, actor: RemoteActor) -> Hashable:
        return self._add_call(actor, lambda: self.node, needs_core=True)

    def play(self, actor: RemoteActor, request: PlayRequest, weights: Any) -> Hashable:
        self.requests.append((actor.index, request))

        def play() -> Any:
            self.on_play(actor)
            return actor.play(request, weights)

        return self._add_call(actor, play)

    def _add_call(
        self, actor: RemoteActor, thunk: Callable[[], Any], needs_core: bool = False
    ) -> Hashable:
        call = (len(self.thunks), actor.index, actor.incarnation)
        self.thunks[call] = thunk
        self.answers[call] = None
        if needs_core and self.free_cores <= 0:
            del self.answers[call]
        elif needs_core:
            self.free_cores -= 1
        elif self.is_hanging(actor):
            del self.answers[call]
        return call

    def put_weights(self, weights: Mapping[str, np.ndarray]) -> Any:
        return dict(weights)

    def wait_any(self, calls: Sequence[Hashable], timeout: float) -> Any | None:
        return next((call for call in calls if call in self.answers), None)

    def fetch(self, call: Any) -> Any:
        return self.thunks[call]()

    def kill_actor(self, actor: RemoteActor) -> None:
        self.free_cores += 1


def raise_lost(actor: RemoteActor) -> None:
    raise ActorLost("died")


def make_learner(config: Config) -> Learner:
    torch.manual_seed(config.run.seed)
    network = make_network_builder(config.network)(get_spec(config.env, config.environment))
    return Learner(network, config.learner, CPU, torch.float32)


def make_source(
    config: Config,
    options: ClusterOptions,
    make_backend: Callable[[ActorSetup], ActorBackend] = InProcessBackend,
    env: str | Callable[[], gymnasium.Env] = "",
    learner: Learner | None = None,
) -> ClusterSource:
    learner = learner or make_learner(config)
    network = make_learner(config).online_network
    setup = ActorSetup(config, env or config.env, network, options.actors)
    return ClusterSource(setup, make_backend(setup), options, learner.online_weights)


def make_cluster_loop(
    config: Config,
    options: ClusterOptions,
    make_backend: Callable[[ActorSetup], ActorBackend] = InProcessBackend,
) -> TrainingLoop:
    learner = make_learner(config)
    source = make_source(config, options, make_backend, learner=learner)
    spec = get_spec(config.env, config.environment)
    mixture = build_mixture(config, spec, [], CPU)
    return TrainingLoop(config, source, mixture, learner, is_learning_concurrent=True)


@contextmanager
def make_local_loop(config: Config, groups: int) -> Iterator[TrainingLoop]:
    """The local loop of one or two groups, with epsilons as on a cluster of as many actors."""
    learner = make_learner(config)
    streams = RANDOM_STREAMS["train"][:groups]
    lanes = config.actor.lanes // groups
    envs = [build_envs(config.env, config, lanes, stream) for stream in streams]
    pool = build_actor_pool(config, envs, learner)
    schedule = initial_epsilons(config.actor.epsilon_schedule, config.actor.lanes, 0.01)
    for index, group in enumerate(pool.groups):
        group.actor.epsilon.copy_(select_epsilons(schedule, index, groups))
    mixture = build_mixture(config, envs[0].spec, [], CPU)
    with closing(envs[0]), closing(envs[-1]):
        yield TrainingLoop(config, pool, mixture, learner, is_learning_concurrent=False)


def assert_loops_equal(a: TrainingLoop, b: TrainingLoop) -> None:
    """Replay, weights, optimizer and statistics are equal bit for bit."""
    parts = [{**loop.learner.state(), "replay": loop.mixture.agent.state()} for loop in (a, b)]
    for loop, part in zip((a, b), parts, strict=True):
        part["returns"] = loop.chunk_source.state()["returns"]
    assert parts[0].keys() == parts[1].keys()
    for file, tensors in parts[0].items():
        assert tensors.keys() == parts[1][file].keys()
        for name, tensor in tensors.items():
            other = parts[1][file][name]
            assert tensor.cpu().contiguous().numpy().tobytes() == (
                other.cpu().contiguous().numpy().tobytes()
            ), f"{file}.{name}"


def cluster_parts(loop: TrainingLoop) -> tuple[ClusterSource, InProcessBackend]:
    source = loop.chunk_source
    assert isinstance(source, ClusterSource)
    assert isinstance(source.backend, InProcessBackend)
    return source, source.backend
