"""Perturbed demonstrations: random actions in between, and the way back after each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lookfurther import preset
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, storage
from lookfurther.demos.align import cut_recording
from lookfurther.demos.beam_search import BeamSearch, record_reference
from lookfurther.demos.delayed_log import without_delay
from lookfurther.demos.episode import Episode
from lookfurther.demos.noop_starts import cut_episode, episode_from_start
from lookfurther.demos.perturbation import (
    MAX_DISTANCE,
    PerturbationSearch,
    PerturbedGame,
    leave_out_random_actions,
)
from lookfurther.demos.playback import make_emulator, play_log
from lookfurther.demos.ram_distance import ram_distances
from lookfurther.demos.recovery import RecoverySearch
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.types import BEST
from tests.sample_episodes import VECTOR, some_episodes

FREEWAY = "ALE/Freeway-v5"
INTERVAL = 20


@pytest.fixture(scope="module")
def crossing() -> Episode:
    """The chicken crosses the road once and gets a point for it."""
    pytest.importorskip("ale_py")
    episode = catalog.open_set("shipped/freeway").episodes[0]
    return cut_recording(episode, 180, 4)


@pytest.fixture(scope="module")
def perturbed(crossing: Episode) -> Episode:
    return PerturbationSearch(crossing, FREEWAY, 4, INTERVAL, seed=0).perturb()


def ram_by_frame(episode: Episode) -> np.ndarray:
    """[F + 1, 128]: the RAM from power-on, and after each frame."""
    assert episode.input_log is not None
    emulator = make_emulator(episode.input_log, FREEWAY, 4)
    rows = [emulator.ram()]
    rows += [emulator.ram() for _ in play_log(episode.input_log, emulator)]
    return np.array(rows)


def test_game_is_verified_and_has_the_score(crossing: Episode, perturbed: Episode) -> None:
    assert perturbed.audit is not None
    assert perturbed.audit.verified
    assert perturbed.score == crossing.score == 1
    assert len(perturbed) == len(crossing)


def test_random_actions_are_not_those_shown(crossing: Episode, perturbed: Episode) -> None:
    steps = list(perturbed.random_steps)
    assert len(steps) >= 5
    assert (perturbed.actions[steps] != crossing.actions[steps]).all()


def test_each_interval_has_at_most_one_random_action(crossing: Episode, perturbed: Episode) -> None:
    """It is in the first half, so the second half is for the way back."""
    first = int(np.argmax(crossing.actions != 0))
    numbers = [(step - first) // INTERVAL for step in perturbed.random_steps]
    assert numbers == sorted(set(numbers))
    assert all((step - first) % INTERVAL < INTERVAL // 2 for step in perturbed.random_steps)


def test_each_interval_ends_where_the_demonstration_is(
    crossing: Episode, perturbed: Episode
) -> None:
    assert crossing.input_log is not None
    reference = record_reference(crossing.input_log, FREEWAY, 4)
    ends = np.arange(4 * np.argmax(crossing.actions != 0), 4 * len(crossing), 4 * INTERVAL)
    games = ram_by_frame(crossing)[ends], ram_by_frame(perturbed)[ends]
    assert (games[0] != games[1]).any()  # it is another game
    assert (ram_distances(games[1], games[0].astype(np.int16), reference.byte_limits) <= 30).all()
    assert MAX_DISTANCE == 30


def test_game_that_is_the_demonstration_again_has_its_actions(
    crossing: Episode, perturbed: Episode
) -> None:
    """Otherwise one observation would have two actions."""
    steps = np.arange(len(crossing))
    games = ram_by_frame(crossing)[4 * steps], ram_by_frame(perturbed)[4 * steps]
    is_equal = (games[0] == games[1]).all(1)
    is_equal[list(perturbed.random_steps)] = False
    assert 40 < is_equal.sum() < 170
    assert (perturbed.actions == crossing.actions)[is_equal].all()


def test_seed_determines_the_game(crossing: Episode, perturbed: Episode) -> None:
    again, other = (
        PerturbationSearch(crossing, FREEWAY, 4, INTERVAL, seed).perturb() for seed in (0, 1)
    )
    assert again.actions.tolist() == perturbed.actions.tolist()
    assert again.random_steps == perturbed.random_steps
    assert other.random_steps != perturbed.random_steps


def test_game_without_time_for_a_random_action_is_the_demonstration(crossing: Episode) -> None:
    same = PerturbationSearch(crossing, FREEWAY, 4, interval=1_000, seed=0).perturb()
    assert same.random_steps == ()
    assert same.actions.tolist() == crossing.actions.tolist()


def test_lost_game_leaves_out_the_random_actions_before(
    crossing: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no game with a random action can go on after step 100, the demonstration remains."""
    search = PerturbationSearch(crossing, FREEWAY, 4, INTERVAL, seed=0)
    extend = BeamSearch.extend

    def lose_other_games(beam: BeamSearch, candidates: list, begin: int, end: int, *rest) -> list:
        shown = search.action_ids[:begin].tolist()
        if end > 100:
            candidates = [c for c in candidates if c.action_sequence().tolist() == shown]
        return extend(beam, candidates, begin, end, *rest)

    monkeypatch.setattr(BeamSearch, "extend", lose_other_games)
    game = search.perturb()
    assert game.random_steps == ()
    assert game.actions.tolist() == crossing.actions.tolist()


