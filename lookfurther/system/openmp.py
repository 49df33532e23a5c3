"""How OpenMP's threads wait for one another: they spin for microseconds, then they sleep.

By default GNU's library (torch's on Linux) spins 300,000 times and LLVM's for 200 milliseconds. On
a busy machine the thread that is waited for often has no core, because the one that spins has it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
BRIEF_WAITS = {
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
}  # GNU: turns; LLVM, Intel: milliseconds


def set_brief_waits(environment: MutableMapping[str, str]) -> None:
    """Set brief waits, unless the user chose how to wait.

    The libraries read these variables when they are loaded, that is, when torch is imported.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment.update(BRIEF_WAITS)
