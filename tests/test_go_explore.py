"""Go-Explore: the archive against brute force, found trajectories against their replays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos.go_explore import SearchProgress, explore_game, run_search
from lookfurther.demos.go_explore.archive import (
    Archive,
    ArchiveEntry,
    CellVisit,
    ExplorationResult,
    actions_from_power_on,
    sample_indices,
)
from lookfurther.demos.go_explore.explorer import (
    EXPLORATION_STEPS,
    MIN_SURVIVED_STEPS,
    ExplorationStart,
    Explorer,
    GameStep,
)
from lookfurther.errors import ConfigError, EnvironmentFault
from tests.corridor_game import (
    CORRIDOR_LENGTH,
    CorridorGame,
    ExitingGame,
    RaisingGame,
    explore_corridor,
    replay_corridor,
    search_config,
    shortest_distances,
)

CELL_VISITS = st.builds(
    CellVisit,
    st.sampled_from([b"a", b"b", b"c", b"d"]),
    st.integers(1, 9),
    st.integers(-2, 5).map(float),
    st.just(0),
    st.binary(min_size=1, max_size=1),
)


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(CELL_VISITS, max_size=4)), max_size=12))
def test_archive_keeps_best_trajectory_per_cell(
    rounds: list[tuple[int, list[CellVisit]]],
) -> None:
    """The best has the highest score, then the fewest steps, then came first."""
    archive = Archive(b"start", b"s")
    offered: dict[bytes, list[tuple[float, int, bytes]]] = {}
    for pick, visits in rounds:
        start = archive.entries[pick % len(archive)]
        archive.add(
            start, ExplorationResult(bytes(9), {visit.cell for visit in visits}, visits, None)
        )
        for visit in visits:
            candidate = visit.score, start.steps + visit.steps, visit.state
            offered.setdefault(visit.cell, []).append(candidate)
    assert set(archive.cell_indices) == {b"start", *offered}
    for cell, candidates in offered.items():
        entry = archive.entries[archive.cell_indices[cell]]
        best = max(candidates, key=lambda candidate: (candidate[0], -candidate[1]))
        assert (entry.score, entry.steps, entry.state) == best
        assert len(actions_from_power_on(entry.trajectory)) == entry.steps


@pytest.mark.parametrize("seed", range(5))
def test_trajectory_replay_reproduces_every_entry(seed: int) -> None:
    archive = explore_corridor(60, seed)
    for cell, number in archive.cell_indices.items():
        entry = archive.entries[number]
        play = actions_from_power_on(entry.trajectory)
        assert replay_corridor(play) == (cell, entry.score, entry.last_reward_step)
        assert len(play) == entry.steps
        assert entry.state == cell


def test_exploration_finds_every_state() -> None:
    archive, shortest = explore_corridor(600), shortest_distances()
    assert set(archive.cell_indices) == set(shortest)
    for cell, number in archive.cell_indices.items():
        assert archive.entries[number].steps >= shortest[cell]
    assert archive.best_entry.score == 11
    assert archive.best_entry.last_reward_step >= shortest[bytes([CORRIDOR_LENGTH, 1, 1])]


def test_search_finds_highest_score() -> None:
    (best,) = explore_game(CorridorGame, search_config(), None)
    assert best.score == 11
    assert replay_corridor(actions_from_power_on(best.trajectory)) == (
        best.state,
        11,
        best.last_reward_step,
    )


def test_same_seed_gives_same_search() -> None:
    def once(seed: int) -> tuple[list[ArchiveEntry], list[tuple[int, int, float, int]]]:
        reports: list[SearchProgress] = []
        found = explore_game(CorridorGame, search_config(8_000, seed=seed, count=3), reports.append)
        return found, [(p.frames, p.num_cells, p.best_score, p.best_steps) for p in reports]

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_search_stops_within_one_exploration_of_budget() -> None:
    reports: list[SearchProgress] = []
    explore_game(CorridorGame, search_config(5_000), reports.append)
    assert reports[-2].frames < 5_000 <= reports[-1].frames < 5_000 + 4 * EXPLORATION_STEPS + 1


def test_two_processes_find_highest_score() -> None:
    (best,) = explore_game(CorridorGame, search_config(60_000, processes=2), None)
    assert best.score == 11
    assert replay_corridor(actions_from_power_on(best.trajectory)) == (
        best.state,
        11,
        best.last_reward_step,
    )


@pytest.mark.parametrize(
    ("game", "words"),
    [(RaisingGame, "RuntimeError: the cartridge is loose"), (ExitingGame, r"died \(exit code 3\)")],
)
def test_failed_or_dead_worker_ends_search(game: type[CorridorGame], words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        explore_game(game, search_config(processes=2), None)


def test_interrupt_keeps_results() -> None:
    def stop(progress: SearchProgress) -> None:
        if progress.best_score:
            raise KeyboardInterrupt

    (best,) = explore_game(CorridorGame, search_config(10**9), stop)
    assert best.score > 0


def test_cells_before_death_are_dropped_but_score_counts() -> None:
    class Cliff:
        """A new cell at every step; the last one gives 5 points and ends the game."""

        actions = (0,)
        fall = MIN_SURVIVED_STEPS + 7

        def reset(self) -> bytes:
            self.at = 0
            return b"\0"

        def step(self, action: int) -> GameStep:
            self.at += 1
            return GameStep(bytes([self.at]), 5.0 * (self.at == self.fall), self.at == self.fall)

        def save_state(self) -> bytes:
            return bytes([self.at])

        def restore_state(self, state: bytes) -> None:
            self.at = state[0]

    game = Cliff()
    archive = Archive(game.reset(), game.save_state())
    explorer = Explorer(game, np.random.SeedSequence(0))
    (start,) = archive.entries
    archive.add(start, explorer.explore(ExplorationStart(0.0, 0, start.state)))
    assert set(archive.cell_indices) == {bytes([at]) for at in range(8)}
    (best,) = archive.best_entries(3)
    assert (best.score, best.last_reward_step, best.state) == (5, game.fall, b"")


def test_best_entries_differ_in_first_half() -> None:
    found = explore_corridor(300).best_entries(5)
    plays = [actions_from_power_on(entry.trajectory)[: entry.last_reward_step] for entry in found]
    assert len(plays) > 1
    assert [e.demo_rank for e in found] == sorted((e.demo_rank for e in found), reverse=True)
    for i, play in enumerate(plays):
        for better in plays[:i]:
            assert play[: len(better) // 2] != better[: len(better) // 2]


def test_sample_starts_prefers_top_scores_and_few_visits() -> None:
    """Cell a has 8 visits, b has 3, and c, with the best score, has 8."""
    archive = Archive(b"a", b"a")
    (start,) = archive.entries
    visits = [CellVisit(b"b", 1, 0.0, 0, b"b"), CellVisit(b"c", 1, 2.0, 1, b"c")]
    archive.add(start, ExplorationResult(b"0", set(), visits, None))
    for i in range(8):
        archive.add(
            start, ExplorationResult(b"0", {b"a", b"c"} | ({b"b"} if i < 3 else set()), [], None)
        )
    chosen = [e.state for e in archive.sample_starts(np.random.default_rng(0), 20_000)]
    weights = {b"a": 1 / 3, b"b": 1 / 2, b"c": 1 / 3}
    for state, weight in weights.items():
        share = weight / sum(weights.values()) / 2 + (state == b"c") / 2
        assert chosen.count(state) / 20_000 == pytest.approx(share, abs=0.015)


def test_better_score_resets_visit_count() -> None:
    archive = Archive(b"a", b"a")
    (start,) = archive.entries
    archive.add(start, ExplorationResult(b"0", set(), [CellVisit(b"b", 1, 0.0, 0, b"b")], None))
    for _ in range(99):
        archive.add(start, ExplorationResult(b"0", {b"a", b"b"}, [], None))
    rng = np.random.default_rng(0)
    before = [e.state for e in archive.sample_starts(rng, 1000)].count(b"b")
    archive.add(start, ExplorationResult(b"00", set(), [CellVisit(b"b", 2, 1.0, 2, b"B")], None))
    after = [e.state for e in archive.sample_starts(rng, 1000)].count(b"B")
    assert before == pytest.approx(500, abs=60)
    assert after > 900


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9).filter(any), st.integers(0, 2**32))
def test_sample_indices_never_draws_zero_weight(weights: list[float], seed: int) -> None:
    drawn = sample_indices(np.random.default_rng(seed), np.array(weights), 50)
    assert all(weights[i] > 0 for i in drawn)


def test_invalid_search_settings_raise() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        run_search(dataclasses.replace(search_config(), env="CartPole-v1"))
    for setting in ("frames", "minutes", "processes", "seed", "episodes"):
        with pytest.raises(ConfigError, match=f"{setting} must be at least"):
            dataclasses.replace(search_config(), **{setting: -1})
