"""What this machine does in a second: the parts of a run, alone and together.

Every measurement uses the parts that training uses. The replay is filled to its capacity, so that
sampling costs what it costs late in a run; demonstrations are noise.
"""

from __future__ import annotations

import gc
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from lookfurther.acceleration import make_graphed
from lookfurther.config import Config, from_json, replace, to_json
from lookfurther.demos.episode import Episode
from lookfurther.envs import Envs
from lookfurther.learner import Learner
from lookfurther.networks import make_network_builder
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.processes import python_command, subprocess_environment
from lookfurther.training import hardware
from lookfurther.training.actors import ActorPool
from lookfurther.training.build import (
    build_actor_pool,
    build_envs,
    build_mixture,
    build_training_envs,
)
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.metrics import peak_memory_gib
from lookfurther.training.updates import UpdateRunner
from lookfurther.types import Spec
from lookfurther.validation import min_learning_starts

DEMO_STEPS = 2_000
UPDATES_PER_CALL = 8  # updates that follow one another on a GPU, as in a turn of the loop
WARMUP_CALLS = 8  # turns before a measurement: kernels are chosen, compiled and recorded in them


class ThroughputBenchmark:
    """The measurements, each in figures per second."""

    def __init__(self, config: Config, seconds: float) -> None:
        self.config, self.seconds = config, seconds
        self.device, self.precision, self.compiled = hardware.configure_torch(config)
        on_gpu = self.device.type == "cuda"
        self.updates_per_call, self.warmup_calls = (
            (UPDATES_PER_CALL, WARMUP_CALLS) if on_gpu else (1, 1)
        )
        torch.manual_seed(config.run.seed)
        hardware.limit_threads(config)

    @cached_property
    def spec(self) -> Spec:
        with closing(build_envs(self.config.env, self.config, 1, 0)) as envs:
            return envs.spec

    @cached_property
    def full_mixture(self) -> ReplayMixture:
        """Both replays, full of noise."""
        mixture = self.build_empty_mixture()
        _fill_replay(mixture.agent)
        return mixture

    @cached_property
    def actors_and_learner(self) -> tuple[ActorPool, Learner]:
        """The lanes with their actors, and the learner whose weights they take."""
        learner = self.build_learner()
        make: Callable[[int, int], Envs] = partial(build_envs, self.config.env, self.config)
        envs = build_training_envs(make, self.config)
        return build_actor_pool(self.config, envs, learner), learner

    def build_learner(self) -> Learner:
        network = make_network_builder(self.config.network)(self.spec)
        return Learner(network, self.config.learner, self.device, self.precision, self.compiled)

    def close(self) -> None:
        """Let go of the lanes and the replays."""
        if "crew" in self.__dict__:
            for group in self.actors_and_learner[0].groups:
                group.envs.close()
        for part in ("crew", "mixture"):
            self.__dict__.pop(part, None)
        gc.collect()  # parts refer to one another

    def environments(self) -> dict[str, float]:
        """The bare environments, all lanes together, with random actions."""
        lanes, random = self.config.actor.lanes, np.random.default_rng(0)
        with closing(build_envs(self.config.env, self.config, lanes, 0)) as envs:
            actions = envs.spec.actions
            envs.reset()

            def turn() -> None:
                envs.send(random.integers(0, actions, lanes))
                envs.recv()

            return {"steps": lanes * self._measure_rate(turn)}

    def actor(self) -> dict[str, float]:
        """The same environments with the network acting, and chunks with priorities coming out."""
        source, _ = self.actors_and_learner

        def turn() -> None:
            source.start_step()
            source.collect_chunk()

        return {"steps": self.config.actor.lanes / len(source.groups) * self._measure_rate(turn)}

    def learner(self) -> dict[str, float]:
        """Whole updates: sampling from a full replay, the step, the priorities."""
        updates = UpdateRunner(self.full_mixture, self.build_learner())
        rate = self._measure_rate(lambda: updates.run(self.updates_per_call))
        updates.learner.raise_if_diverged()
        return {"updates": self.updates_per_call * rate}

    def replay(self) -> dict[str, float]:
        """Sampling a batch and giving priorities back, and the memory of a step."""
        mixture = self.full_mixture
        batch = mixture.empty_batch()

        def sample() -> None:
            mixture.sample(batch)
            mixture.update_priorities(batch.item, batch.w)

        items = self.config.batch_size * self._measure_rate(
            make_graphed(sample, mixture.agent.device)
        )
        return {
            "items": items,
            "bytes_per_step": mixture.agent.num_bytes / self.config.replay.capacity,
        }

    def together(self, steps: float, updates: float) -> dict[str, float]:
        """Acting and learning at once, at the ratio of the rates that each has alone."""
        ratio = updates * self.config.batch_size / steps
        loop = self.build_loop(
            self.full_mixture, learner__samples_per_insert=ratio, replay__learning_starts=0
        )
        for _ in range(self.warmup_calls):
            loop.run_iteration()
        self._synchronize()
        before = loop.step, loop.learner.updates, *loop.wait_seconds.values()
        seconds = self._run_timed(loop.run_iteration)[1]
        loop.raise_if_diverged()
        after = loop.step, loop.learner.updates, *loop.wait_seconds.values()
        rates = [(b - a) / seconds for a, b in zip(before, after, strict=True)]
        return dict(zip(("steps", "updates", *loop.wait_seconds), rates, strict=True))

    def training(self) -> dict[str, float]:
        """A run with its own rate of learning, from its first update on; the replay is empty."""
        loop = self.build_learning_loop()
        before = loop.step
        seconds = self._run_timed(loop.run_iteration)[1]
        return {"steps": (loop.step - before) / seconds}

    def build_learning_loop(self) -> TrainingLoop:
        """A run just after its first update: it waited for no more steps than it must."""
        loop = self.build_loop(
            self.build_empty_mixture(), replay__learning_starts=min_learning_starts(self.config)
        )
        while not loop.learner.updates:
            loop.run_iteration()
        loop.raise_if_diverged()
        return loop

    def build_loop(self, mixture: ReplayMixture, **settings: Any) -> TrainingLoop:
        """The loop of a run with these parts and settings, without its folder."""
        config = replace(self.config, **settings)
        actors, learner = self.actors_and_learner
        absent: Any = None
        return TrainingLoop(config, absent, actors, mixture, learner, absent, absent)

    def first_update(self) -> dict[str, float]:
        """Seconds from the start of a new process to its first update, with cold caches."""
        with tempfile.TemporaryDirectory() as cache:
            code = "import sys; from lookfurther import bench; bench.start_cold(sys.stdin.read())"
            environment = subprocess_environment(user_modules=True) | {
                "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
                "TRITON_CACHE_DIR": f"{cache}/triton",
            }
            start = time.perf_counter()
            subprocess.run(
                python_command("-c", code),
                input=to_json(self.config),
                text=True,
                check=True,
                env=environment,
            )
            return {"seconds": time.perf_counter() - start}

    def memory(self) -> dict[str, float]:
        """The most memory held so far, in GiB."""
        held = {"host": peak_memory_gib()}
        if self.device.type == "cuda":
            held["gpu"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        return held

    def build_empty_mixture(self) -> ReplayMixture:
        """Both replays, with a demonstration and nothing else in them."""
        spec, replay = self.spec, self.config.replay
        size = PrioritizedReplay.estimate_bytes(spec, replay.capacity, len(replay.horizons))
        memory = hardware.choose_replay_device(self.config, size, 0)
        expert = [_build_random_demo(spec)] if self.config.learner.expert_items else []
        return build_mixture(self.config, spec, expert, memory)

    def _measure_rate(self, turn: Callable[[], Any]) -> float:
        """Turns a second, after some that do not count."""
        for _ in range(self.warmup_calls):
            turn()
        self._synchronize()
        turns, seconds = self._run_timed(turn)
        return turns / seconds

    def _run_timed(self, turn: Callable[[], Any]) -> tuple[int, float]:
        """Turns made in the time of a measurement, at least one, and the seconds they took."""
        turns, start = 0, time.perf_counter()
        while not turns or time.perf_counter() - start < self.seconds:
            turn()
            turns += 1
        self._synchronize()
        return turns, time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def run_to_first_update(config: str) -> None:
    """A process up to its first update."""
    with closing(ThroughputBenchmark(from_json(config), 0.0)) as bench:
        bench.build_learning_loop()


def _build_random_demo(spec: Spec) -> Episode:
    """A demonstration of nothing."""
    random = np.random.default_rng(0)
    planes = random.integers(0, 256, (DEMO_STEPS + 1, *spec.plane)).astype(spec.dtype)
    actions = random.integers(0, spec.actions, DEMO_STEPS)
    return Episode(planes, actions, np.ones(DEMO_STEPS, np.float32), terminal=True)


def _fill_replay(replay: PrioritizedReplay) -> None:
    """Something in every slot, and so many episodes that some items end in one."""
    slots = len(replay.actions)
    replay.planes[:slots].fill_(1)  # what they show does not matter, that they are in memory does
    replay.rewards.normal_()
    ends = torch.randint(slots, (slots // 500 + 1,), device=replay.device)
    replay.marks[ends] = 2
    mass = torch.rand(replay.tree.size, dtype=torch.float64, device=replay.device)
    replay.tree.rebuild(mass)
    replay.cursor += replay.slots_per_lane
    replay.rebuild_index()
