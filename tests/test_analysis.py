"""Analyses: values along a demonstration, rollouts from it, and standing still."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from lookfurther.analysis.life_losses import LifeLoss, find_life_losses
from lookfurther.analysis.results import divergence_reason
from lookfurther.analysis.reward_order import RewardOrder, compare_rewards, describe_orders
from lookfurther.analysis.rollout_envs import EnvBuilder
from lookfurther.analysis.rollouts import DemonstrationRollout, roll_out_demonstration
from lookfurther.analysis.standstill import (
    EpisodeSettings,
    EpisodeTrace,
    Standstill,
    StandstillDetector,
    group_standstills,
    plane_digest,
    play_traced_episodes,
)
from lookfurther.analysis.values import stack_observations, values_along_episode
from lookfurther.config import Config, EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.playback import episode_from_log, make_lane, play_lane
from lookfurther.errors import DemonstrationError
from lookfurther.presets import preset
from lookfurther.transforms import IDENTITY, make_value_transform
from lookfurther.types import Spec

CARTPOLE = Spec("CartPole-v1", (4,), 1, "float32", 2, 1.0)
MONTEZUMA = Spec("ALE/MontezumaRevenge-v5", (1, 84, 84), 4, "uint8", 18, 255.0)
EVERY, STEPS = 6, 10
NO_REWARDS = RewardOrder(0, None, None)


class Imitator:
    """Repeats the demonstration from every EVERY-th step up to step `until`, then takes action 0.

    It stands for an `Agent` whose rollouts are all in one batch.
    """

    def __init__(self, episode: Episode, spec: Spec, until: int = 10**9) -> None:
        self.spec, self.calls, self.network = spec, 0, None
        self.config = dataclasses.replace(Config(), env=spec.env)
        self.actions = np.where(np.arange(len(episode)) < until, episode.actions, 0)

    def q_values(self, observations: np.ndarray) -> np.ndarray:
        steps = np.arange(0, len(self.actions), EVERY) + self.calls
        steps = steps[steps < len(self.actions)]
        q = np.zeros((len(observations), self.spec.actions), np.float32)
        q[np.arange(len(q)), self.actions[steps[: len(q)]]] = 2.0  # games may end early
        self.calls += 1
        return q


def cartpole_episode(seed: int = 3) -> Episode:
    """Steps of the pole's own side, until it falls."""
    lane = make_lane(CARTPOLE.env, EnvConfig())
    planes, actions, rewards = [], [], []

    def select_action(plane: np.ndarray) -> int:
        actions.append(int(plane[2] + 0.3 * plane[3] > 0))
        return actions[-1]

    for step in play_lane(lane, seed, select_action, max_steps=40):
        planes.append(next(iter(step.planes)))
        rewards.append(step.reward)
    arrays = np.stack(planes), np.array(actions), np.array(rewards[1:], np.float32)
    return Episode(*arrays, terminal=False, seed=seed)


def montezuma_episode(phase: int = 0) -> Episode:
    actions = np.random.default_rng(0).integers(1, 18, 25).astype(np.uint8)
    frames = np.repeat(actions, 4)[(4 - phase) % 4 :]
    return episode_from_log(InputLog(frames, phase=phase), MONTEZUMA.env)


def play_rollouts(episode: Episode, spec: Spec, until: int = 10**9) -> list[DemonstrationRollout]:
    agent: Any = Imitator(episode, spec, until)
    starts = range(0, len(episode), EVERY)
    return list(roll_out_demonstration(agent, EnvBuilder(agent), episode, starts, STEPS))


# Values


def test_observations_are_stacked_with_blank_planes_before_the_first() -> None:
    planes = np.array([[[1.0]], [[2.0]], [[3.0]]])
    stacked = stack_observations(planes, np.array([0, 2]), stack=3)
    assert stacked[:, :, 0].tolist() == [[0, 0, 1], [1, 2, 3]]


def test_values_of_hand_worked_episode() -> None:
    """Rewards 1, 0, 8 at gamma 0.5 have the returns 3, 4, 8."""
    config = preset("apex-dqfd", learner__gamma=0.5)
    planes = np.arange(4, dtype=np.float32)[:, None]
    episode = Episode(planes, np.array([0, 1, 1]), np.array([1, 0, 8], np.float32), True)
    table = np.array([[3.0, 2], [5, 4], [1, 8], [0, 0]], np.float32)
    values = values_along_episode(
        lambda x: table[x[:, 0].astype(int)], episode, 1, config, IDENTITY
    )
    assert values.raw_return.tolist() == [3, 4, 8]
    assert values.max_value.tolist() == [3, 5, 8]
    assert values.demonstrated_value.tolist() == [3, 4, 8]
    assert values.action_gap.tolist() == [1, -1, 7]
    assert values.agreement == pytest.approx(2 / 3)
    assert values.shortfall == pytest.approx((0 - 1 + 0) / 3)
    assert values.one_step_error.tolist() == [3 - (1 + 2.5), 4 - (0 + 4)]
    assert values.noise == pytest.approx(0.25)


