"""What this machine offers, and what "auto" and 0 in a configuration mean on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from lookfurther.config import Config
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.system import cgroups
from lookfurther.system.cpu_info import read_cpu_flags
from lookfurther.system.processes import count_cores


@dataclass(frozen=True)
class Hardware:
    """Where and how a run computes: every "auto" and 0 of its configuration, resolved once."""

    device: torch.device  # of the learner and the actors
    precision: torch.dtype
    is_compiled: bool  # kernels are compiled
    threads: int  # of torch in this process
    lane_groups: int  # groups of lanes that take turns to act
    is_learning_concurrent: bool  # the learner learns while environments step

    @classmethod
    def resolve(cls, config: Config) -> Hardware:
        """Resolve the settings of a run for this machine, without changing any global state.

        Compiling is faster only on a GPU. Learning while environments step needs a GPU or cores
        other than theirs: on the same cores each slows the other down, because a matrix product
        waits for the slowest of its threads.
        """
        device = resolve_device(config.run.device)
        is_cuda = device.type == "cuda"
        return cls(
            device=device,
            precision=resolve_precision(config.run.precision, device),
            is_compiled={"auto": is_cuda, "on": True, "off": False}[config.run.compile],
            threads=_count_threads(config, is_cuda),
            lane_groups=_count_lane_groups(config, is_cuda),
            is_learning_concurrent=is_cuda or config.environment.processes > 0,
        )

    def limit_threads(self) -> None:
        """Set torch's number of threads, and limit its OpenBLAS to one.

        OpenBLAS threads spin until the slowest one is done, whatever the wait policy. Next to
        other busy processes that wastes most of their time. One thread gives the same numbers.
        """
        torch.set_num_threads(self.threads)
        limit_openblas_threads(1)

    def configure_torch(self) -> None:
        """Set torch's current device and its kernel and matrix product settings."""
        if self.device.type == "cuda":
            # Streams and kernels without a device argument use the current device.
            torch.cuda.set_device(self.device.index or 0)
        torch.backends.cudnn.benchmark = True  # shapes never change: choose the fastest kernels
        # With bfloat16 layers, heads may round their factors to 10 bits; sums stay float32.
        is_float32 = self.precision == torch.float32
        torch.set_float32_matmul_precision("highest" if is_float32 else "high")


def resolve_device(name: str, setting: str = "run.device") -> torch.device:
    """The device that `setting` names; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{setting} {name!r} is none of auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{setting} {name} is not on this machine: use --{setting} cpu")
    return device


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """The named precision; "auto" is bfloat16 if the hardware supports it.

    Emulated bfloat16 is a hundred times slower.
    """
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if "amx_bf16" in read_cpu_flags() else torch.float32


def _count_threads(config: Config, is_cuda: bool) -> int:
    """The configured threads, or the cores that the environments' processes do not use.

    With more threads than cores a learner is ten times slower. With a GPU the environments use all
    cores.
    """
    unused_cores = 1 if is_cuda else max(1, count_cores() - config.environment.processes)
    return config.run.threads or unused_cores


def _count_lane_groups(config: Config, is_cuda: bool) -> int:
    """Two groups with a GPU and Atari games: one acts while the other's games step."""
    is_even = config.actor.lanes % 2 == 0
    return 2 if is_cuda and is_atari(config.env) and is_even else 1


def limit_openblas_threads(threads: int) -> None:
    """Limit the threads of a matrix product in torch's OpenBLAS, if it has one."""
    for path in Path(torch.__file__).with_name("lib").glob("libopenblas.so*"):
        library = ctypes.CDLL(str(path))
        # No function sets this limit. OpenBLAS reads it from OpenMP when it is loaded, and sets
        # its number of threads from OpenMP's at every product. Builds without OpenMP lack it.
        with suppress(ValueError):
            ctypes.c_int.in_dll(library, "blas_omp_number_max").value = threads


def find_gpu_model(device: torch.device) -> str | None:
    """The name of a GPU; None for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def available_memory(device: torch.device, root: Path = cgroups.FILESYSTEM_ROOT) -> int:
    """Bytes that can still be allocated on a device, within the container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = root / "proc/meminfo"
    if not info.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    below_limit = cgroups.memory_below_limit(root)
    return free if below_limit is None else min(free, below_limit)


def choose_replay_device(
    device: torch.device, capacity: int, agent_bytes: int, expert_bytes: int
) -> torch.device:
    """The learner's device if the replays fit there, otherwise host memory.

    `capacity` is the agent replay's, for the error if they fit nowhere.
    """
    needed = agent_bytes + expert_bytes
    if device.type == "cuda" and needed > 0.9 * available_memory(device):
        device = torch.device("cpu")
    available = available_memory(device)
    usable = 0.9 * available
    if needed > usable:
        fitting = max(0, int(capacity * (usable - expert_bytes) / agent_bytes))
        raise ConfigError(
            f"the replays need {format_bytes(needed)}, {device} has {format_bytes(available)} left:"
            f" lower --replay.capacity to {fitting:,} or below"
        )
    return device


def format_bytes(size: int) -> str:
    """A number of bytes as MiB or GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def get_rng_state() -> dict[str, torch.Tensor]:
    """The states of torch's random generators, which noisy networks use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), **{str(i): state for i, state in enumerate(cuda)}}


def set_rng_state(state: Mapping[str, torch.Tensor]) -> None:
    """The inverse of `get_rng_state`, for the devices of this machine."""
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count()):
        if str(i) in state:
            torch.cuda.set_rng_state(state[str(i)], i)
