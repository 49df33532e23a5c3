"""Jump starts: lanes that begin with a part of a demonstration."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from lookfurther.actor import Actor
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos import storage
from lookfurther.demos.align import verified_episode
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.envs import get_spec, make_envs
from lookfurther.envs.atari import AtariEnvs
from lookfurther.errors import ConfigError
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.actors import ActorPool
from lookfurther.training.build import build_jump_starts
from lookfurther.training.episode_limits import EpisodeLimits
from lookfurther.training.jump_start import (
    JumpStartGroup,
    JumpStarts,
    jump_start_lanes,
    steps_to_exceed,
)
from lookfurther.training.monitoring.metrics import read_metrics
from lookfurther.training.train import train
from lookfurther.types import Step
from lookfurther.validation import validate

LANES, LENGTH = 4, 7


def make_demo(actions: np.ndarray, rewards: np.ndarray) -> Episode:
    return Episode(np.zeros((len(actions) + 1, 1)), actions, rewards, terminal=True)


def make_step(m: int, **fields: object) -> Step:
    zeros = np.zeros(m, bool)
    step = Step(np.zeros((m, 1)), np.zeros(m, np.float32), zeros, zeros, zeros, zeros)
    return step._replace(**fields)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [0, 0, 0, 0, 0, 0, 0, 0]),
        (0.25, [0, 0, 0, 1, 0, 0, 0, 1]),
        (0.5, [0, 1, 0, 1, 0, 1, 0, 1]),
        (0.75, [0, 1, 1, 1, 0, 1, 1, 1]),
    ],
)
def test_jumping_lanes_are_spread_evenly(share: float, expected: list[int]) -> None:
    assert jump_start_lanes(8, share).astype(int).tolist() == expected


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("lanes", [1, 3, 10, 128])
def test_share_of_lanes_is_rounded_down_and_never_all(lanes: int, share: float) -> None:
    assert jump_start_lanes(lanes, share).sum() == int(lanes * share + 1e-9) < lanes


def test_gain_is_counted_after_the_handover_only() -> None:
    """Six demonstrated steps with rewards 0 ... 5; the agent takes over and acts for two steps."""
    demo = make_demo(np.arange(10, 16), np.arange(6.0))
    jumps = JumpStarts({0: demo}, np.array([True, False]), 2, np.random.default_rng(0))
    no_frames, first = np.zeros(2, int), make_step(2, first=np.ones(2, bool))
    lengths = jumps.add_step(first, no_frames)
    handover = int(jumps.handovers[0])
    assert lengths.tolist() == [handover + 2, 0]
    for i in range(handover):
        assert jumps.forced_actions().tolist() == [10 + i, -1]
        jumps.add_step(make_step(2, reward=np.full(2, 100.0)), no_frames)
    assert jumps.mean_gains() == {}
    assert jumps.forced_actions().tolist() == [-1, -1]
    jumps.add_step(make_step(2, reward=np.array([7.0, 7.0])), no_frames)
    jumps.add_step(make_step(2, reward=np.array([4.0, 4.0]), truncated=np.ones(2, bool)), no_frames)
    expected = sum(range(6)[handover : handover + 2])
    assert jumps.mean_gains() == {"jump_start_gain": 11.0, "jump_start_demo_gain": expected}


def test_handovers_cover_the_demonstration_uniformly() -> None:
    """Chi-square of 4,000 draws over 8 steps, 7 degrees, 0.999."""
    demo = make_demo(np.zeros(8, np.int64), np.zeros(8))
    jumps = JumpStarts({0: demo}, np.ones(4000, bool), 2, np.random.default_rng(0))
    jumps.add_step(make_step(4000, first=np.ones(4000, bool)), np.zeros(4000, int))
    counts = np.bincount(jumps.handovers, minlength=8)
    assert len(counts) == 8
    assert ((counts - 500) ** 2 / 500).sum() < 24.3


@pytest.mark.parametrize(
    ("rewards", "reward", "expected"),
    [
        ([0, 0, 5, 0, 5], 0.0, 3),
        ([0, 0, 5, 0, 5], 5.0, 5),  # equal is not above
        ([0, 0, 5, 0, 5], 7.0, 5),
        ([0, 0, 5, 0, 5], 10.0, 5),  # never above: the whole demonstration
        ([5, -3, -3, 8], 5.0, 4),  # 5, 2, -1, 7
    ],
)
def test_steps_to_exceed_by_hand(rewards: list[int], reward: float, expected: int) -> None:
    demo = make_demo(np.zeros(len(rewards), np.int64), np.array(rewards, float))
    assert steps_to_exceed(demo, reward) == expected


def test_limited_handovers_follow_the_other_lanes() -> None:
    """A reward at every tenth step of 100: handovers end 3 steps after the next one to be reached.

    Lane 0 does not jump. It has 2 rewards, then its episode ends, then it has none; the best recent
    return counts.
    """
    demo = make_demo(np.zeros(100, np.int64), np.tile([0.0] * 9 + [1.0], 10))
    is_jumping = np.arange(2001) > 0
    jumps = JumpStarts({0: demo}, is_jumping, 3, np.random.default_rng(0), is_limited=True)
    no_frames, restarts = np.zeros(2001, int), make_step(2001, first=is_jumping)

    def highest_handover() -> int:
        jumps.add_step(restarts, no_frames)
        return int(jumps.handovers.max())

    jumps.add_step(make_step(2001, first=np.ones(2001, bool)), no_frames)
    assert jumps.handovers.max() == 10 + 3
    reward = np.where(is_jumping, 100.0, 1.0)  # rewards of jumping lanes do not count
    jumps.add_step(make_step(2001, reward=reward), no_frames)
    assert highest_handover() == 20 + 3
    jumps.add_step(make_step(2001, reward=reward, terminal=~is_jumping), no_frames)
    jumps.add_step(make_step(2001, first=~is_jumping), no_frames)
    assert highest_handover() == 30 + 3
    jumps.add_step(make_step(2001, reward=np.where(is_jumping, 0.0, 50.0)), no_frames)
    assert highest_handover() == len(demo) - 1


def jump_config(**overrides: object) -> Config:
    settings = {
        "env": "ALE/Pong-v5",
        "demos": ("pong",),
        "actor__lanes": LANES,
        "actor__jump_start_share": 0.5,
        "actor__jump_start_length": LENGTH,
        "network__convolutions": (2, 2, 2),
        "network__hidden": (4,),
    }
    return replace(preset("apex-dqfd", "small"), **(settings | overrides))


def phase_episodes(steps: int, env: str = "ALE/Pong-v5") -> list[Episode]:
    """A game of random actions for each phase, after no-op frames for every start."""
    rng = np.random.default_rng(0)
    episodes = []
    for phase in range(4):
        frames = np.concatenate([np.zeros(phase + 32), np.repeat(rng.integers(0, 18, steps), 4)])
        log = InputLog(frames.astype(np.uint8), phase=phase)
        episodes.append(verified_episode(log, env, 4))
    return episodes


def test_jumping_lanes_show_the_demonstration_and_others_do_not() -> None:
    """Observations and stored actions are the demonstration's until the handover."""
    pytest.importorskip("ale_py")
    config, episodes = jump_config(), phase_episodes(20)
    jumps = build_jump_starts(config, episodes, range(LANES))
    starts = set()
    with closing(make_envs(config.env, config.environment, LANES, 3, 1)) as envs:
        assert isinstance(envs, AtariEnvs)
        weights = MasterWeights(make_network_builder(config.network)(envs.spec), torch.float32)
        actor = Actor(weights, envs.spec, config, range(LANES))
        limits = EpisodeLimits(np.zeros(LANES, np.int64))
        group = JumpStartGroup(envs, actor, limits, jumps)
        pool = ActorPool([group], weights)
        for _ in range(150):
            noop_frames = envs.episode_frames.copy()
            for i in np.flatnonzero(group.last_step.first & jumps.is_jumping):
                starts.add(int(noop_frames[i]))
                assert jumps.demos[i] is not None
            forced, elapsed = jumps.forced_actions(), jumps.elapsed.copy()
            before = [jumps.demos[i] for i in range(LANES)]
            group.start_step()
            chunk = group.collect_chunk()
            pool.episode_stats.add_step(group.last_step, range(LANES))
            played = np.asarray(chunk.action)[0]
            assert (played == forced)[forced >= 0].all()
            for i in np.flatnonzero(forced >= 0):
                demo = before[i]
                assert demo is not None
                shown = next(e for e in episodes if np.shares_memory(e.actions, demo.actions))
                at = len(shown.actions) - len(demo.actions) + int(elapsed[i]) + 1
                assert np.array_equal(group.last_step.observation[i, -1], shown.planes[at, 0])
                assert group.last_step.reward[i] == shown.rewards[at - 1]
            limit = jumps.handovers + LENGTH
            due = jumps.is_jumping & (jumps.elapsed == limit)
            assert np.array_equal(group.last_step.truncated, due)
    assert (~jumps.is_jumping).any()
    assert len(starts) > 4  # several no-op starts were seen
    assert pool.episode_stats.episode_count == 0  # lanes that jump are not counted
    assert np.array_equal(pool.low_epsilon_lanes(), [0])
    assert "jump_start_gain" in pool.collect_metrics()


