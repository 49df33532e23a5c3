"""Rendering without a display."""

from __future__ import annotations

from collections.abc import MutableMapping


def disable_windows(environ: MutableMapping[str, str]) -> None:
    """Make SDL draw in memory, for environments that use pygame to draw images.

    With its usual driver SDL looks for a display and prints an error if there is none.
    """
    environ.setdefault("SDL_VIDEODRIVER", "dummy")
    environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
