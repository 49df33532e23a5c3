"""What the machine offers, and what a configuration's "auto" and 0 stand for on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from lookfurther.config import Config
from lookfurther.envs.naming import is_atari
from lookfurther.errors import ConfigError
from lookfurther.system import cgroups
from lookfurther.system.cores import count_cores


def resolve_device(name: str) -> torch.device:
    """The device a configuration names; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"run.device {name!r} is none of auto, cpu, cuda, cuda:N") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"run.device {name} is not on this machine: use --run.device cpu")
    return chosen


def resolve_learner_threads(config: Config) -> int:
    """Cores the environments' processes leave: more threads than cores slow a learner tenfold.

    With a GPU the cores are the environments'.
    """
    if resolve_device(config.run.device).type == "cuda":
        return config.run.threads or 1
    return config.run.threads or max(1, count_cores() - config.environment.processes)


def limit_threads(config: Config) -> None:
    """Give torch the learner's threads, and its OpenBLAS one.

    The threads of a product in OpenBLAS spin until the slowest is done, whatever the wait policy:
    next to other busy processes that wastes most of their time. One thread gives the same numbers.
    """
    torch.set_num_threads(resolve_learner_threads(config))
    limit_openblas_threads(1)


def limit_openblas_threads(threads: int) -> None:
    """The most threads of a product in torch's OpenBLAS, where it has one."""
    for path in Path(torch.__file__).with_name("lib").glob("libopenblas.so*"):
        library = ctypes.CDLL(str(path))
        # A limit that has no function: OpenBLAS takes it from OpenMP when it is loaded, and sets
        # its own number of threads from OpenMP's at every product. Builds without OpenMP lack it.
        with suppress(ValueError):
            ctypes.c_int.in_dll(library, "blas_omp_number_max").value = threads


def is_learning_concurrent(config: Config) -> bool:
    """Whether the learner learns while environments step: not on the cores that they step on.

    There each would hold the other up: a product waits for the slowest of its threads.
    """
    return resolve_device(config.run.device).type == "cuda" or config.environment.processes > 0


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware has it: emulated, it is a hundred times slower."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if "amx_bf16" in read_cpu_flags() else torch.float32


def read_cpu_flags() -> set[str]:
    """The processor's features as Linux names them; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return {
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()
    }


def available_memory(device: torch.device, root: Path = cgroups.FILESYSTEM_ROOT) -> int:
    """Bytes that can still be taken on a device, or of what a container may take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = root / "proc/meminfo"
    if not info.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    allowed = cgroups.memory_below_limit(root)
    return free if allowed is None else min(free, allowed)


def configure_torch(config: Config) -> tuple[torch.device, torch.dtype, bool]:
    """What the learner computes on, in which precision, and whether by compiled kernels."""
    on = resolve_device(config.run.device)
    if on.type == "cuda":
        torch.cuda.set_device(on.index or 0)  # streams and kernels that name none are of this one
    used = resolve_precision(config.run.precision, on)
    torch.backends.cudnn.benchmark = True  # shapes never change: let it choose the fastest kernels
    # Beside bfloat16 layers, heads may round their factors to 10 bits; their sums stay float32.
    torch.set_float32_matmul_precision("highest" if used == torch.float32 else "high")
    return on, used, is_compiled(config)


def is_compiled(config: Config) -> bool:
    """Whether kernels are compiled: auto does so where it pays, on a GPU."""
    on_gpu = resolve_device(config.run.device).type == "cuda"
    return {"auto": on_gpu, "on": True, "off": False}[config.run.compile]


def count_lane_groups(config: Config) -> int:
    """Groups of lanes that take turns: with a GPU one acts while the other's games step."""
    atari, even = is_atari(config.env), config.actor.lanes % 2 == 0
    return 2 if atari and even and resolve_device(config.run.device).type == "cuda" else 1


def choose_replay_device(config: Config, agent_bytes: int, expert_bytes: int) -> torch.device:
    """Where replays of so many bytes go: beside the learner where they fit, else host memory."""
    on = resolve_device(config.run.device)
    if on.type == "cuda" and agent_bytes + expert_bytes > 0.9 * available_memory(on):
        on = torch.device("cpu")
    left = available_memory(on)
    room = 0.9 * left
    if agent_bytes + expert_bytes > room:
        fits = max(0, int(config.replay.capacity * (room - expert_bytes) / agent_bytes))
        raise ConfigError(
            f"the replays need {format_bytes(agent_bytes + expert_bytes)}, {on} has"
            f" {format_bytes(left)} left: lower"
            f" --replay.capacity to {fits:,} or below"
        )
    return on


def format_bytes(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def get_rng_state() -> dict[str, torch.Tensor]:
    """Torch's own random streams, which networks with noise draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), **{str(i): state for i, state in enumerate(cuda)}}


def set_rng_state(state: Mapping[str, torch.Tensor]) -> None:
    """The inverse of `random_state`, for the devices that are here."""
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count()):
        if str(i) in state:
            torch.cuda.set_rng_state(state[str(i)], i)
