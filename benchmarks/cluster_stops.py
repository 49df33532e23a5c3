"""Seconds until `lookfurther train --cluster` ends after a signal or a fault, and how it ends.

    python -m benchmarks.cluster_stops [--json FILE]

Each case is a run of its own with Ray on this machine, two actors and an environment that is fast.
The time counts from the signal or the fault until the process has ended. A good end has its exit
code, one line as a reason and a checkpoint that can be loaded. Some of Ray's processes notice later
that the run has ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cluster_soak import is_running, list_descendants
from benchmarks.measure import (
    REPOSITORY_ROOT,
    add_json_option,
    format_table,
    machine_info,
    write_report,
)
from lookfurther.training.checkpoints import checkpoint

SETTINGS = (
    "--env CartPole-v1 --scale small --actor.lanes 4 --replay.learning-starts 500"
    " --run.steps 10000000 --run.log-period 500 --environment.max-failures 1"
)


def start_run(folder: Path, cluster: str, **variables: str) -> subprocess.Popen[str]:
    """A run of the command line that writes to a folder."""
    command = [sys.executable, "-m", "lookfurther", "train", "no-demos", *SETTINGS.split()]
    command += ["--run.folder", str(folder), "--cluster", cluster, "--cluster-actors", "2"]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY_ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def send_sigterm(run: subprocess.Popen[str]) -> None:
    """Ask for the end."""
    run.send_signal(signal.SIGTERM)


def send_sigterm_twice(run: subprocess.Popen[str]) -> None:
    """Ask for the end, and then for the end at once."""
    run.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    run.send_signal(signal.SIGTERM)


def kill_actors(run: subprocess.Popen[str]) -> None:
    """Kill all actors; with one allowed failure, they are not replaced."""
    for pid, command in list_descendants(run.pid).items():
        if command.startswith("ray::RayActor"):
            os.kill(pid, signal.SIGKILL)


def measure_stop(folder: Path, fault: Callable[[subprocess.Popen[str]], None]) -> dict[str, Any]:
    """Start a run, let it learn, and measure how it ends."""
    run = start_run(folder, "local")
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        if run.poll() is not None:
            sys.exit(f"the run has ended: {run.communicate()[0]}")
        time.sleep(0.5)
    processes = list_descendants(run.pid)
    start = time.perf_counter()
    fault(run)
    output, _ = run.communicate()
    seconds = time.perf_counter() - start
    while any(map(is_running, processes)):
        time.sleep(0.1)
    saved, _ = checkpoint.load_newest(folder / "checkpoints")
    return {
        "seconds": seconds,
        "seconds_until_ray_ends": time.perf_counter() - start,
        "exit_code": run.returncode,
        "has_checkpoint": saved is not None,
        "last_line": output.strip().splitlines()[-1],
    }


def measure_refusal(folder: Path) -> dict[str, Any]:
    """A cluster at another address, without a token."""
    start = time.perf_counter()
    run = start_run(folder, "192.0.2.1:6379", HOME=str(folder.parent), RAY_AUTH_MODE="")
    output, _ = run.communicate()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "seconds_until_ray_ends": seconds,  # it was not started
        "exit_code": run.returncode,
        "has_checkpoint": False,
        "last_line": output.strip().splitlines()[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    options = parser.parse_args()
    machine = machine_info(["torch", "ray"])
    faults = {
        "SIGTERM": send_sigterm,
        "second SIGTERM": send_sigterm_twice,
        "all actors killed": kill_actors,
    }
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, fault) in enumerate(faults.items()):
            figures[name] = measure_stop(Path(folder, f"run{number}"), fault)
            print(name, figures[name], flush=True)
        figures["no token"] = measure_refusal(Path(folder, "refused"))
    columns = list(figures["SIGTERM"])
    table = format_table(
        ["case", *(column.replace("_", " ") for column in columns)],
        [[name, *row.values()] for name, row in figures.items()],
    )
    result = {"figures": figures, "surroundings": machine}
    write_report("ends of runs on Ray", result, table, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
