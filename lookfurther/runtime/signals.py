"""A polite end: the first signal asks the loop to stop, the second one does not ask."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class StopSignals:
    """While entered, SIGTERM and SIGINT set `requested`; a second one ends the process at once.

    Only the main thread may handle signals: entered from another thread, this does nothing.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        """the signal that asked for a stop, such as SIGTERM"""
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            # None: the former handler was not Python's, and cannot be set from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.requested is not None:
            os._exit(128 + number)
        self.requested = signal.Signals(number).name
