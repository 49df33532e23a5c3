"""Throughput of this machine: the parts of a run, alone and together.

Every measurement uses the parts that training uses. The replay is filled to its capacity, so that
sampling takes as long as late in a run. Demonstrations are random data.
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

from lookfurther.config import Config, replace
from lookfurther.demos.episode import Episode
from lookfurther.envs import Envs
from lookfurther.learner import Learner
from lookfurther.networks.dueling import make_network_builder
from lookfurther.replay.mixture import ReplayMixture
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.system.acceleration import make_graphed
from lookfurther.system.processes import python_command, subprocess_environment
from lookfurther.training.actors import ActorPool
from lookfurther.training.build import (
    build_actor_pool,
    build_envs,
    build_learner,
    build_mixture,
    build_training_envs,
    choose_mixture_device,
)
from lookfurther.training.config_json import from_json, to_json
from lookfurther.training.hardware import Hardware, choose_replay_device
from lookfurther.training.loop import TrainingLoop
from lookfurther.training.monitoring.metrics import peak_memory_gib
from lookfurther.training.updates import UpdateRunner
from lookfurther.types import Spec
from lookfurther.validation import min_learning_starts

DEMO_STEPS = 2_000
# Settings for demonstrations that an agent can play: the benchmark's are noise.
PLAYABLE_DEMOS_OFF = {
    "actor__jump_start_share": 0.0,
    "actor__max_reward_gap": 0.0,
    "replay__expert_noop_starts": False,
}
UPDATES_PER_CALL = 8  # on a GPU, as in an iteration of the loop
WARMUP_CALLS = 8  # before a measurement on a GPU: kernels are chosen, compiled and captured


class ThroughputBenchmark:
    """Measures the parts of a run, mostly in figures per second."""

    def __init__(self, config: Config, seconds: float) -> None:
        self.config, self.seconds = replace(config, **PLAYABLE_DEMOS_OFF), seconds
        self.hardware = Hardware.resolve(config)
        self.hardware.configure_torch()
        self.device, self.precision = self.hardware.device, self.hardware.precision
        self.updates_per_call, self.warmup_calls = (
            (UPDATES_PER_CALL, WARMUP_CALLS) if self.device.type == "cuda" else (1, 1)
        )
        torch.manual_seed(config.run.seed)
        self.hardware.limit_threads()

    @cached_property
    def spec(self) -> Spec:
        with closing(build_envs(self.config.env, self.config, 1, 0)) as envs:
            return envs.spec

    @cached_property
    def full_mixture(self) -> ReplayMixture:
        """Both replays, filled with noise."""
        mixture = self.build_empty_mixture()
        _fill_replay(mixture.agent)
        return mixture

    @cached_property
    def actors_and_learner(self) -> tuple[ActorPool, Learner]:
        """The actors of all lanes, and the learner whose weights they use."""
        learner = self.build_learner()
        make: Callable[[int, int], Envs] = partial(build_envs, self.config.env, self.config)
        envs = build_training_envs(make, self.config.actor, self.hardware.lane_groups)
        return build_actor_pool(self.config, envs, learner), learner

    def build_learner(self) -> Learner:
        network = make_network_builder(self.config.network)(self.spec)
        return build_learner(self.config, network, self.hardware)

    def close(self) -> None:
        """Close the environments and free the replays."""
        if "actors_and_learner" in self.__dict__:
            for group in self.actors_and_learner[0].groups:
                group.envs.close()
        for part in ("actors_and_learner", "full_mixture"):
            self.__dict__.pop(part, None)
        gc.collect()  # the parts refer to each other

    def environments(self) -> dict[str, float]:
        """The bare environments, all lanes together, with random actions."""
        lanes, rng = self.config.actor.lanes, np.random.default_rng(0)
        with closing(build_envs(self.config.env, self.config, lanes, 0)) as envs:
            actions = envs.spec.actions
            envs.reset()

            def step_envs() -> None:
                envs.send(rng.integers(0, actions, lanes))
                envs.recv()

            return {"steps": lanes * self._measure_rate(step_envs)}

    def actor(self) -> dict[str, float]:
        """The same environments with the network acting and producing chunks with priorities."""
        actor_pool, _ = self.actors_and_learner

        def step_actors() -> None:
            actor_pool.start_step()
            actor_pool.collect_chunk()

        lanes = self.config.actor.lanes / len(actor_pool.groups)
        return {"steps": lanes * self._measure_rate(step_actors)}

    def learner(self) -> dict[str, float]:
        """Complete updates: sampling from a full replay, the step, the priorities."""
        runner = UpdateRunner(self.full_mixture, self.build_learner())
        rate = self._measure_rate(lambda: runner.run(self.updates_per_call))
        runner.learner.raise_if_diverged()
        return {"updates": self.updates_per_call * rate}

    def replay(self) -> dict[str, float]:
        """Sampling a batch and updating its priorities, and the memory of a step."""
        mixture = self.full_mixture
        batch = mixture.empty_batch()

        def sample() -> None:
            mixture.sample(batch)
            mixture.update_priorities(batch.item, batch.w)

        rate = self._measure_rate(make_graphed(sample, mixture.agent.device))
        bytes_per_step = mixture.agent.num_bytes / self.config.replay.capacity
        return {"items": self.config.batch_size * rate, "bytes_per_step": bytes_per_step}

    def together(self, steps: float, updates: float) -> dict[str, float]:
        """Acting and learning at the same time, at the ratio of their separate rates."""
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
        """A run at its configured rate, from its first update on, with an empty replay."""
        loop = self.build_learning_loop()
        before = loop.step
        seconds = self._run_timed(loop.run_iteration)[1]
        return {"steps": (loop.step - before) / seconds}

    def build_learning_loop(self) -> TrainingLoop:
        """A loop just after its first update, with the smallest possible `learning_starts`."""
        loop = self.build_loop(
            self.build_empty_mixture(), replay__learning_starts=min_learning_starts(self.config)
        )
        while not loop.learner.updates:
            loop.run_iteration()
        loop.raise_if_diverged()
        return loop

    def build_loop(self, mixture: ReplayMixture, **settings: Any) -> TrainingLoop:
        """The loop of a run with this mixture and these settings."""
        config = replace(self.config, learner__pretraining_updates=0, **settings)
        actor_pool, learner = self.actors_and_learner
        concurrent = self.hardware.is_learning_concurrent
        return TrainingLoop(config, actor_pool, mixture, learner, concurrent)

    def first_update(self) -> dict[str, float]:
        """Seconds from the start of a new process to its first update, with cold caches."""
        with tempfile.TemporaryDirectory() as cache:
            code = f"import sys; from {__name__} import run_to_first_update as run;"
            code += " run(sys.stdin.read())"
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
        """The peak memory so far, in GiB."""
        peak = {"host": peak_memory_gib()}
        if self.device.type == "cuda":
            peak["gpu"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        return peak

    def build_empty_mixture(self) -> ReplayMixture:
        """Both replays, with one demonstration and no experience."""
        spec, capacity = self.spec, self.config.replay.capacity
        horizons = len(self.config.replay.horizons)
        size = PrioritizedReplay.estimate_bytes(spec, capacity, horizons)
        preferred_device = choose_mixture_device(self.config, self.device)
        device = choose_replay_device(preferred_device, capacity, size, 0)
        demos = [_build_random_demo(spec)] if self.config.uses_demos else []
        return build_mixture(self.config, spec, demos, device, self.hardware.is_compiled)

    def _measure_rate(self, function: Callable[[], Any]) -> float:
        """Calls per second, after the warm-up."""
        for _ in range(self.warmup_calls):
            function()
        self._synchronize()
        calls, seconds = self._run_timed(function)
        return calls / seconds

    def _run_timed(self, function: Callable[[], Any]) -> tuple[int, float]:
        """The number of calls during a measurement, at least one, and their seconds."""
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < self.seconds:
            function()
            calls += 1
        self._synchronize()
        return calls, time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def run_to_first_update(config: str) -> None:
    """Build a run from its JSON configuration and train up to its first update."""
    with closing(ThroughputBenchmark(from_json(config), 0.0)) as bench:
        bench.build_learning_loop()


def _build_random_demo(spec: Spec) -> Episode:
    """A demonstration of random planes and actions."""
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (DEMO_STEPS + 1, *spec.plane)).astype(spec.dtype)
    actions = rng.integers(0, spec.actions, DEMO_STEPS)
    return Episode(planes, actions, np.ones(DEMO_STEPS, np.float32), terminal=True)


def _fill_replay(replay: PrioritizedReplay) -> None:
    """Fill every slot, with enough episode ends that some items contain one."""
    slots = len(replay.actions)
    replay.planes[:slots].fill_(1)  # any value: the pages must be in memory
    replay.rewards.normal_()
    ends = torch.randint(slots, (slots // 500 + 1,), device=replay.device)
    replay.marks[ends] = 2
    mass = torch.rand(replay.tree.size, dtype=torch.float64, device=replay.device)
    replay.tree.rebuild(mass)
    replay.cursor += replay.slots_per_lane
    replay.rebuild_index()
