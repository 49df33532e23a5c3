"""Signals to a run: stop after the current step, stop at once, save a checkpoint."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STEP_TIMEOUT = 5.0  # seconds for an environment to finish its step after a signal
RETRY_PERIOD = 0.5  # seconds between later looks at whether an environment runs


class StopRequested(BaseException):
    """A signal has asked for a stop, and an environment does not return."""


class EnvironmentCode:
    """Entered while code of environments runs, which may hang and may raise anything."""

    def __init__(self) -> None:
        self.running = False
        self.raised: BaseException | None = None  # what came out of it last

    def __enter__(self) -> None:
        self.running = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.running, self.raised = False, error


class StopSignals:
    """While entered, the first SIGTERM, SIGINT or SIGHUP sets `requested`; a second one exits.

    Where `in_environment` still holds STEP_TIMEOUT seconds after the first, StopRequested is raised
    out of the environment. Only the main thread may handle signals: entered from another thread,
    this does nothing.
    """

    def __init__(self, in_environment: Callable[[], bool] = lambda: False) -> None:
        self.requested: str | None = None
        """the signal that asked for a stop, such as SIGTERM"""
        self._in_environment = in_environment
        self._interrupting = False  # the next signal comes from `_watch`
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()  # handlers may put into it
        self._former: dict[signal.Signals, object] = {}
        self._watcher = threading.Thread(target=self._watch, name="stop signals", daemon=True)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if not (ignored and number == signal.SIGHUP):  # nohup asks to outlive a terminal
                    self._former[number] = signal.signal(number, self._note)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._in_environment = lambda: False
        if self._watcher.is_alive():
            self._events.put("left")
            self._watcher.join()
        for number, handler in self._former.items():
            _restore(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._interrupting:
            self._interrupting = False
            if self._in_environment():
                self._in_environment = lambda: False  # once: what follows must not be interrupted
                raise StopRequested
        elif self.requested is not None:
            os._exit(128 + number)
        else:
            self.requested = signal.Signals(number).name
            self._events.put("requested")

    def _watch(self) -> None:
        """Interrupt the main thread where an environment holds it up after a signal."""
        if self._events.get() == "left":
            return
        pause = STEP_TIMEOUT
        while True:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=pause)
                return
            pause = RETRY_PERIOD
            if self._in_environment():
                self._interrupting = True
                # A real signal: it also ends the system call the main thread may wait in.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


class CheckpointSignal:
    """While entered, SIGUSR1 sets `requested`; outside the main thread this does nothing."""

    def __init__(self) -> None:
        self.requested = False
        self.entered = False
        self._former: object = None

    def __enter__(self) -> CheckpointSignal:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGUSR1, self._note)
            self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        if self.entered:
            _restore(signal.SIGUSR1, self._former)
            self.entered = False

    def _note(self, _: int, __: FrameType | None) -> None:
        self.requested = True


def _restore(number: signal.Signals, handler: object) -> None:
    # None: the former handler was not Python's, and cannot be set from here.
    signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
