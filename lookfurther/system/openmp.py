"""How OpenMP threads wait for each other: they spin for microseconds, then sleep.

By default GNU's library (torch's on Linux) spins 300,000 times and LLVM's for 200 milliseconds. On
a busy machine the spinning thread often takes the core that the awaited thread needs.
"""

from __future__ import annotations

from collections.abc import MutableMapping

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
BRIEF_WAITS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}  # spins (GNU); ms (LLVM, Intel)


def set_brief_waits(environment: MutableMapping[str, str]) -> None:
    """Set brief waits, unless the user has set one of these variables.

    The libraries read the variables when they are loaded, that is, when torch is imported.
    """
    if not any(name in environment for name in WAIT_VARIABLES):
        environment.update(BRIEF_WAITS)
