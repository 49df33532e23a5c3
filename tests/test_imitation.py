"""Which steps of a demonstration the imitation loss imitates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookfurther import preset
from lookfurther.config import EnvConfig
from lookfurther.demos.episode import Episode, InputLog
from lookfurther.demos.imitation import unambiguous_steps
from lookfurther.training.expert_replay import build_expert_replay
from lookfurther.types import BEST, Spec

SPEC = Spec("x", (1, 1, 1), 2, "uint8", 3, 255.0)
# (plane, action) of each step: few of each, so that stacks recur.
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


def make_episode(shown: list[tuple[int, int]]) -> Episode:
    planes = np.array([plane for plane, _ in shown] + [9], np.uint8).reshape(-1, 1, 1, 1)
    actions = np.array([action for _, action in shown], np.int64)
    return Episode(planes, actions, np.zeros(len(shown), np.float32), terminal=True)


def stack_at(episode: Episode, t: int, frame_stack: int) -> bytes:
    return episode.planes[max(0, t + 1 - frame_stack) : t + 1].tobytes()


@given(steps, st.integers(1, 4))
def test_unambiguous_steps_show_one_action_per_observation(
    shown: list[tuple[int, int]], frame_stack: int
) -> None:
    """And that is the action shown last, so an agent that waits leaves in the end."""
    episode = make_episode(shown)
    imitated = unambiguous_steps(episode, frame_stack, EnvConfig())
    for t in range(len(episode)):
        same = [
            u
            for u in range(len(episode))
            if stack_at(episode, u, frame_stack) == stack_at(episode, t, frame_stack)
        ]
        assert imitated[t] == (episode.actions[t] == episode.actions[same[-1]])
        assert imitated[same[-1]]


def test_waiting_before_another_action_is_not_imitated() -> None:
    """Observation 5 is shown with actions 0, 0 and 2; action 0 is imitated elsewhere."""
    episode = make_episode([(5, 0), (5, 0), (5, 0), (5, 2), (6, 0), (7, 0)])
    assert unambiguous_steps(episode, 1, EnvConfig()).tolist() == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    # With two planes, step 0 has no plane before it: an observation of its own.
    assert unambiguous_steps(episode, 2, EnvConfig()).tolist() == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 3))
def test_steps_with_several_actions_are_not_imitated(frames: list[int], phase: int) -> None:
    """A first step of `phase` frames, then steps of four; a last step may be shorter."""
    begins = [0, *range(phase or 4, len(frames), 4)]
    ends = [*begins[1:], len(frames)]
    held = [set(frames[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    # Every observation is another one.
    episode = make_episode([(t, min(actions)) for t, actions in enumerate(held)])
    log = InputLog(np.array(frames, np.uint8), phase=phase)
    imitated = unambiguous_steps(replace(episode, input_log=log), 1, EnvConfig())
    assert imitated.tolist() == [len(actions) == 1 for actions in held]


def test_vector_demonstrations_have_no_clock() -> None:
    episode = Episode(np.zeros((3, 2), np.float32), np.array([0, 1]), np.zeros(2), terminal=True)
    config = preset(
        "apex-dqfd", learner__imitated_steps="unambiguous", environment__clock_period=32
    )
    spec = Spec("CartPole-v1", (2,), 1, "float32", 2, 1.0)
    replay = build_expert_replay(config, spec, [episode], torch.device("cpu"), 0)
    assert ((replay.marks[:2] & BEST) != 0).tolist() == [False, True]


def test_setting_clears_the_mark_of_the_imitation_loss() -> None:
    """Of the best episode's steps and of no other mark."""
    waiting = make_episode([(5, 0), (5, 0), (5, 0), (5, 2), (6, 1), (7, 1)])
    worse = make_episode([(1, 0), (1, 1)])
    worse.rewards[:] = -1
    marks = {}
    for name in ("all", "unambiguous"):
        config = preset("apex-dqfd", learner__imitated_steps=name)
        replay = build_expert_replay(config, SPEC, [worse, waiting], torch.device("cpu"), 0)
        marks[name] = replay.marks.clone()
    cleared = (marks["all"] ^ marks["unambiguous"]).nonzero().view(-1)
    assert cleared.tolist() == [len(worse) + 1 + t for t in (1, 2)]
    assert (marks["all"][cleared] & BEST).all()
    assert (
        (marks["all"] ^ marks["unambiguous"]) & ~torch.tensor(BEST, dtype=torch.uint8) == 0
    ).all()
