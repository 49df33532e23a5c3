"""Checks of imported demonstrations."""

from __future__ import annotations

from lookfurther.demos.episode import Episode
from lookfurther.demos.importers import ImportedDemos
from lookfurther.demos.verify import verify_episode


def only_episode(imported: ImportedDemos) -> Episode:
    (episode,) = imported.episodes
    assert episode.audit is not None
    return episode


def assert_verified(imported: ImportedDemos, score: float) -> Episode:
    """Return the only episode after checking its audit and replaying it."""
    episode = only_episode(imported)
    assert episode.audit is not None
    assert (episode.audit.verified, episode.audit.mismatch) == (True, "")
    assert episode.score == episode.audit.replayed == score
    assert verify_episode(episode, imported.spec, imported.env_config).verified
    return episode
