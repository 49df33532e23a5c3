"""Actors on other machines: everything that `train --cluster` adds to a run."""

import os

# Ray prints a paragraph for each lost process, and the run prints a line. Ray reads this variable
# when it is imported, so the modules of this package are imported before Ray.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX", "^(A worker died or was killed|Raylet is terminated)"
)
