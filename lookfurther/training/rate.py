"""How much is learned per step inserted: a setting, not luck."""

from __future__ import annotations

from lookfurther.config import Config


def updates_due(config: Config, inserted: int) -> int:
    """Updates the learner should have made once `inserted` agent steps are in the replay."""
    learnable = max(0, inserted - config.replay.learning_starts)
    return int(learnable * config.learner.samples_per_insert / config.batch_size)
