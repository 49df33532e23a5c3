"""Recovery demonstrations: from places where an agent is stuck back to a demonstration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookfurther import preset
from lookfurther.agent import Agent
from lookfurther.analysis.agent_games import play_agent_games
from lookfurther.cli.main import main
from lookfurther.config import EnvConfig
from lookfurther.demos import catalog, recovery, storage
from lookfurther.demos.align import cut_recording
from lookfurther.demos.episode import Episode
from lookfurther.demos.noop_starts import cut_episode, episode_from_start
from lookfurther.demos.recovery import (
    RecoverySearch,
    StuckGame,
    choose_demonstration,
    find_stuck_steps,
)
from lookfurther.envs import get_spec
from lookfurther.errors import DemonstrationError
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.types import BEST
from tests.sample_episodes import VECTOR, some_episodes

FREEWAY = "ALE/Freeway-v5"
NOOP, DOWN = 0, 5
FIRST_REWARD = 173  # step of the demonstration


@pytest.fixture(autouse=True)
def small_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "MAX_SEARCH_STEPS", 120)


@pytest.fixture(scope="module")
def crossing() -> Episode:
    """The chicken crosses the road once and gets a point for it."""
    pytest.importorskip("ale_py")
    episode = catalog.open_set("shipped/freeway").episodes[0]
    return cut_recording(episode, FIRST_REWARD + 7, 4)


@pytest.mark.parametrize("noop_frames", [0, 3])
def test_way_back_gets_the_next_reward(crossing: Episode, noop_frames: int) -> None:
    """The agent walks down at the lower edge of the road, the demonstration up and across it."""
    stuck = StuckGame(noop_frames, (DOWN,) * 20)
    found = RecoverySearch(crossing, FREEWAY, 4).recover(stuck)
    assert found is not None
    assert found.audit is not None
    assert found.audit.verified
    assert found.score == 1 == found.rewards[found.first_imitated_step :].sum()
    assert found.input_log is not None
    frames = found.input_log.frame_actions
    assert not frames[:noop_frames].any()
    assert (frames[noop_frames : noop_frames + 80] == DOWN).all()
    assert found.first_imitated_step == 20 + (noop_frames > 0)


def test_place_without_time_for_the_reward_has_no_way_back(crossing: Episode) -> None:
    """Freeway ends after about 2,040 steps."""
    stuck = StuckGame(0, (NOOP,) * 2_030)
    assert RecoverySearch(crossing, FREEWAY, 4).recover(stuck) is None


def test_demonstration_without_a_later_reward_is_not_followed(crossing: Episode) -> None:
    """Nothing would show that the game is back on the demonstration's way."""
    early = cut_recording(crossing, FIRST_REWARD, 4)
    assert RecoverySearch(early, FREEWAY, 4).recover(StuckGame(0, (DOWN,) * 20)) is None


def test_stuck_steps_follow_the_last_reward() -> None:
    rewards, lives = np.zeros(100), np.full(100, 3)
    assert list(find_stuck_steps(rewards, lives, 30, 5)) == [30, 60, 90]
    rewards[[10, 40]] = 1, -1  # a loss is no progress
    assert list(find_stuck_steps(rewards, lives, 30, 2)) == [41, 71]
    rewards[89] = 1
    assert list(find_stuck_steps(rewards, lives, 30, 2)) == []
    assert list(find_stuck_steps(rewards, lives, 10, 2)) == [100]


def test_stuck_steps_follow_the_first_life_lost_after_the_last_reward() -> None:
    rewards, lives = np.zeros(100), np.full(100, 5)
    rewards[10] = 1
    lives[5:] = 4  # before the reward
    assert list(find_stuck_steps(rewards, lives, 30, 1)) == [41]
    lives[50:] = 5  # an extra life
    assert list(find_stuck_steps(rewards, lives, 30, 1)) == [41]
    lives[60:] = 4
    lives[80:] = 3
    assert list(find_stuck_steps(rewards, lives, 10, 5)) == [71, 81, 91]
    lives[11:] = 3  # in the step after the reward
    assert list(find_stuck_steps(rewards, lives, 30, 1)) == [42]


def test_demonstration_of_the_same_phase_is_preferred(crossing: Episode) -> None:
    assert crossing.input_log is not None
    later = replace(crossing, input_log=replace(crossing.input_log, phase=3))
    better = replace(crossing, rewards=crossing.rewards + 1)
    episodes = [crossing, later, better]
    assert [choose_demonstration(episodes, n, 4) for n in (0, 3, 5, 7, 8)] == [2, 1, 2, 1, 2]


# The agent's own steps


