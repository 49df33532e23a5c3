"""Go-Explore: the archive against brute force, found trajectories against their replays."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.demos import catalog, shipped
from lookfurther.demos.episode import Audit, Episode
from lookfurther.demos.go_explore import (
    SearchConfig,
    SearchProgress,
    entry_to_input_log,
    explore_game,
    run_search,
    search_input_logs,
)
from lookfurther.demos.go_explore import cells as atari
from lookfurther.demos.go_explore.archive import (
    TAIL_STEPS,
    Archive,
    ArchiveEntry,
    CellVisit,
    ExplorationResult,
    TrajectoryNode,
    actions_from_power_on,
    sample_indices,
)
from lookfurther.demos.go_explore.cells import (
    CANDIDATE_GRIDS,
    NEW_CELL_SHARE,
    AtariExplorationGame,
    CellEncoder,
    CellGrid,
    fit_grid,
    pixel_weights,
)
from lookfurther.demos.go_explore.explorer import (
    EXPLORATION_STEPS,
    MIN_SURVIVED_STEPS,
    ExplorationStart,
    Explorer,
    GameStep,
    sample_held_actions,
)
from lookfurther.demos.playback import episode_from_log
from lookfurther.envs.emulator import rom_digest
from lookfurther.errors import ConfigError, DemonstrationError, EnvironmentFault


@pytest.fixture(autouse=True, scope="module")
def small_sample() -> Iterator[None]:
    """Fit grids to two rollouts instead of ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "SAMPLE_ROLLOUTS", 2)
        yield


CORRIDOR_LENGTH = 12
GAME = "ALE/Riverraid-v5"  # points from the first shots on


class CorridorGame:
    """A key at the left end (1 point), a door at the right end (10 with the key), a pit between.

    Actions: 0 left, 1 right, 2 jump right over the next place, 3 jump left. The pit ends a life.
    """

    actions = (0, 1, 2, 3)
    moves = (-1, 1, 2, -2)
    pit = 7

    def reset(self) -> bytes:
        self.at, self.key, self.done = 4, 0, 0
        return self.save_state()

    def step(self, action: int) -> GameStep:
        self.at = min(max(self.at + self.moves[action], 0), CORRIDOR_LENGTH)
        reward = 0
        if self.at == 0 and not self.key:
            self.key, reward = 1, 1
        if self.at == CORRIDOR_LENGTH and self.key and not self.done:
            self.done, reward = 1, 10
        return GameStep(self.save_state(), float(reward), self.at == self.pit)

    def save_state(self) -> bytes:
        return bytes([self.at, self.key, self.done])

    def restore_state(self, state: bytes) -> None:
        self.at, self.key, self.done = state


class RaisingGame(CorridorGame):
    def step(self, action: int) -> GameStep:
        raise RuntimeError("the cartridge is loose")


class ExitingGame(CorridorGame):
    def step(self, action: int) -> GameStep:
        os._exit(3)


def search_config(frames: int = 40_000, processes: int = 1, seed: int = 0, count: int = 1):
    return SearchConfig(GAME, frames, 0.0, processes, seed, count)


def shortest_distances() -> dict[bytes, int]:
    """Return the steps to every state of the corridor, by breadth-first search."""
    game = CorridorGame()
    found = {game.reset(): 0}
    queue = deque(found)
    while queue:
        state = queue.popleft()
        for action in game.actions:
            game.restore_state(state)
            cell, _, done = game.step(action)
            if not done and cell not in found:
                found[cell] = found[state] + 1
                queue.append(cell)
    return found


def replay_corridor(play: bytes) -> tuple[bytes, float, int]:
    """Replay actions in the corridor; return the last cell, the score and the last reward step."""
    game = CorridorGame()
    cell, score, rewarded = game.reset(), 0.0, 0
    for i, action in enumerate(play):
        cell, reward, _ = game.step(action)
        score += reward
        rewarded = i + 1 if reward else rewarded
    return cell, score, rewarded


def explore_corridor(explorations: int, seed: int = 0) -> Archive:
    """Return an archive of the corridor after some explorations."""
    game = CorridorGame()
    archive = Archive(game.reset(), game.save_state())
    explorer = Explorer(game, np.random.SeedSequence(seed))
    rng = np.random.default_rng(seed)
    for _ in range(explorations):
        (start,) = archive.sample_starts(rng, 1)
        archive.add(
            start, explorer.explore(ExplorationStart(start.score, start.steps, start.state))
        )
    return archive


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


@given(st.integers(1, 30), st.integers(30, 120))
def test_pixel_weights_sum_to_one(parts: int, pixels: int) -> None:
    weights = pixel_weights(parts, pixels)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights.sum(0), parts / pixels, rtol=1e-4)


