"""Distances between games: the bytes of RAM that count, and how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.episode import InputLog
from lookfurther.demos.playback import make_emulator, play_log
from lookfurther.demos.ram_distance import (
    compute_byte_limits,
    find_common_actions,
    find_motion_bytes,
    find_ram_repairs,
    ram_distances,
    signed_difference,
)

pytest.importorskip("ale_py")


RAM = st.binary(min_size=128, max_size=128).map(lambda x: np.frombuffer(x, np.uint8))


@given(RAM, RAM, st.integers(0, 64))
def test_ram_distances_matches_plain_sum(a: np.ndarray, b: np.ndarray, limit: int) -> None:
    gaps = [abs(x - y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    plain = sum(min(gap, 256 - gap, limit) for gap in gaps)
    limits = np.full(128, limit)
    assert (
        ram_distances(a, b.astype(np.int16), limits)
        == plain
        == ram_distances(b, a.astype(np.int16), limits)
    )
    assert ram_distances(a, a.astype(np.int16), limits) == 0


@given(RAM, RAM)
def test_signed_difference_leads_from_one_byte_to_the_other(a: np.ndarray, b: np.ndarray) -> None:
    difference = signed_difference(a.astype(np.int16), b)
    assert ((b + difference) % 256 == a).all()
    assert ((difference >= -128) & (difference <= 127)).all()


def test_byte_limits_are_highest_for_rare_changes() -> None:
    ram = np.zeros((101, 128), np.int16)
    ram[::2, 0] = 1  # in every step
    ram[::20, 1] = 1  # in a tenth of them
    ram[50:, 2] = 1  # once
    is_motion = np.zeros(128, bool)
    assert compute_byte_limits(ram, is_motion)[:4].tolist() == [2, 20, 64, 64]
    is_motion[:3] = True
    assert compute_byte_limits(ram, is_motion)[:4].tolist() == [32, 20, 64, 64]


def test_common_actions_leave_out_rare_ones() -> None:
    frames = np.array([0] * 500 + [3] * 489 + [7] * 5 + [9] * 6, np.uint8)
    assert find_common_actions(frames) == [0, 3, 9]


def play_at_random(env: str, buttons: list[int], frames: int) -> tuple[InputLog, np.ndarray]:
    """A player who holds random buttons, and the RAM after each frame."""
    rng, held = np.random.default_rng(0), [0] * 40
    while len(held) < frames:
        held += [int(rng.choice(buttons))] * int(rng.integers(6, 30))
    log = InputLog(np.array(held[:frames], np.uint8))
    emulator = make_emulator(log, env, 4)
    ram = [emulator.ram()]
    for _ in play_log(log, emulator):
        ram.append(emulator.ram())
    return log, np.array(ram, np.int16)


@pytest.mark.parametrize(
    ("env", "buttons", "motion", "others"),
    [
        # Pong: the x of the ball, the y of the enemy, the player and the ball; the frame counter.
        ("ALE/Pong-v5", [0, 3, 4], [49, 50, 51, 54], [8]),
        # Freeway: the y of the player; the x of the ten cars.
        ("ALE/Freeway-v5", [0, 2, 5], [14], list(range(108, 118))),
    ],
)
def test_motion_bytes_are_those_of_the_annotated_games(
    env: str, buttons: list[int], motion: list[int], others: list[int]
) -> None:
    """Addresses as in the annotations of Anand et al. 2019 (Atari ARI)."""
    log, ram = play_at_random(env, buttons, 1_500)
    found = find_motion_bytes(log, env, 4, ram)
    assert found[motion].all()
    assert not found[others].any()


def test_game_that_is_too_short_for_probes_has_no_motion_bytes() -> None:
    log, ram = play_at_random("ALE/Pong-v5", [3, 4], 60)
    assert not find_motion_bytes(log, "ALE/Pong-v5", 4, ram).any()


def test_motion_bytes_of_a_game_that_ends_before_its_log() -> None:
    log, ram = play_at_random("ALE/Breakout-v5", [0, 1, 3, 4], 2_000)
    assert len(ram) <= len(log.frame_actions)
    found = find_motion_bytes(log, "ALE/Breakout-v5", 4, ram)
    assert found[72]  # the x of the paddle


def test_repairs_are_the_writes_that_last() -> None:
    """Pong computes the shown score (7) from the score (14); the ball's y (54) is a state."""
    log, ram = play_at_random("ALE/Pong-v5", [0, 3, 4], 600)
    writes = [(200, 7, 99), (200, 54, int(ram[200, 54]) ^ 16), (300, 7, 99), (400, 100, 1)]
    written = InputLog(log.frame_actions, np.array(writes, np.int32))
    repairs = find_ram_repairs(written, "ALE/Pong-v5", 4)
    assert [repair.frame for repair in repairs] == [200, 300, 400]
    changed = [np.flatnonzero(repair.is_repaired).tolist() for repair in repairs]
    assert changed == [[54], [], [100]]
    assert find_ram_repairs(log, "ALE/Pong-v5", 4) == []
