"""Runs the jobs of a suite, each in its own processes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lookfurther.evaluation.suite import SuiteJob
from lookfurther.system.processes import python_command, subprocess_environment
from lookfurther.training.signals import StopSignals

POLL_SECONDS = 1.0  # between two checks of a running job


def run_jobs(
    jobs: Sequence[SuiteJob], on_change: Callable[[SuiteJob], None], parallel: int = 1
) -> None:
    """Complete the jobs that are not done, `parallel` at a time; report changes to `on_change`."""
    lock = threading.Lock()  # `on_change` draws a table

    def report_change(job: SuiteJob) -> None:
        with lock:
            on_change(job)

    with StopSignals() as signals, ThreadPoolExecutor(parallel) as pool:

        def run_job(job: SuiteJob) -> None:
            if signals.received_signal:
                return
            job.state = "running"
            report_change(job)
            code = complete_job(
                job, lambda: report_change(job), lambda: bool(signals.received_signal)
            )
            finish_job(job, code)
            report_change(job)

        list(pool.map(run_job, [job for job in jobs if job.state != "done"]))


def finish_job(job: SuiteJob, code: int) -> None:
    """Set the state of a job by the exit code of its last process."""
    job.read_newest_row()
    job.state = "failed" if code else "done" if job.is_done() else "stopped"
    job.failure = _failure_reason(job, code) if code else ""


def complete_job(job: SuiteJob, on_poll: Callable[[], None], is_stopped: Callable[[], bool]) -> int:
    """Train and then evaluate, in other processes; returns the exit code of the last one.

    An evaluation that is stopped has not failed: it is made again the next time.
    """
    if not job.has_used_budget():
        code = run_command(job, job.train_arguments(), on_poll, is_stopped)
        if code or not job.has_used_budget():
            return code
    for arguments in job.evaluation_commands():
        if is_stopped():
            return 0
        job.state = "evaluating"
        on_poll()
        code = run_command(job, arguments, on_poll, is_stopped)
        if code:
            return 0 if is_stopped() else code
    return 0


def run_command(
    job: SuiteJob,
    arguments: Sequence[str],
    on_poll: Callable[[], None],
    is_stopped: Callable[[], bool],
) -> int:
    """Run a command in another process, which is terminated as soon as `is_stopped()`."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    command = python_command("-m", "lookfurther", *arguments)
    # In its own session, so that a Ctrl-C in the terminal reaches it only through this process.
    with job.log_file.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=subprocess_environment(user_modules=True),
            start_new_session=True,
        )
    is_terminated = False
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if is_stopped() and not is_terminated:
                process.terminate()
                is_terminated = True
            job.read_newest_row()
            on_poll()


def _failure_reason(job: SuiteJob, code: int) -> str:
    """The signal that killed a failed run, or the last line of its output."""
    lines = job.log_file.read_text(encoding="utf-8", errors="replace").split("\n")
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    reason = f"killed by signal {-code}" if code < 0 else last_line.removeprefix("lookfurther: ")
    return f"{reason} ({job.log_file})"