def test_cell_is_quantized_mean_of_its_field() -> None:
    """If the fields hold whole pixels, a plain mean gives the same."""
    screen = np.random.default_rng(0).integers(0, 256, (12, 20)).astype(np.float32)
    means = screen.reshape(3, 4, 5, 4).mean((1, 3))
    assert (
        CellEncoder(CellGrid(3, 5, 8), (12, 20)).encode(screen)
        == (means // 32).astype(np.uint8).tobytes()
    )
    assert set(
        CellEncoder(CellGrid(3, 5, 8), (12, 20)).encode(np.full((12, 20), 255, np.float32))
    ) == {7}


def test_sampled_actions_are_held() -> None:
    held = sample_held_actions(np.random.default_rng(0), (3, 4, 5, 6), 10_000)
    changes = np.count_nonzero(np.diff(held))
    assert len(held) == 10_000
    assert set(held) == {3, 4, 5, 6}
    assert changes == pytest.approx(10_000 / 20 * 3 / 4, rel=0.15)


def test_saved_state_continues_in_other_emulator() -> None:
    one, two = (AtariExplorationGame("montezuma_revenge", CANDIDATE_GRIDS[-1]) for _ in range(2))
    one.reset()
    two.reset()
    acts = sample_held_actions(np.random.default_rng(0), one.actions, 120)
    for action in acts[:60]:
        one.step(action)
    two.restore_state(one.save_state())
    assert [one.step(action) for action in acts[60:]] == [two.step(action) for action in acts[60:]]


@pytest.fixture(scope="module")
def found() -> tuple[Episode, SearchProgress]:
    """The episode that a short search of a real game finds, and its last progress report."""
    reports: list[SearchProgress] = []
    (episode,) = run_search(search_config(2_000), reports.append)
    return episode, reports[-1]


def test_found_episode_replays_to_its_score(found: tuple[Episode, SearchProgress]) -> None:
    """It ends at most TAIL_STEPS after its last reward, with a whole step."""
    episode, progress = found
    assert episode.input_log is not None
    again = episode_from_log(episode.input_log, GAME)
    assert again.score == episode.score == progress.best_score > 0
    last = int(np.flatnonzero(again.rewards)[-1]) + 1
    assert last == progress.best_steps
    assert last <= len(again) <= last + TAIL_STEPS
    assert len(episode.input_log.frame_actions) == 4 * len(again)
    audit = episode.audit
    checks = {"score": 1}
    assert audit == Audit(True, again.score, again.score, 4 * len(again), 0, "", checks)


def test_same_seed_finds_same_input_log(found: tuple[Episode, SearchProgress]) -> None:
    (log,) = search_input_logs(GAME, 2_000, processes=1)
    assert found[0].input_log is not None
    np.testing.assert_array_equal(log.frame_actions, found[0].input_log.frame_actions)


def test_entry_that_does_not_replay_raises() -> None:
    claimed = ArchiveEntry(7.0, 3, 3, TrajectoryNode(None, bytes([0, 2, 2]), 3), b"")
    with pytest.raises(EnvironmentFault, match="of 7 points gives 0 when replayed"):
        entry_to_input_log(claimed, "ALE/Freeway-v5")


def test_input_log_ends_with_the_game() -> None:
    """Five missed balls in Breakout take 485 frames; the last step has one frame."""
    wait = bytes([1] * 200)
    whole = entry_to_input_log(
        ArchiveEntry(0.0, 200, 200, TrajectoryNode(None, wait, 200), b""), "ALE/Breakout-v5"
    )
    assert len(whole.frame_actions) == 485
    assert episode_from_log(whole, "ALE/Breakout-v5").terminal


def test_fit_grid_is_closest_to_target_share() -> None:
    """The test repeats the rollouts; no other grid has a closer ratio."""
    game = AtariExplorationGame("freeway", CANDIDATE_GRIDS[0])
    rng, screens = np.random.default_rng(0), []
    for _ in range(2):
        game.reset()
        for action in sample_held_actions(rng, game.actions, EXPLORATION_STEPS):
            if game.step(action).done:
                break
            screens.append(game.gray_screen())
    counts = {
        grid: len(set(map(CellEncoder(grid, (105, 80)).encode, screens)))
        for grid in CANDIDATE_GRIDS
    }
    errors = {
        grid: abs(math.log(count / (NEW_CELL_SHARE * len(screens))))
        for grid, count in counts.items()
    }
    assert errors[fit_grid("freeway", 0)] == min(errors.values())


def test_search_without_score_raises() -> None:
    with pytest.raises(DemonstrationError, match=r"ALE/Pitfall-v5.*more than 400 frames"):
        run_search(dataclasses.replace(search_config(400), env="ALE/Pitfall-v5"))


def test_search_out_of_time_without_score_raises() -> None:
    short = dataclasses.replace(search_config(10**9), env="ALE/Pitfall-v5", minutes=1e-9)
    with pytest.raises(
        DemonstrationError, match=r"Pitfall-v5 in [\d,]+ frames: give more than 1e-"
    ):
        run_search(short)


def test_invalid_search_settings_raise() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        search_input_logs("CartPole-v1", 1000)
    for setting in ("frames", "minutes", "processes", "seed", "episodes"):
        with pytest.raises(ConfigError, match=f"{setting} must be at least"):
            dataclasses.replace(search_config(), **{setting: -1})


@pytest.mark.parametrize("name", shipped.list_names())
def test_shipped_demo_replays_to_its_audit(name: str) -> None:
    stored = shipped.read_audit(name)
    (episode,) = shipped.demo_episodes(name)
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
        shipped.demo_episodes("pong")
