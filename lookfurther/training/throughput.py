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

from lookfurther.config import Config, from_json, replace, to_json
from lookfurther.demos.episode import Episode
from lookfurther.envs import Envs
from lookfurther.gpu.graphs import Captured
from lookfurther.learner import Learner
from lookfurther.networks import builder
from lookfurther.replay.mixture import Mixture
from lookfurther.replay.prioritized import Replay
from lookfurther.system.processes import helper_environment, python_command
from lookfurther.training import hardware
from lookfurther.training.actors import LocalSource
from lookfurther.training.build import build_envs, build_mixture, build_source, training_envs
from lookfurther.training.loop import Loop
from lookfurther.training.metrics import memory_gib
from lookfurther.training.updates import Updates
from lookfurther.types import Spec
from lookfurther.validation import least_start

EXPERT_STEPS = 2_000
TURN = 8  # updates that follow one another on a GPU, as in a turn of the loop
WARM = 8  # turns before a measurement: kernels are chosen, compiled and recorded in them


class Bench:
    """The measurements, each in figures per second."""

    def __init__(self, config: Config, seconds: float) -> None:
        self.config, self.seconds = config, seconds
        self.device, self.precision, self.compiled = hardware.arithmetic(config)
        on_gpu = self.device.type == "cuda"
        self.updates, self.warm = (TURN, WARM) if on_gpu else (1, 1)
        torch.manual_seed(config.run.seed)
        hardware.set_threads(config)

    @cached_property
    def spec(self) -> Spec:
        with closing(build_envs(self.config.env, self.config, 1, 0)) as envs:
            return envs.spec

    @cached_property
    def mixture(self) -> Mixture:
        """Both replays, full of noise."""
        mixture = self.empty()
        _fill(mixture.agent)
        return mixture

    @cached_property
    def crew(self) -> tuple[LocalSource, Learner]:
        """The lanes with their actors, and the learner whose weights they take."""
        learner = self.new_learner()
        make: Callable[[int, int], Envs] = partial(build_envs, self.config.env, self.config)
        envs = training_envs(make, self.config)
        return build_source(self.config, envs, learner), learner

    def new_learner(self) -> Learner:
        network = builder(self.config.network)(self.spec)
        return Learner(network, self.config.learner, self.device, self.precision, self.compiled)

    def close(self) -> None:
        """Let go of the lanes and the replays."""
        if "crew" in self.__dict__:
            for group in self.crew[0].groups:
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

            return {"steps": lanes * self._rate(turn)}

    def actor(self) -> dict[str, float]:
        """The same environments with the network acting, and chunks with priorities coming out."""
        source, _ = self.crew

        def turn() -> None:
            source.start()
            source.collect()

        return {"steps": self.config.actor.lanes / len(source.groups) * self._rate(turn)}

    def learner(self) -> dict[str, float]:
        """Whole updates: sampling from a full replay, the step, the priorities."""
        updates = Updates(self.mixture, self.new_learner())
        rate = self._rate(lambda: updates.run(self.updates))
        updates.learner.check()
        return {"updates": self.updates * rate}

    def replay(self) -> dict[str, float]:
        """Sampling a batch and giving priorities back, and the memory of a step."""
        mixture = self.mixture
        batch = mixture.blank()

        def sample() -> None:
            mixture.sample(batch)
            mixture.update(batch.item, batch.w)

        items = self.config.batch * self._rate(Captured(sample, mixture.agent.device))
        return {"items": items, "bytes_per_step": mixture.agent.bytes / self.config.replay.capacity}

    def together(self, steps: float, updates: float) -> dict[str, float]:
        """Acting and learning at once, at the ratio of the rates that each has alone."""
        ratio = updates * self.config.batch / steps
        loop = self.loop(self.mixture, learner__samples_per_insert=ratio, replay__start=0)
        for _ in range(self.warm):
            loop.turn()
        self._wait()
        before = loop.step, loop.learner.updates, *loop.waits.values()
        seconds = self._spend(loop.turn)[1]
        loop.check()
        after = loop.step, loop.learner.updates, *loop.waits.values()
        rates = [(b - a) / seconds for a, b in zip(before, after, strict=True)]
        return dict(zip(("steps", "updates", *loop.waits), rates, strict=True))

    def training(self) -> dict[str, float]:
        """A run with its own rate of learning, from its first update on; the replay is empty."""
        loop = self.learning()
        before = loop.step
        seconds = self._spend(loop.turn)[1]
        return {"steps": (loop.step - before) / seconds}

    def learning(self) -> Loop:
        """A run just after its first update: it waited for no more steps than it must."""
        loop = self.loop(self.empty(), replay__start=least_start(self.config))
        while not loop.learner.updates:
            loop.turn()
        loop.check()
        return loop

    def loop(self, mixture: Mixture, **settings: Any) -> Loop:
        """The loop of a run with these parts and settings, without its folder."""
        config = replace(self.config, **settings)
        return Loop(config, None, self.crew[0], mixture, self.crew[1], None, None)  # type: ignore[arg-type]

    def first_update(self) -> dict[str, float]:
        """Seconds from the start of a new process to its first update, with cold caches."""
        with tempfile.TemporaryDirectory() as cache:
            code = "import sys; from lookfurther import bench; bench.start_cold(sys.stdin.read())"
            environment = helper_environment(user_modules=True) | {
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
        held = {"host": memory_gib()}
        if self.device.type == "cuda":
            held["gpu"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        return held

    def empty(self) -> Mixture:
        """Both replays, with a demonstration and nothing else in them."""
        spec, replay = self.spec, self.config.replay
        size = Replay.bytes_for(spec, replay.capacity, len(replay.horizons))
        memory = hardware.replay_device(self.config, size, 0)
        expert = [_noise(spec)] if self.config.learner.expert_items else []
        return build_mixture(self.config, spec, expert, memory)

    def _rate(self, turn: Callable[[], Any]) -> float:
        """Turns a second, after some that do not count."""
        for _ in range(self.warm):
            turn()
        self._wait()
        turns, seconds = self._spend(turn)
        return turns / seconds

    def _spend(self, turn: Callable[[], Any]) -> tuple[int, float]:
        """Turns made in the time of a measurement, at least one, and the seconds they took."""
        turns, start = 0, time.perf_counter()
        while not turns or time.perf_counter() - start < self.seconds:
            turn()
            turns += 1
        self._wait()
        return turns, time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def start_cold(config: str) -> None:
    """A process up to its first update."""
    with closing(Bench(from_json(config), 0.0)) as bench:
        bench.learning()


def _noise(spec: Spec) -> Episode:
    """A demonstration of nothing."""
    random = np.random.default_rng(0)
    planes = random.integers(0, 256, (EXPERT_STEPS + 1, *spec.plane)).astype(spec.dtype)
    actions = random.integers(0, spec.actions, EXPERT_STEPS)
    return Episode(planes, actions, np.ones(EXPERT_STEPS, np.float32), terminal=True)


def _fill(replay: Replay) -> None:
    """Something in every slot, and so many episodes that some items end in one."""
    slots = len(replay.actions)
    replay.planes[:slots].fill_(1)  # what they show does not matter, that they are in memory does
    replay.rewards.normal_()
    ends = torch.randint(slots, (slots // 500 + 1,), device=replay.device)
    replay.marks[ends] = 2
    mass = torch.rand(replay.tree.size, dtype=torch.float64, device=replay.device)
    replay.tree.rebuild(mass)
    replay.cursor += replay.length
    replay.relink()
