"""The progress of a quiet run: warnings on the standard error, nothing else."""

from __future__ import annotations

import sys
from typing import Protocol

from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable
from lookfurther.training.monitoring.console import MetricsRow


class Progress(Protocol):
    """What a run reports while it trains."""

    def start(self) -> None: ...

    def update(self, row: MetricsRow) -> None: ...

    def print_message(self, text: str) -> None: ...

    def print_warning(self, text: str) -> None: ...

    def stop(self) -> None: ...


class QuietProgress:
    """Prints warnings only."""

    def start(self) -> None:
        pass

    def update(self, row: MetricsRow) -> None:
        pass

    def print_message(self, text: str) -> None:
        pass

    def print_warning(self, text: str) -> None:
        print(f"warning: {make_printable(text, MAX_MESSAGE_LENGTH)}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        pass
