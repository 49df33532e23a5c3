"""The shipped demonstrations replay to their scores."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from lookfurther.demos import catalog, shipped
from lookfurther.envs.emulator import rom_digest
from lookfurther.errors import DemonstrationError


@pytest.mark.parametrize("name", shipped.list_names())
def test_shipped_demo_replays_to_its_audit(name: str) -> None:
    stored = shipped.read_audit(name)
    (episode,) = shipped.read_demo(name).episodes
    assert episode.audit is not None
    assert episode.audit.verified
    assert dataclasses.asdict(episode.audit) == stored["audit"]
    assert (episode.score, len(episode), episode.terminal) == (
        stored["score"],
        stored["steps"],
        stored["terminal"],
    )
    assert stored["emulator"]["rom_sha256"] == rom_digest(stored["emulator"]["game"])
    assert hashlib.sha256(shipped.demo_path(name).read_bytes()).hexdigest() == stored["sha256"]
    assert shipped.demo_path(name).stat().st_size < 8_000


@pytest.mark.parametrize("name", shipped.list_names())
def test_shipped_description_matches_replay(name: str) -> None:
    stored, replayed = (
        catalog.describe_set(f"shipped/{name}"),
        catalog.open_set(f"shipped/{name}").description,
    )
    (one,), (other,) = stored.episodes, replayed.episodes
    assert one == other._replace(reel=None, seed=None)
    assert stored._replace(episodes=()) == replayed._replace(episodes=())


def test_sparse_games_are_shipped() -> None:
    assert {"montezuma-revenge", "freeway"} <= set(shipped.list_names())
    with pytest.raises(DemonstrationError, match=r"'pong'.*montezuma-revenge"):
        shipped.read_demo("pong")
