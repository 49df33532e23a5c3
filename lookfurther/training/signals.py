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
RETRY_PERIOD = 0.5  # seconds between later looks at whether an environment runs


class StopRequested(BaseException):
    """A signal has asked for a stop, and an environment does not return."""


class EnvCallTracker:
    """Entered while code of environments runs, which may hang and may raise anything."""

    def __init__(self) -> None:
        self.is_running = False
        self.last_error: BaseException | None = None  # what came out of it last

    def __enter__(self) -> None:
        self.is_running = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.is_running, self.last_error = False, error


class StopSignals:
    """While entered, the first SIGTERM, SIGINT or SIGHUP sets `requested`; a second one exits.

    Where `in_environment` still holds STEP_TIMEOUT seconds after the first, StopRequested is raised
    out of the environment. Only the main thread may handle signals: entered from another thread,
    this does nothing.
    """

    def __init__(self, is_in_environment: Callable[[], bool] = lambda: False) -> None:
        self.received_signal: str | None = None
        """the signal that asked for a stop, such as SIGTERM"""
        self._is_in_environment = is_in_environment
        self._is_interrupting = False  # the next signal comes from `_watch`
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()  # handlers may put into it
        self._previous_handlers: dict[signal.Signals, object] = {}
        self._watcher = threading.Thread(
            target=self._interrupt_stuck_environment, name="stop signals", daemon=True
        )

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if not (ignored and number == signal.SIGHUP):  # nohup asks to outlive a terminal
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_in_environment = lambda: False
        if self._watcher.is_alive():
            self._events.put("left")
            self._watcher.join()
        for number, handler in self._previous_handlers.items():
            _restore_handler(number, handler)

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_interrupting:
            self._is_interrupting = False
            if self._is_in_environment():
                self._is_in_environment = lambda: (
                    False
                )  # once: what follows must not be interrupted
                raise StopRequested
        elif self.received_signal is not None:
            os._exit(128 + number)
        else:
            self.received_signal = signal.Signals(number).name
            self._events.put("requested")

    def _interrupt_stuck_environment(self) -> None:
        """Interrupt the main thread where an environment holds it up after a signal."""
        if self._events.get() == "left":
            return
        pause = STEP_TIMEOUT
        while True:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=pause)
                return
            pause = RETRY_PERIOD
            if self._is_in_environment():
                self._is_interrupting = True
                # A real signal: it also ends the system call the main thread may wait in.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


class CheckpointSignal:
    """While entered, SIGUSR1 sets `requested`; outside the main thread this does nothing."""

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
    # None: the former handler was not Python's, and cannot be set from here.
    signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
