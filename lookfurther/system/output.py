"""Lines for the standard output, which may be closed and may not encode every letter."""

from __future__ import annotations

import contextlib
import os
import sys


def print_line(text: str) -> None:
    """Print a line to the standard output, which may lack some letters and may be closed."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError:  # the reader is gone: not a reason to stop a run
        discard_output()


def discard_output() -> None:
    """Discard buffered output, which Python would otherwise try to write again at exit."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())
