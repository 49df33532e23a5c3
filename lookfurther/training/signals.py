"""Signals to a run: stop after the current step, stop at once, save a checkpoint."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STEP_TIMEOUT = 5.0  # seconds for an environment to finish its step after a signal
RETRY_PERIOD = 0.5  # seconds between later checks for a running environment


class StopRequested(BaseException):
    """A stop signal was received, and an environment does not return."""


class EnvCallTracker:
    """A context for calls of environment code, which may hang and may raise anything."""

    def __init__(self) -> None:
        self.is_running = False
        self.last_error: BaseException | None = None  # raised by the last call

    def __enter__(self) -> None:
        self.is_running = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.is_running, self.last_error = False, error


class StopSignals:
    """A context in which the first stop signal sets `received_signal`, and a second one exits.

    Stop signals are SIGTERM, SIGINT and SIGHUP.

    If `is_in_environment()` is still true STEP_TIMEOUT seconds after the first signal,
    StopRequested is raised inside the environment. Only the main thread can handle signals: in
    another thread this does nothing.
    """

    def __init__(self, is_in_environment: Callable[[], bool] = lambda: False) -> None:
        self.received_signal: str | None = None
        """the name of the first stop signal, such as SIGTERM"""
        self._is_in_environment = is_in_environment
        self._is_interrupting = False  # the next signal is sent by the watcher thread
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()  # safe in signal handlers
        self._previous_handlers: dict[signal.Signals, object] = {}
        self._watcher = threading.Thread(
            target=self._interrupt_stuck_environment, name="stop signals", daemon=True
        )

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                is_ignored = signal.getsignal(number) is signal.SIG_IGN
                if not (is_ignored and number == signal.SIGHUP):  # nohup ignores it
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_in_environment = lambda: False
        if self._watcher.is_alive():
            self._events.put("exited")
            self._watcher.join()
        for number, handler in self._previous_handlers.items():
            _restore_handler(number, handler)

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_interrupting:
            self._is_interrupting = False
            if self._is_in_environment():
                self._is_in_environment = lambda: False  # interrupt only once
                raise StopRequested
        elif self.received_signal is not None:
            os._exit(128 + number)
        else:
            self.received_signal = signal.Signals(number).name
            self._events.put("requested")

    def _interrupt_stuck_environment(self) -> None:
        """Interrupt the main thread if an environment blocks it after a signal."""
        if self._events.get() == "exited":
            return
        timeout = STEP_TIMEOUT
        while True:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=timeout)
                return
            timeout = RETRY_PERIOD
            if self._is_in_environment():
                self._is_interrupting = True
                # A real signal also interrupts a system call that the main thread waits in.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


class CheckpointSignal:
    """A context in which SIGUSR1 sets `is_requested`; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_installed = False
        self._previous_handler: object = None

    def __enter__(self) -> CheckpointSignal:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGUSR1, self._handle_signal)
            self.is_installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_installed:
            _restore_handler(signal.SIGUSR1, self._previous_handler)
            self.is_installed = False

    def _handle_signal(self, _: int, __: FrameType | None) -> None:
        self.is_requested = True


def _restore_handler(number: signal.Signals, handler: object) -> None:
    # None: the previous handler is not Python's and cannot be restored.
    signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
