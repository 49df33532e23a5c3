"""Jump starts: lanes that begin with a part of a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace as replace_fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookfurther.actor import Actor
from lookfurther.config import Config, EnvConfig, replace
from lookfurther.demos import storage
from lookfurther.demos.align import verified_episode
from lookfurther.demos.episode import Audit, Episode, InputLog
from lookfurther.demos.playback import episode_from_log
from lookfurther.demos.recorded_paths import find_recorded_games, make_demo_path
from lookfurther.envs import get_spec, make_envs
from lookfurther.envs.demo_starts import (
    SAVE_PERIOD,
    STACK_STEPS,
    DemoStart,
    DemoStartEnv,
    RecordedStep,
    SavedStates,
    decode_start,
)
from lookfurther.envs.emulator import Emulator
from lookfurther.errors import ConfigError, DemonstrationError
from lookfurther.master_weights import MasterWeights
from lookfurther.networks.dueling import make_network_builder
from lookfurther.presets import preset
from lookfurther.training.actors import ActorPool
from lookfurther.training.build import build_jump_start_group, build_limits
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


def start_lanes(jumps: JumpStarts, start: DemoStart | None = None) -> np.ndarray:
    """End the episodes of all lanes and begin new ones, in jumping lanes at `start` if given."""
    m = len(jumps.is_jumping)
    jumps.add_step(make_step(m, truncated=np.ones(m, bool)))
    if start is not None:
        jumps.starts = [start if jumps.is_jumping[i] else jumps.starts[i] for i in range(m)]
    return jumps.add_step(make_step(m, first=np.ones(m, bool)))


def test_gain_is_counted_after_the_handover_only() -> None:
    """40 demonstrated steps with rewards 0 ... 39; the agent takes over at step 20, for 2 steps."""
    demo = make_demo(np.arange(10, 50), np.arange(40.0))
    jumps = JumpStarts([demo], np.array([True, False]), 2, np.random.default_rng(0))
    start = DemoStart(0, 20)
    assert start.saved_step == 16
    assert start_lanes(jumps, start).tolist() == [4 + 2, 0]
    jumps.recent_gains.clear()
    for i in range(4):
        assert jumps.forced_actions().tolist() == [26 + i, -1]
        assert jumps.is_agent_acting.tolist() == [False, True]
        jumps.add_step(make_step(2, reward=np.full(2, 100.0)))
    assert jumps.collect_metrics() == {"jump_start_last_step": 39}
    assert jumps.forced_actions().tolist() == [-1, -1]
    jumps.add_step(make_step(2, reward=np.array([7.0, 7.0])))
    jumps.add_step(make_step(2, reward=np.array([4.0, 4.0]), truncated=np.ones(2, bool)))
    assert jumps.collect_metrics() == {
        "jump_start_last_step": 39,
        "jump_start_gain": 11.0,
        "jump_start_demo_gain": 20.0 + 21.0,
    }


def test_handovers_cover_the_demonstrations_uniformly() -> None:
    """Chi-square of 4,000 draws over 2 demonstrations of 4 steps, 7 degrees, 0.999."""
    demo = make_demo(np.zeros(4, np.int64), np.zeros(4))
    jumps = JumpStarts([demo, demo], np.ones(4000, bool), 2, np.random.default_rng(0))
    start_lanes(jumps)
    counts = np.bincount([start.encode(2) for start in jumps.starts], minlength=8)
    assert len(counts) == 8
    assert ((counts - 500) ** 2 / 500).sum() < 24.3


def test_episode_that_ends_before_the_handover_forces_no_action() -> None:
    """The next start is drawn at the end, and the action that follows is ignored."""
    demo = make_demo(np.zeros(40, np.int64), np.zeros(40))
    jumps = JumpStarts([demo], np.ones(1, bool), 2, np.random.default_rng(0))
    start_lanes(jumps, DemoStart(0, 20))
    for is_over in (False, False, True):
        assert jumps.forced_actions().tolist() == [0]
        jumps.add_step(make_step(1, truncated=np.array([is_over])))
    jumps.starts = [DemoStart(0, 39)]
    assert jumps.forced_actions().tolist() == [-1]


def test_episode_after_a_fault_begins_at_step_0() -> None:
    """A lane that is rebuilt does not know the start that was drawn."""
    demo = make_demo(np.zeros(40, np.int64), np.zeros(40))
    jumps = JumpStarts([demo], np.ones(1, bool), 2, np.random.default_rng(0))
    start_lanes(jumps, DemoStart(0, 20))
    jumps.add_step(make_step(1, first=np.ones(1, bool), dropped=np.ones(1, bool)))
    assert jumps.starts == [DemoStart(0, 0)]
    assert jumps.forced_actions().tolist() == [-1]


@given(handover=st.integers(0, 20_000), path=st.integers(0, 3))
def test_start_is_decoded_and_leaves_steps_for_the_stack(handover: int, path: int) -> None:
    start = DemoStart(path, handover)
    assert decode_start(start.encode(4), 4) == start
    shown = handover - start.saved_step
    assert start.saved_step % SAVE_PERIOD == 0
    assert min(handover, STACK_STEPS) <= shown < SAVE_PERIOD + STACK_STEPS


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
    jumps = JumpStarts([demo], is_jumping, 3, np.random.default_rng(0), is_limited=True)

    def highest_handover() -> int:
        jumps.add_step(make_step(2001, truncated=is_jumping))
        jumps.add_step(make_step(2001, first=is_jumping))
        return max(start.handover for start in jumps.starts)

    assert highest_handover() == 10 + 3
    reward = np.where(is_jumping, 100.0, 1.0)  # rewards of jumping lanes do not count
    jumps.add_step(make_step(2001, reward=reward))
    assert highest_handover() == 20 + 3
    assert jumps.collect_metrics()["jump_start_last_step"] == 20 + 3
    jumps.add_step(make_step(2001, reward=reward, terminal=~is_jumping))
    jumps.add_step(make_step(2001, first=~is_jumping))
    assert highest_handover() == 30 + 3
    jumps.add_step(make_step(2001, reward=np.where(is_jumping, 0.0, 50.0)))
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


@contextmanager
def open_group(config: Config, episodes: list[Episode]) -> Iterator[JumpStartGroup]:
    """A group with the lanes of a configuration, acting at random."""
    settings = config.actor
    others = int((~jump_start_lanes(LANES, settings.jump_start_share)).sum())
    with closing(make_envs(config.env, config.environment, others, 3, 1)) as envs:
        weights = MasterWeights(make_network_builder(config.network)(envs.spec), torch.float32)
        actor = Actor(weights, envs.spec, config, range(LANES))
        limits = build_limits(config, range(LANES), episodes)
        group = build_jump_start_group(config, envs, actor, limits, episodes)
        with closing(group.envs):
            yield group


def unplayable_episodes(steps: int) -> list[Episode]:
    """A game for each phase that no agent can play: an action per frame, and RAM writes.

    Byte 14 of Pong's RAM is the score of the player, so some writes give a reward.
    """
    rng = np.random.default_rng(0)
    episodes = []
    for phase in range(4):
        frames = rng.integers(0, 18, phase + 4 * steps).astype(np.uint8)
        written = np.sort(rng.integers(0, len(frames), steps))
        writes = np.stack([written, np.full(steps, 14), rng.integers(0, 9, steps)], 1)
        log = InputLog(frames, writes.astype(np.int32), phase=phase)
        episodes.append(episode_from_log(log, "ALE/Pong-v5"))
    assert all(episode.rewards.any() for episode in episodes)
    return episodes


@pytest.mark.parametrize("make_episodes", [phase_episodes, unplayable_episodes])
def test_jumping_lanes_show_the_demonstration_and_others_do_not(
    make_episodes: Callable[[int], list[Episode]],
) -> None:
    """Observations, rewards and actions are the demonstration's until the handover.

    After the handover the episode has `LENGTH` steps.
    """
    pytest.importorskip("ale_py")
    config, episodes = jump_config(), make_episodes(60)
    paths, compared = set(), 0
    with open_group(config, episodes) as group:
        jumps = group.jumps
        for _ in range(150):
            forced, starts = jumps.forced_actions(), [*jumps.starts]
            elapsed, shown_steps = jumps.elapsed.copy(), jumps.shown_steps.copy()
            group.start_step()
            played = np.asarray(group.collect_chunk().action)[0]
            step = group.last_step
            assert (played == forced)[forced >= 0].all()
            for i in np.flatnonzero(forced >= 0):
                demo = jumps.demos[starts[i].path]
                at = starts[i].saved_step + int(elapsed[i])
                planes = demo.planes[max(0, at - min(2, elapsed[i])) : at + 2, 0]
                assert np.array_equal(step.observation[i, -len(planes) :], planes)
                assert step.reward[i] == demo.rewards[at]
                paths.add(starts[i].path)
                compared += 1
            due = jumps.is_jumping & (elapsed + 1 == shown_steps + LENGTH)
            assert np.array_equal(step.truncated, due)
        assert group.is_counted.tolist() == [True, False, True, False]
        assert "jump_start_gain" in group.collect_metrics()
    assert compared > 100
    assert paths == {0, 1, 2, 3}


@pytest.mark.parametrize("handover", [0, 1, 5, 40])
@pytest.mark.parametrize("phase", range(4))
def test_agent_plays_on_from_the_handover(phase: int, handover: int) -> None:
    """The same game as an emulator that plays the log up to the handover, then the actions.

    With a phase the first step is shorter. An agent that takes over there plays the short step.
    """
    pytest.importorskip("ale_py")
    episode = unplayable_episodes(60)[phase]
    assert episode.input_log is not None
    path = make_demo_path(episode.input_log, "ALE/Pong-v5", 4)
    env = DemoStartEnv([SavedStates(path)], EnvConfig(), ends_on_life_loss=False)
    start, actions = DemoStart(0, handover), np.random.default_rng(1).integers(0, 18, 30).tolist()
    env.reset(options={"start": start})
    for _ in range(start.saved_step, start.handover):
        env.step(0)
    emulator = Emulator("ALE/Pong-v5", phase=phase)
    for recorded in path.steps[:handover]:
        recorded.play(emulator)
    for action in actions:
        plane, reward, *_ = env.step(action)
        expected_plane, expected_reward, _ = emulator.step(action)
        assert np.array_equal(plane, expected_plane[0])
        assert reward == expected_reward


def test_recorded_steps_by_hand() -> None:
    """Steps of 2, 4, 4 and 1 frames; a RAM write belongs to the step of its frame."""
    frames = np.arange(11, dtype=np.uint8)
    writes = np.array([[0, 10, 1], [2, 11, 2], [5, 12, 3], [5, 13, 4], [10, 14, 5]], np.int32)
    path = make_demo_path(InputLog(frames, writes, phase=2), "ALE/Pong-v5", 4)
    assert path.phase == 2
    assert path.steps == (
        RecordedStep(bytes([0, 1]), ((0, 10, 1),)),
        RecordedStep(bytes([2, 3, 4, 5]), ((0, 11, 2), (3, 12, 3), (3, 13, 4))),
        RecordedStep(bytes([6, 7, 8, 9])),
        RecordedStep(bytes([10]), ((0, 14, 5),)),
    )


def test_games_that_do_not_replay_are_left_out() -> None:
    demo = make_demo(np.zeros(2, np.int64), np.zeros(2))
    recorded = replace_fields(demo, input_log=InputLog(np.zeros(8, np.uint8)))
    audit = Audit(False, 1.0, 2.0, 1, 0, "another score")
    unverified = replace_fields(recorded, audit=audit)
    verified = replace_fields(recorded, audit=replace_fields(audit, verified=True))
    recovery = replace_fields(recorded, first_imitated_step=1)
    perturbed = replace_fields(recorded, random_steps=(1,))
    found = find_recorded_games([demo, recorded, unverified, verified, recovery, perturbed])
    assert [id(episode) for episode in found] == [id(recorded), id(verified)]
    with pytest.raises(DemonstrationError, match=r"set actor\.jump_start_share 0"):
        find_recorded_games([demo, unverified, recovery])


def test_metrics_are_means_over_the_groups_that_have_them() -> None:
    """At first, not every group has ended an episode."""
    groups: list[Any] = [
        SimpleNamespace(collect_metrics=lambda row=row: row)
        for row in ({"last": 3.0}, {"last": 5.0, "gain": 7.0}, {})
    ]
    pool: Any = SimpleNamespace(groups=groups)
    assert ActorPool.collect_metrics(pool) == {"last": 4.0, "gain": 7.0}


def test_lost_lives_of_the_demonstration_do_not_end_an_episode() -> None:
    """Random games of Breakout lose a life every 10 to 50 steps."""
    pytest.importorskip("ale_py")
    config = jump_config(
        env="ALE/Breakout-v5",
        actor__jump_start_share=0.75,
        actor__jump_start_length=100,
        actor__life_loss="reset",
        actor__epsilon_schedule="constant",
        actor__epsilon_end=1.0,
    )
    episodes = phase_episodes(120, config.env)
    shown_losses = agent_losses = 0
    with open_group(config, episodes) as group:
        jumps = group.jumps
        losses = [life_losses(config.env, demo) for demo in jumps.demos]
        for _ in range(400):
            is_shown, starts = ~jumps.is_agent_acting, [*jumps.starts]
            elapsed = jumps.elapsed.copy()
            group.start_step()
            group.collect_chunk()
            step = group.last_step
            assert not (step.terminal & is_shown).any()
            agent_losses += int((step.terminal & jumps.is_jumping).sum())
            for i in np.flatnonzero(is_shown):
                at = starts[i].saved_step + int(elapsed[i])
                shown_losses += at in losses[starts[i].path]
    assert shown_losses > 2
    assert agent_losses > 2


def life_losses(env: str, demo: Episode) -> set[int]:
    """The steps of a demonstration that lose a life."""
    assert demo.input_log is not None
    path = make_demo_path(demo.input_log, env, 4)
    emulator = Emulator(env, phase=path.phase)
    lives = [emulator.lives]
    for recorded in path.steps:
        recorded.play(emulator)
        lives.append(emulator.lives)
    return set(np.flatnonzero(np.diff(lives) < 0).tolist())


def test_run_with_jump_starts_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
        replay__expert_noop_starts=True,
        learner__agent_items=6,
        learner__expert_items=2,
    )
    train(config)
    assert "no-op starts with a demonstration: 31 of 31" in capsys.readouterr().out
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
