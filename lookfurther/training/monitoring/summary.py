"""How a run ended."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Summary(NamedTuple):
    """How a run ended."""

    folder: Path
    step: int  # agent steps
    updates: int
    episodes: int
    return_mean: float  # recent episodes, all lanes
    return_low_epsilon: float  # recent episodes, the least exploring quarter of the lanes
    return_best: float
    minutes: float
    stop_reason: str  # "done", "time", the signal's name, a callback's reason, or "error"

    def __repr__(self) -> str:
        return (
            f"Summary(folder='{self.folder}', step={self.step}, episodes={self.episodes},"
            f" return_low_epsilon={self.return_low_epsilon:.4g}, minutes={self.minutes:.1f},"
            f" stop_reason={self.stop_reason!r})"
        )
