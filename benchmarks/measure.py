"""Shared by the benchmarks: options, machine information, medians, tables, subprocesses."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lookfurther.cli.options.parsing import check_writable
from lookfurther.errors import ConfigError
from lookfurther.system.cpu_info import find_cpu_model
from lookfurther.system.files import write_text
from lookfurther.system.processes import safe_import_path
from lookfurther.training.run_dir import find_git_commit, package_version

REPOSITORY_ROOT = Path(__file__).parents[1]


def make_parser(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """The options of every benchmark; `seconds` is the length of one round of one candidate."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add_json_option(options)
    options.add_argument("--seconds", type=float, default=seconds, help="length of a round")
    options.add_argument("--rounds", type=int, default=3, help="rounds; the median is reported")
    options.add_argument("--cores", type=int, default=2, help="cores to use, and threads of each")
    return options


def add_json_option(options: argparse.ArgumentParser) -> None:
    """--json FILE; an unwritable path is an error before anything is measured."""

    def output_path(text: str) -> Path:
        try:
            check_writable("--json", path := Path(text))
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return path

    options.add_argument("--json", type=output_path, help="also write every figure to this file")


def limit_cores(cores: int) -> None:
    """Restrict this process and its children to a number of cores."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores > len(allowed):
        sys.exit(
            f"--cores {cores}: this machine has {len(allowed)} cores; use --cores {len(allowed)}"
        )
    os.sched_setaffinity(0, allowed[:cores])


def machine_info(packages: Sequence[str]) -> dict[str, Any]:
    """The hardware, the versions and the commit that figures were measured with."""
    return {
        "cpu": find_cpu_model() or platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: package_version(package) for package in packages},
        "commit": find_git_commit(REPOSITORY_ROOT) or "none",
        "load_at_start": os.getloadavg()[0],
    }


def median_of_rounds(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def format_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A text table: first column left-aligned, the others right-aligned."""
    text = [list(header), *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in text) for column in range(len(header))]
    lines = []
    for line in text:
        figures = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([line[0].ljust(widths[0]), *figures]))
    return "\n".join(lines)


def format_missing(figures: dict[str, dict[str, Any]]) -> str:
    """A line for each candidate that could not run, with the reason."""
    return "".join(
        f"\n{name} absent: {f['absent']}" for name, f in figures.items() if "absent" in f
    )


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def write_report(title: str, result: dict[str, Any], text: str, path: Path | None) -> None:
    """Print the machine information and the table; write `result` to `path` if given."""
    machine = result["surroundings"]
    versions = ", ".join(f"{name} {v or 'absent'}" for name, v in machine["versions"].items())
    cores, load = len(machine["cores"]), machine["load_at_start"]
    print(f"{title}\n{machine['cpu']}, {cores} cores, {cores} threads, load {load:.2g}")
    print(f"python {machine['python']}, {versions}, commit {machine['commit']}\n\n{text}")
    if path:
        write_text(path, json.dumps(result, indent=2) + "\n")


class BenchmarkProcess:
    """An object in its own subprocess, so that memory, threads and settings are not shared.

    `build` makes the object there. If an import fails there, `missing_reason` says why.
    """

    def __init__(self, build: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(target=_serve_calls, args=(child_pipe, build, arguments))
        with safe_import_path():
            self.process.start()
        child_pipe.close()
        self.missing_reason: str | None = self._receive()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object and return its result."""
        self.pipe.send((method, arguments))
        return self._receive()

    def close(self) -> None:
        """End the process and free its memory."""
        self.pipe.close()
        self.process.join()

    def _receive(self) -> Any:
        try:
            failure, answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.process.name} died: out of memory?") from None
        if failure:
            raise RuntimeError(failure)
        return answer


def _serve_calls(pipe: Connection, build: Callable[..., Any], arguments: tuple) -> None:
    """Build the object, then serve calls until the pipe closes."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        target = build(*arguments)
    except ImportError as error:
        pipe.send((None, str(error)))
        return
    except Exception:
        pipe.send((traceback.format_exc(), None))
        return
    pipe.send((None, None))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, getattr(target, method)(*arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))


def resident_bytes() -> int:
    """Bytes of resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Bytes of memory available on this machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")
