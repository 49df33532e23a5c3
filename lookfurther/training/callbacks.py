"""Callbacks: functions of the user that a training run calls at its events."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from lookfurther.config import Config
from lookfurther.errors import CallbackError, ConfigError
from lookfurther.training.monitoring.episode_stats import FinishedEpisode

if TYPE_CHECKING:
    from lookfurther.training.monitoring.summary import Summary


@dataclass
class RunContext:
    """The run that calls a callback. Callbacks read it and may call `stop`."""

    config: Config
    folder: Path
    network: nn.Module
    """the network that acts: read its values, do not change its weights"""
    step: int = 0
    """agent steps so far; above 0 in `on_start` if the run was resumed"""
    stop_reason: str | None = None

    def stop(self, reason: str = "callback") -> None:
        """Stop the run after the current iteration; `Summary.stop_reason` is then `reason`."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Base class of callbacks for `train(config, callbacks=[...])`: override what you need.

    An exception in `on_start` ends the run before its first step. A later one prints a warning,
    disables the callback, and the run continues.
    """

    def on_start(self, run: RunContext) -> None:
        """Called before the first step, also of a resumed run."""

    def on_episode(self, run: RunContext, episode: FinishedEpisode) -> None:
        """Called for each finished episode of each lane."""

    def on_evaluation(self, run: RunContext, score: float) -> None:
        """Called after each evaluation (`run.evaluate_period`) with its mean score."""

    def on_log(self, run: RunContext, row: Mapping[str, Any]) -> None:
        """Called with each row of metrics; values that do not exist yet are NaN."""

    def on_checkpoint(self, run: RunContext, path: Path) -> None:
        """Called after each saved checkpoint; the run removes old ones."""

    def on_end(self, run: RunContext, summary: Summary) -> None:
        """Called once at the end, also if the run fails: `summary.stop_reason` is then "error"."""


class CallbackList:
    """Calls callbacks in order and disables those that raise an exception."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        context: RunContext,
        print_warning: Callable[[str], None],
    ) -> None:
        self.context, self._print_warning = context, print_warning
        self._active = list(callbacks)

    @property
    def stop_reason(self) -> str | None:
        """Why a callback stops the run, if one does."""
        return self.context.stop_reason

    def start(self, step: int) -> None:
        """Call `on_start`; an exception becomes a CallbackError."""
        self.context.step = step
        for callback in self._active:
            try:
                callback.on_start(self.context)
            except CallbackError:
                raise
            except (Exception, SystemExit) as error:
                raise CallbackError(_describe_fault(callback, "on_start", error)) from error

    def call(self, hook: str, step: int, *arguments: object) -> None:
        """Call the method `hook` of each callback; one that raises is called no more."""
        self.context.step = step
        for callback in tuple(self._active):
            try:
                getattr(callback, hook)(self.context, *arguments)
            except (Exception, SystemExit) as error:
                self._active.remove(callback)
                fault = _describe_fault(callback, hook, error)
                self._print_warning(f"{fault}; it is disabled from step {step:,} on")


def _describe_fault(callback: Callback, hook: str, error: BaseException) -> str:
    """Callback, hook, exception and the line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    name = f"{type(callback).__name__}.{hook}"
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"the callback {name} failed: {reason} ({Path(place.filename).name}:{place.lineno})"


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise a ConfigError if one is not an instance of Callback."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks must be instances of lookfurther.Callback, not {callback!r}"
            )
