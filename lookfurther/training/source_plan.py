"""Where the actors of a run are, decided before its learner is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from lookfurther.config import Config
from lookfurther.demos.episode import Episode
from lookfurther.envs import Envs
from lookfurther.learner import Learner
from lookfurther.training.build import build_actor_pool, build_training_envs
from lookfurther.training.chunk_source import ChunkSource
from lookfurther.training.hardware import Hardware
from lookfurther.types import Spec


class SourcePlan(NamedTuple):
    """The environment's Spec, and how to build the source of chunks."""

    spec: Spec
    build_source: Callable[[Learner, Sequence[Episode]], ChunkSource]
    is_learning_concurrent: bool  # the learner learns while environments step
    message: str = ""  # printed at the start


@contextmanager
def open_local_plan(
    build_group: Callable[[int, int], Envs], config: Config, hardware: Hardware
) -> Iterator[SourcePlan]:
    """The plan of a run whose actors are in this process; the context closes their environments."""
    with ExitStack() as stack:
        groups = build_training_envs(build_group, config.actor, hardware.lane_groups)
        envs = [stack.enter_context(closing(group)) for group in groups]

        def build_source(learner: Learner, episodes: Sequence[Episode]) -> ChunkSource:
            pool = build_actor_pool(config, envs, learner, episodes)
            for group in pool.groups:
                stack.callback(group.envs.close)
            return pool

        yield SourcePlan(envs[0].spec, build_source, hardware.is_learning_concurrent)