def test_game_ends_where_it_stays_lost(crossing: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no game can go on after step 100, the new one ends with the interval before it."""
    extend = BeamSearch.extend

    def lose_all_games(beam: BeamSearch, candidates: list, begin: int, end: int, *rest) -> list:
        return extend(beam, candidates if end <= 100 else [], begin, end, *rest)

    monkeypatch.setattr(BeamSearch, "extend", lose_all_games)
    game = PerturbationSearch(crossing, FREEWAY, 4, INTERVAL, seed=0).perturb()
    first = int(np.argmax(crossing.actions != 0))
    assert len(game) == 100 - (100 - first) % INTERVAL
    assert game.random_steps
    assert game.random_steps[-1] < len(game)
    assert game.audit is not None
    assert game.audit.verified


def test_latest_random_actions_are_left_out() -> None:
    random_steps = [None, 3, None, 25, 31, None]
    history = [PerturbedGame(10 * i, [], step) for i, step in enumerate(random_steps)]
    assert leave_out_random_actions(history, 2) == {20, 30}
    assert [game.step for game in history] == [0, 10, 20]
    assert leave_out_random_actions(history, 4) == {0}
    assert [game.step for game in history] == [0]


def test_played_action_replaces_all_others(crossing: Episode) -> None:
    assert crossing.input_log is not None
    reference = record_reference(crossing.input_log, FREEWAY, 4)
    beam = BeamSearch(reference, without_delay(crossing.input_log), FREEWAY, 4)
    found = beam.play_action([beam.initial_candidate()], 5, 0)
    assert [candidate.action_sequence().tolist() for candidate in found] == [[5]]


# The random actions of an episode


def test_random_actions_are_not_imitated() -> None:
    whole, other = some_episodes(VECTOR)[:2]
    other = replace(other, random_steps=(0, 2))
    config = preset("apex-dqfd", learner__imitated_episodes="all")
    marks = build_expert_replay(config, VECTOR, [whole, other], torch.device("cpu"), 0).marks
    is_imitated = (marks.flatten() & BEST) != 0
    assert is_imitated[: len(whole)].all()
    begin = len(whole) + 1
    not_imitated = np.flatnonzero(~is_imitated[begin : begin + len(other)].numpy())
    assert not_imitated.tolist() == [0, 2]


def test_random_steps_are_stored(tmp_path: Path) -> None:
    episode = some_episodes(VECTOR)[0]
    other = replace(episode, random_steps=(0, 2))
    storage.save_episodes("a-v0", [episode, other], VECTOR, "a test", tmp_path)
    assert [e.random_steps for e in storage.load_episodes("a-v0", VECTOR, tmp_path)] == [(), (0, 2)]
    outside = replace(episode, random_steps=(len(episode),))
    with pytest.raises(DemonstrationError, match="a random step that it does not have"):
        storage.save_episodes("b-v0", [outside], VECTOR, "a test", tmp_path)


def test_cut_moves_the_random_steps(crossing: Episode) -> None:
    other = replace(crossing, random_steps=(4, 20, 50))
    assert cut_episode(other, 10, 50).random_steps == (10,)


def test_perturbed_game_is_no_demonstration_from_a_start(
    crossing: Episode, perturbed: Episode
) -> None:
    assert episode_from_start(crossing, 0, 4) is not None
    assert episode_from_start(perturbed, 0, 4) is None


def test_perturbed_game_is_not_searched_again(perturbed: Episode) -> None:
    for search in (
        lambda: PerturbationSearch(perturbed, FREEWAY, 4, INTERVAL, 0),
        lambda: RecoverySearch(perturbed, FREEWAY, 4),
    ):
        with pytest.raises(DemonstrationError, match="use the set that it was made from"):
            search()


# The command


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossing: Episode) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    spec = get_spec(FREEWAY, EnvConfig())
    storage.save_episodes("crossing-v0", [crossing], spec, "a test", env_config=EnvConfig())


@pytest.mark.usefixtures("stored")
def test_command_saves_a_verified_set(
    capfd: pytest.CaptureFixture[str], perturbed: Episode
) -> None:
    command = ("demos", "perturb", "crossing", "--name", "back", "--interval", str(INTERVAL))
    assert main([*command, "--copies", "2"]) == 0
    printed = capfd.readouterr().out
    count = len(perturbed.random_steps)
    assert f"seed 0: return 1, 180 steps, {count} random actions, before: return 1" in printed
    episodes = catalog.open_set("back").episodes
    assert len(episodes) == 2
    assert episodes[0].random_steps == perturbed.random_steps
    assert episodes[0].actions.tolist() == perturbed.actions.tolist()
    assert main(["demos", "verify", "back"]) == 0
    capfd.readouterr()
    assert main(["demos", "show", "back"]) == 0
    (row,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("      0 ")]
    assert row.split()[:4] == ["0", "1", "180", str(180 - count)]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--interval=1", "--interval must be at least 2, not 1"),
        ("--copies=0", "--copies must be at least 1, not 0"),
        ("--seed=-1", "--seed must be at least 0, not -1"),
    ],
)
def test_invalid_option_is_an_error(
    option: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["demos", "perturb", "crossing", "--name", "back", option]) == 2
    assert message in capfd.readouterr().err
