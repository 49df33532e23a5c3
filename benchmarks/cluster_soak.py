"""Trains with actors on Ray while random actors are killed: does memory or a process leak?

    python -m benchmarks.cluster_soak [--minutes M] [--actors N] [--pause S] [--json FILE]

Every few seconds, it records the memory of this process, of Ray's processes and of their actors,
their number, open files and shared memory. The heap of this process is what the program has
allocated; its memory also contains freed blocks that the C library keeps. The report compares the
second quarter of the time with the last: the replay is full before that. With a pause, the learner
sleeps after each chunk, so the actors wait with as many chunks as they may keep.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import add_json_option, format_table, machine_info, write_report
from lookfurther import Callback, Config, preset, train
from lookfurther.training.callbacks import RunContext
from lookfurther.training.cluster.options import ClusterOptions

SAMPLE_SECONDS = 5.0
KILL_SECONDS = (15.0, 45.0)  # between two kills
SHARED_MEMORY = "/dev/shm"
# How command lines of Ray's processes begin or what they contain; all others are "other_ray".
PROCESS_KINDS = {"ray::RayActor": "actors", "/raylet/raylet": "raylet", "/gcs_server": "gcs"}

Sample = dict[str, float]


def list_descendants(root: int) -> dict[int, str]:
    """The processes that a process started, directly or not, with their command lines."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rsplit(")")[-1].split()[1]
                )
                commands[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().decode(errors="replace")
                )
        except OSError:  # it has ended
            continue
    found: set[int] = {root}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return {pid: commands[pid] for pid in found - {root} if pid in commands}


def is_running(pid: int) -> bool:
    """Whether a process exists, also as a zombie."""
    return Path(f"/proc/{pid}").exists()


def measure_memory(pid: int) -> tuple[float, float]:
    """MiB of a process that are its own, and that it shares with others of the run, divided.

    Pages of files are left out: their share depends on the other processes of the machine.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return sizes["Pss_Anon"], sizes["Pss_Shmem"]


def find_shared_files(pids: Iterable[int]) -> set[str]:
    """The files in shared memory that processes have mapped and that still have a name."""
    files = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            files |= {line.split()[-1] for line in lines if f" {SHARED_MEMORY}/" in line}
    return {name for name in files if Path(name).exists()}


class HeapCounts(ctypes.Structure):
    """`struct mallinfo2` of glibc: ten sizes."""

    _fields_ = [
        ("before", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),  # hblkhd: bytes in blocks that have mappings of their own
        ("between", ctypes.c_size_t * 2),
        ("in_use", ctypes.c_size_t),  # uordblks: bytes in all other blocks that are not freed
        ("after", ctypes.c_size_t * 2),
    ]


def measure_heap() -> float:
    """MiB that this process has allocated from the C library and not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = HeapCounts
    counts = mallinfo2()
    return (counts.in_use + counts.mapped) / 2**20


class PausingCallback(Callback):
    """Makes the learner slow: it sleeps at each row of metrics."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        time.sleep(self.seconds)


class KillingObserver(threading.Thread):
    """Kills actors at random times and records what the run uses, until `is_over` is set."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.is_over = threading.Event()
        self.samples: list[Sample] = []
        self.seen: dict[int, str] = {}  # every process of the run
        self.shared_files: set[str] = set()
        self.kills = 0
        self._random = random.Random(seed)

    def run(self) -> None:
        start = time.monotonic()
        next_kill = start + KILL_SECONDS[1]
        while not self.is_over.wait(SAMPLE_SECONDS):
            now = time.monotonic()
            processes = list_descendants(os.getpid())
            self.seen |= processes
            self.shared_files |= find_shared_files(processes)
            self.samples.append(take_sample(now - start, processes))
            actors = [
                pid for pid, command in processes.items() if command.startswith("ray::RayActor")
            ]
            if now >= next_kill and actors:
                self._kill_actor(actors)
                next_kill = now + self._random.uniform(*KILL_SECONDS)

    def _kill_actor(self, actors: Sequence[int]) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self._random.choice(sorted(actors)), signal.SIGKILL)
            self.kills += 1


def classify_process(command: str) -> str:
    """The kind of a process of Ray, by its command line."""
    return next((kind for text, kind in PROCESS_KINDS.items() if text in command), "other_ray")


def take_sample(seconds: float, processes: dict[int, str]) -> Sample:
    """What the run uses now."""
    own, _ = measure_memory(os.getpid())
    memory = dict.fromkeys([*PROCESS_KINDS.values(), "other_ray"], 0.0)
    shared_memory = 0.0
    for pid, command in processes.items():
        anonymous, shared = measure_memory(pid)
        memory[classify_process(command)] += anonymous
        shared_memory += shared
    return {
        "seconds": seconds,
        "learner_mib": own,
        "learner_heap_mib": measure_heap(),
        "learner_python_blocks": sys.getallocatedblocks(),
        **{f"{kind}_mib": size for kind, size in memory.items()},
        "shared_memory_mib": shared_memory,
        "processes": len(processes),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def compare_quarters(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Medians of each figure over the second and the last quarter of the time, and the growth."""
    quarter = len(samples) // 4
    parts = samples[quarter : 2 * quarter], samples[-quarter:]
    report = {}
    for name in samples[0].keys() - {"seconds"}:
        early, late = (statistics.median(sample[name] for sample in part) for part in parts)
        growth = 100 * (late - early) / early if early else 0.0
        report[name] = {"second_quarter": early, "last_quarter": late, "growth_percent": growth}
    return dict(sorted(report.items()))


def make_config(folder: str, minutes: float) -> Config:
    """Frames of Atari, a replay that is full after a minute, few updates."""
    return preset(
        "no-demos",
        "small",
        env="ALE/Pong-v5",
        actor__lanes=8,
        replay__capacity=4_000,
        replay__learning_starts=1_000,
        learner__agent_items=32,
        learner__samples_per_insert=0.25,
        environment__max_failures=20,
        run__minutes=minutes,
        run__steps=10**8,
        run__checkpoint_minutes=2.0,
        run__log_period=ClusterOptions().steps_per_chunk,
        run__threads=1,
        run__folder=folder,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    parser.add_argument("--minutes", type=float, default=15.0, help="length of the run")
    parser.add_argument("--actors", type=int, default=2, help="actors")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of sleep per chunk")
    parser.add_argument("--seed", type=int, default=0, help="of the times and the actors")
    options = parser.parse_args()
    machine = machine_info(["torch", "ray", "lz4", "ale-py"])
    observer = KillingObserver(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        observer.start()
        config = make_config(f"{folder}/run", options.minutes)
        summary = train(
            config,
            cluster=ClusterOptions(actors=options.actors),
            callbacks=[PausingCallback(options.pause)],
        )
        observer.is_over.set()
        observer.join()
    result = {
        "minutes": options.minutes,
        "pause": options.pause,
        "steps": summary.step,
        "updates": summary.updates,
        "kills": observer.kills,
        "processes_seen": len(observer.seen),
        "processes_left": sum(map(is_running, observer.seen)),
        "shared_files_seen": len(observer.shared_files),
        "shared_files_left": sum(os.path.exists(name) for name in observer.shared_files),
        "figures": compare_quarters(observer.samples),
        "samples": observer.samples,
        "surroundings": machine,
    }
    rows = [[name, *row.values()] for name, row in result["figures"].items()]
    table = format_table(["figure", "second quarter", "last quarter", "growth in %"], rows)
    write_report("actors on Ray, killed at random", result, table, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
