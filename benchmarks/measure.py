"""What the benchmarks share: where and with what they ran, medians, tables, a process each."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lookfurther.cli.parsing import check_writable
from lookfurther.errors import ConfigError
from lookfurther.system.files import write_text
from lookfurther.system.processes import safe_import_path

REPOSITORY_ROOT = Path(__file__).parents[1]


def make_parser(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """The options every benchmark has; `seconds` is what one round of one contestant takes."""
    options = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add_json_option(options)
    options.add_argument("--seconds", type=float, default=seconds, help="length of a round")
    options.add_argument("--rounds", type=int, default=3, help="rounds; the median is reported")
    options.add_argument("--cores", type=int, default=2, help="cores to use, and threads of each")
    return options


def add_json_option(options: argparse.ArgumentParser) -> None:
    """--json FILE, refused before anything is measured where it cannot be written."""

    def output(word: str) -> Path:
        try:
            check_writable("--json", path := Path(word))
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return path

    options.add_argument("--json", type=output, help="also write every figure to this file")


def confine(cores: int) -> None:
    """Keep this process and those it starts to so many cores."""
    allowed = sorted(os.sched_getaffinity(0))
    if cores > len(allowed):
        sys.exit(
            f"{cores} cores are asked for, {len(allowed)} are here: use --cores {len(allowed)}"
        )
    os.sched_setaffinity(0, allowed[:cores])


def machine_info(packages: Sequence[str]) -> dict[str, Any]:
    """The hardware, the versions and the commit that figures belong to."""
    return {
        "cpu": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: installed_version(package) for package in packages},
        "commit": _git_commit(),
        "load_at_start": os.getloadavg()[0],
    }


def installed_version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    output = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    named = (line.partition(":")[2] for line in output.splitlines() if "Model name" in line)
    return next(named, platform.machine()).strip()


def _git_commit() -> str:
    """The commit of this checkout, with + if files differ from it; "none" outside a repository."""
    if not shutil.which("git"):
        return "none"
    git = ["git", "-C", str(REPOSITORY_ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "none"
    dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout
    return head.stdout.strip() + ("+" if dirty else "")


def median_of_rounds(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def format_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Plain columns: the first to the left, figures to the right."""
    text = [list(header), *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in text) for column in range(len(header))]
    lines = []
    for line in text:
        figures = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([line[0].ljust(widths[0]), *figures]))
    return "\n".join(lines)


def format_missing(figures: dict[str, dict[str, Any]]) -> str:
    """A line for each contestant that could not run, and why."""
    return "".join(
        f"\n{name} absent: {f['absent']}" for name, f in figures.items() if "absent" in f
    )


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def write_report(title: str, result: dict[str, Any], text: str, path: Path | None) -> None:
    """Print the table under its surroundings, and write `result` where asked."""
    where = result["surroundings"]
    versions = ", ".join(f"{name} {v or 'absent'}" for name, v in where["versions"].items())
    cores, load = len(where["cores"]), where["load_at_start"]
    print(f"{title}\n{where['cpu']}, {cores} cores, {cores} threads, load {load:.2g}")
    print(f"python {where['python']}, {versions}, commit {where['commit']}\n\n{text}")
    if path:
        write_text(path, json.dumps(result, indent=2) + "\n")


class Contestant:
    """An object in a process of its own, so that memory, threads and settings are its alone.

    `build` makes the object there; a failed import there means that it is absent here.
    """

    def __init__(self, build: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve_calls, args=(theirs, build, arguments))
        with safe_import_path():
            self.process.start()
        theirs.close()
        self.absent: str | None = self._receive()

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of the object's method."""
        self.pipe.send((method, arguments))
        return self._receive()

    def close(self) -> None:
        """End the process and with it all its memory."""
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
    """Build the object, then answer calls until the pipe closes."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        thing = build(*arguments)
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
            pipe.send((None, getattr(thing, method)(*arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))


def resident_bytes() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Bytes this machine can still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say MemAvailable")