def test_raw_and_transformed_values_agree() -> None:
    config = preset("apex-dqfd", env=CARTPOLE.env, learner__gamma=0.9)
    episode = cartpole_episode()
    q = np.random.default_rng(0).normal(5, 2, (len(episode), 2)).astype(np.float32)
    transform = make_value_transform("h", 1e-2)
    values = values_along_episode(lambda x: q[: len(x)], episode, 1, config, transform)
    h = lambda z: np.sign(z) * (np.sqrt(np.abs(z) + 1) - 1) + 1e-2 * z  # noqa: E731
    assert np.allclose(h(values.raw_max_value), values.max_value)
    assert np.allclose(h(values.raw_return), values.transformed_return)


# Rollouts


@pytest.mark.parametrize("phase", [0, 2])
def test_imitator_of_atari_game_never_leaves(phase: int) -> None:
    pytest.importorskip("ale_py")
    episode = montezuma_episode(phase)
    rollouts = play_rollouts(episode, MONTEZUMA)
    assert [rollout.start for rollout in rollouts] == list(range(0, len(episode), EVERY))
    for rollout in rollouts:
        assert rollout.divergence is None
        assert rollout.agent_score == rollout.demonstrated_score
        assert rollout.steps == min(STEPS, len(episode) - rollout.start)


def test_imitator_of_gymnasium_environment_never_leaves() -> None:
    for rollout in play_rollouts(cartpole_episode(), CARTPOLE):
        assert rollout.divergence is None
        assert rollout.agent_score == rollout.demonstrated_score == rollout.steps


@pytest.mark.parametrize("phase", [0, 2])
def test_rollout_leaves_at_first_other_action(phase: int) -> None:
    """Up to there the observation is the recorded one: the state was restored exactly."""
    pytest.importorskip("ale_py")
    episode = montezuma_episode(phase)
    for rollout in play_rollouts(episode, MONTEZUMA, until=8):
        found = rollout.divergence
        assert found is not None
        assert found.step == max(8, rollout.start)
        assert (found.agent_action, found.agent_value) == (0, 2.0)
        assert found.demonstrated_action == episode.actions[found.step]
        assert found.demonstrated_value == 0.0
        assert found.is_same_observation
        assert found.picture is not None
        assert found.picture.any()


def test_game_that_ends_early_is_compared_over_all_steps() -> None:
    """Pushing to one side only, the pole falls in at most ten steps."""
    episode = cartpole_episode()
    rollouts = play_rollouts(episode, CARTPOLE, until=0)
    assert any(rollout.is_game_over for rollout in rollouts)
    for rollout in rollouts:
        assert rollout.demonstrated_score == min(STEPS, len(episode) - rollout.start)
        assert rollout.agent_score <= rollout.demonstrated_score


def test_replay_that_differs_is_refused() -> None:
    episode = cartpole_episode()
    altered = episode.planes.copy()
    altered[EVERY] += 1
    with pytest.raises(DemonstrationError, match=f"something else at step {EVERY}"):
        play_rollouts(dataclasses.replace(episode, planes=altered), CARTPOLE)


def test_reason_depends_on_observation_and_noise() -> None:
    found = play_rollouts(cartpole_episode(), CARTPOLE, until=0)[0].divergence
    assert found is not None
    assert "clearly higher" in divergence_reason(found, noise=1.9)
    assert "closer than" in divergence_reason(found, noise=2.0)
    other = found._replace(is_same_observation=False)
    assert "another observation" in divergence_reason(other, noise=0.0)


# Standing still


def test_detector_needs_a_window_of_repeated_planes() -> None:
    """Window 10, so 9 of 10 must be repeated: 3 new planes, 9 repeated ones, then new ones."""
    detector = StandstillDetector(window=10)
    planes = [*b"abc", *b"abcabcabc", *b"defgh"]
    found = [detector.add(bytes([plane])) for plane in planes]
    assert found == [False] * 11 + [True, True] + [False] * 4


def make_standstill(episode: int, planes: bytes) -> Standstill:
    counts = Counter({bytes([plane]): count for plane, count in Counter(planes).items()})
    return Standstill(episode, 0, None, 0.0, np.zeros(2), Counter({1: len(planes)}), counts)


