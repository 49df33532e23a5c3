"""The first signal asks a run to stop, and the second one ends it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from lookfurther.training.signals import StopSignals


def receive_two_signals() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received_signal == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)


def test_second_signal_exits_immediately() -> None:
    if (child := os.fork()) == 0:
        try:
            receive_two_signals()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGINT


def test_stop_signals_restore_previous_handlers() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.getsignal(n) for n in numbers]
    with suppress(ZeroDivisionError), StopSignals() as signals:
        assert signals.received_signal is None
        signal.raise_signal(signal.SIGTERM)
        assert signals.received_signal == "SIGTERM"
        raise ZeroDivisionError
    assert [signal.getsignal(n) for n in numbers] == previous


def test_stop_signals_in_thread_keep_handlers() -> None:
    previous, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with StopSignals() as signals:
            seen.append((signals.received_signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, previous)]
