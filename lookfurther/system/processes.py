"""Python processes that this one starts: they do not import from the working directory.

`python -c`, with which multiprocessing starts its processes too, and `python -m` put the working
directory first on the import path. In a folder of data that holds a select.py they would run it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
PACKAGE_FOLDER = Path(__file__).parents[2]


def python_command(*arguments: str) -> list[str]:
    """The command line of another Python process; start it with `helper_environment`."""
    return [sys.executable, "-P", *arguments]


def subprocess_environment(user_modules: bool = False) -> dict[str, str]:
    """Environment variables of a process that finds the packages this one finds.

    A process that needs the user's own modules looks in the working directory too, but only if this
    process does.
    """
    here = Path.cwd()
    kept = [path or str(here) for path in sys.path if not path or Path(path).is_absolute()]
    if not (user_modules or here == PACKAGE_FOLDER):
        kept = [path for path in kept if Path(path).absolute() != here]
    return os.environ | {"PYTHONPATH": os.pathsep.join(kept)}


@contextmanager
def safe_import_path() -> Iterator[None]:
    """Processes that multiprocessing starts in this block begin without the working directory.

    Then they take over the import path of this process, which has the modules of the user.
    """
    before = os.environ.get(SAFE_PATH_VARIABLE)
    os.environ[SAFE_PATH_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH_VARIABLE]
        else:
            os.environ[SAFE_PATH_VARIABLE] = before