def test_steps_of_the_agent_are_not_imitated() -> None:
    whole, recovered = (episode for episode in some_episodes(VECTOR)[:2])
    recovered = replace(recovered, first_imitated_step=len(recovered) - 1)
    config = preset("apex-dqfd", learner__imitated_episodes="all")
    marks = build_expert_replay(config, VECTOR, [whole, recovered], torch.device("cpu"), 0).marks
    is_imitated = (marks.flatten() & BEST) != 0
    assert is_imitated[: len(whole)].all()
    begin = len(whole) + 1
    expected = [False] * (len(recovered) - 1) + [True]
    assert is_imitated[begin : begin + len(recovered)].tolist() == expected


def test_first_imitated_step_is_stored(tmp_path: Path) -> None:
    episode = some_episodes(VECTOR)[0]
    recovered = replace(episode, first_imitated_step=len(episode) - 1)
    storage.save_episodes("a-v0", [episode, recovered], VECTOR, "a test", tmp_path)
    loaded = storage.load_episodes("a-v0", VECTOR, tmp_path)
    assert [e.first_imitated_step for e in loaded] == [0, len(episode) - 1]
    outside = replace(episode, first_imitated_step=len(episode))
    with pytest.raises(DemonstrationError, match="no imitated step"):
        storage.save_episodes("b-v0", [outside], VECTOR, "a test", tmp_path)


def test_recovery_is_no_demonstration_from_a_start(crossing: Episode) -> None:
    assert episode_from_start(crossing, 0, 4) is not None
    assert episode_from_start(replace(crossing, first_imitated_step=9), 0, 4) is None


def test_cut_moves_the_first_imitated_step(crossing: Episode) -> None:
    recovered = replace(crossing, first_imitated_step=9)
    assert [cut_episode(recovered, n, 40).first_imitated_step for n in (0, 5, 20)] == [9, 4, 0]


# The command


class DownwardNetwork(nn.Module):
    """Prefers one of the 18 actions, down."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.eye(18)[DOWN])

    def forward(self, observations: Tensor) -> Tensor:
        return self.values.expand(len(observations), 18)


@pytest.fixture
def stuck_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossing: Episode) -> Agent:
    """An agent that walks down, and the set `crossing`."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    config = preset("apex-dqfd", env=FREEWAY, demos=("crossing",))
    spec = get_spec(FREEWAY, config.environment)
    storage.save_episodes("crossing-v0", [crossing], spec, "a test", env_config=EnvConfig())
    agent = Agent(DownwardNetwork(), spec, config)
    monkeypatch.setattr(Agent, "load", lambda *_, **__: agent)
    return agent


COMMAND = ("demos", "recover", "run", "--demos", "crossing", "--name", "back")


@pytest.mark.usefixtures("stuck_agent")
def test_recover_command_saves_a_verified_set(capfd: pytest.CaptureFixture[str]) -> None:
    limits = ("--episodes", "1", "--max-steps", "40", "--interval", "20", "--places", "2")
    assert main([*COMMAND, *limits]) == 0
    printed = capfd.readouterr().out
    assert "start 0: return 0, 40 steps; places at steps: 20, 40" in printed
    assert "2 of 2 places with a way back" in printed
    episodes = catalog.open_set("back").episodes
    assert [episode.first_imitated_step for episode in episodes] == [20, 40]
    assert main(["demos", "verify", "back"]) == 0


def test_random_actions_of_games(stuck_agent: Agent) -> None:
    """At ε 0.5, about half of the actions are not the greedy one."""
    starts = [0, 3]
    greedy, random = (play_agent_games(stuck_agent, starts, 200, epsilon) for epsilon in (0, 0.5))
    for game in greedy:
        assert (game.action_ids == DOWN).all()
    for game, noop_frames in zip(random, starts, strict=True):
        assert game.noop_frames == noop_frames
        assert len(game.action_ids) == len(game.rewards) == len(game.lives) == 200
        assert 65 < (game.action_ids != DOWN).sum() < 125
    again = play_agent_games(stuck_agent, starts, 200, 0.5)
    assert [game.action_ids.tolist() for game in again] == [
        game.action_ids.tolist() for game in random
    ]


@pytest.mark.usefixtures("stuck_agent")
def test_invalid_epsilon_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--epsilon", "1.5"]) == 2
    assert "--epsilon must be between 0 and 1, not 1.5" in capfd.readouterr().err


@pytest.mark.usefixtures("stuck_agent")
def test_recover_command_without_a_way_back_saves_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([*COMMAND, "--episodes", "1", "--max-steps", "40"]) == 4  # no place: 60 steps
    assert "no way back was found: nothing is saved" in capfd.readouterr().err
    assert not [name for name, _ in catalog.iter_sets() if name.startswith("back")]