def test_places_are_grouped_by_their_usual_plane() -> None:
    standstills = [
        make_standstill(0, b"aab"),
        make_standstill(1, b"ba"),
        make_standstill(1, b"ccc"),
    ]
    standstills.append(make_standstill(2, b"ccc"))
    traces = [EpisodeTrace(0.0, 9, True, [s], [], NO_REWARDS) for s in standstills]
    places = group_standstills(traces, cartpole_episode())
    assert [(place.episodes, place.steps) for place in places] == [([1, 2], 6), ([0, 1], 5)]
    assert places[1].distinct_planes == 2
    assert not places[0].demonstrated_actions


def test_place_has_the_demonstrated_actions_at_its_plane() -> None:
    episode = cartpole_episode()
    found = make_standstill(0, b"a")
    found.plane_counts = Counter([plane_digest(episode.planes[4])])
    (place,) = group_standstills([EpisodeTrace(0.0, 1, True, [found], [], NO_REWARDS)], episode)
    assert place.demonstrated_actions == {int(episode.actions[4]): 1}


class Corridor:
    """A `RolloutEnv` and its builder: action 1 moves right for a reward of 1, action 0 waits."""

    lives = 0

    is_over = False
    position = 0

    def begin_episode(self, index: int, seed: int) -> tuple[Corridor, np.ndarray]:
        env = Corridor()
        env.position = index
        return env, np.array([index], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float]:
        self.position += action
        return np.array([self.position], np.float32), float(action)

    def picture(self) -> np.ndarray:
        return np.full((1, 1, 3), self.position, np.uint8)


def test_agent_that_stops_stands_still_where_it_stops() -> None:
    """It waits at position 5 from step 5 - i on; 9 repeats follow the first plane there."""
    agent: Any = Imitator(cartpole_episode(), CARTPOLE._replace(plane=(1,)))
    agent.q_values = lambda x: np.stack([np.full(len(x), 4.5), x[:, 0] < 5], 1) * [1, 9]
    builder: Any = Corridor()
    settings = EpisodeSettings(episodes=2, max_steps=40, window=10, epsilon=0.0, seed=1)
    traces = play_traced_episodes(agent, builder, settings, cartpole_episode())
    for i, trace in enumerate(traces):
        (found,) = trace.standstills
        assert (found.first_step, found.steps) == (5 - i, 40 - (5 - i))
        assert (found.score, trace.score, trace.steps) == (5 - i, 5 - i, 40)
        assert trace.reward_order[:2] == (5 - i, None)
        assert found.picture is not None
        assert (found.picture == 5).all()
        assert found.q_values.tolist() == [4.5, 0]
    (place,) = group_standstills(traces, cartpole_episode())
    assert place.episodes == [0, 1]
    assert place.action_counts == {0: 71}
    assert place.distinct_planes == 1


def test_life_losses_by_hand() -> None:
    """A life is lost by step 150, another by the last one; a life is won in between."""
    lives = [3] * 151 + [2] * 40 + [3] * 60 + [2]
    values = np.concatenate([np.full(100, 7.0), np.full(51, 5.0), np.full(100, 1.0)])
    values[151:180] = 99.0  # while the game places the player again
    first, second = find_life_losses(lives, values.tolist())
    # The 100 steps up to 150 have 49 values of 7 and 51 of 5; step 180 is the first that counts.
    assert first == LifeLoss(150, (49 * 7 + 51 * 5) / 100, 1.0)
    assert (second.step, second.value_after) == (250, None)


def test_rewards_are_compared_in_order_by_hand() -> None:
    """The steps do not matter; 0.1 in double precision equals a stored 0.1."""
    demonstrated = [0, 100, 0, 300, 100, 3000]
    assert compare_rewards([100, 0, 0, 0, 300, 0], demonstrated) == (2, None, (4, 100))
    assert compare_rewards([100, 300, 0, 3000], demonstrated) == (2, (3, 3000), (4, 100))
    assert compare_rewards([], demonstrated) == (0, None, (1, 100))
    assert compare_rewards([*demonstrated, 5], demonstrated) == (4, (6, 5), None)
    assert compare_rewards(demonstrated, demonstrated) == (4, None, None)
    assert compare_rewards([0.1], [float(np.float32(0.1))]) == (1, None, None)


def test_most_frequent_difference_of_rewards_is_described() -> None:
    demonstrated = [0.0] * 440 + [100]
    spider, other = [0.0] * 384 + [3000], [0.0] * 400 + [3000]
    orders = [compare_rewards(r, demonstrated) for r in ([], spider, other)]
    assert describe_orders(orders) == (
        "2 of 3 episodes: 0 rewards as demonstrated, then 3,000 at step 384,"
        " demonstration 100 at step 440"
    )
    assert describe_orders(orders[:1]).endswith("then none, demonstration 100 at step 440")


def test_episode_without_lives_loses_none() -> None:
    assert find_life_losses([0] * 9, [1.0] * 8) == []