def test_lost_lives_of_the_demonstration_do_not_end_an_episode() -> None:
    """Random games of Breakout lose a life every 10 to 50 steps."""
    pytest.importorskip("ale_py")
    config = jump_config(
        env="ALE/Breakout-v5",
        actor__jump_start_share=0.75,
        actor__jump_start_length=100,
        actor__epsilon_schedule="constant",
        actor__epsilon_end=1.0,
    )
    jumps = build_jump_starts(config, phase_episodes(120, config.env), range(LANES))
    forced_losses = agent_losses = 0
    with closing(make_envs(config.env, config.environment, LANES, 3, 1)) as envs:
        assert isinstance(envs, AtariEnvs)
        weights = MasterWeights(make_network_builder(config.network)(envs.spec), torch.float32)
        actor = Actor(weights, envs.spec, config, range(LANES))
        limits = EpisodeLimits(np.zeros(LANES, np.int64), ends_on_life_loss=True)
        group = JumpStartGroup(envs, actor, limits, jumps)
        for _ in range(400):
            lives, is_forced = envs.lives, ~jumps.is_agent_acting
            group.start_step()
            group.collect_chunk()
            step = group.last_step
            is_lost = (envs.lives < lives) & ~step.first
            assert np.array_equal(step.terminal, is_lost & (~is_forced | (envs.lives == 0)))
            forced_losses += int((is_lost & is_forced).sum())
            agent_losses += int((is_lost & ~is_forced).sum())
    assert forced_losses > 2
    assert agent_losses > 2


def test_run_with_jump_starts_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    spec = get_spec("ALE/Pong-v5", EnvConfig())
    storage.save_episodes("pong-v0", phase_episodes(20), spec, "a test")
    config = jump_config(
        run__folder=str(tmp_path / "run"),
        run__steps=400,
        run__log_period=100,
        run__device="cpu",
        replay__capacity=1000,
        replay__learning_starts=200,
        learner__agent_items=6,
        learner__expert_items=2,
    )
    train(config, quiet=True)
    resumed = train(replace(config, run__steps=600), resume=True, quiet=True)
    assert resumed.step == 600
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["jump_start_gain"] == rows[-1]["jump_start_gain"]  # a number, not NaN
    assert rows[-1]["episodes"] == 0  # no other lane has ended a game


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"demos": (), "learner__expert_items": 0}, "jump_start_share needs demonstrations"),
        ({"environment__sticky_prob": 0.25}, "which sticky actions prevent"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(jump_config(**overrides))
