"""The replay against a brute-force history of real emulators."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lookfurther import config, validation
from lookfurther.actor import Actor
from lookfurther.errors import ConfigError
from lookfurther.master_weights import MasterWeights
from lookfurther.presets import preset
from lookfurther.replay.prioritized import PrioritizedReplay
from lookfurther.types import FIRST, TERMINAL, TRUNCATED, Chunk, Spec, Step
from lookfurther.validation import validate

LANES = 3
VECTOR = Spec("toy", (2,), 3, "float32", 4, 1.0)


class MeanNetwork(nn.Module):
    """Cheap values that differ between observations."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, actions) / 10)

    def forward(self, x: Tensor) -> Tensor:
        brightness = x.float().flatten(1).mean(1, keepdim=True)
        return brightness * self.weight


class History:
    """Every step of every lane, as returned by the environments, without a limit."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.actions: list[np.ndarray] = []

    def item_at(self, lane: int, t: int, n: int, gamma: float) -> tuple:
        """(x, a, r, discount, x') of the n-step transition at time t, by a plain loop."""
        r, steps, after = 0.0, 0, self.steps[t]
        while steps < n:
            r += gamma**steps * float(self.steps[t + steps + 1].reward[lane])
            steps += 1
            after = self.steps[t + steps]
            if after.terminal[lane] or after.truncated[lane]:
                break
        discount = 0.0 if after.terminal[lane] else gamma**steps
        x, x_next = self.steps[t].observation[lane], after.observation[lane]
        return x, self.actions[t][lane], np.float32(r), np.float32(discount), x_next


def play_turns(envs, actor: Actor, replay: PrioritizedReplay, history: History, turns: int) -> None:
    step = history.steps[-1] if history.steps else envs.reset()
    if not history.steps:
        history.steps.append(step)
        actor.load_step(step)
    for _ in range(turns):
        actor.select_actions()
        actions = actor.open_slot["action"].numpy().copy()
        envs.send(actions)
        step = envs.recv()
        history.actions.append(actions)
        history.steps.append(step)
        actor.load_step(step)
        actor.close_slot()
        replay.add(actor.closed_chunk())


def expected_samplable(history: History, replay: PrioritizedReplay) -> set[tuple[int, int, int]]:
    """(lane, t, n) of every item that must be samplable by definition."""
    written, stack = len(history.actions), replay.spec.stack
    oldest = (
        max(0, written - replay.slots_per_lane + stack - 1)
        if written > replay.slots_per_lane
        else 0
    )
    expected = set()
    for t in range(oldest, written - replay.max_horizon):
        ended = history.steps[t].terminal | history.steps[t].truncated
        expected |= {(i, t, n) for i in np.flatnonzero(~ended) for n in replay.config.horizons}
    return expected


def check_every_item(history: History, replay: PrioritizedReplay) -> int:
    """Assert that every item equals the history's and none is missing; returns their number."""
    written = len(history.actions)
    result = set()
    for batch in replay.iter_items(64):
        for i, item in enumerate(batch.item.tolist()):
            slot, h = divmod(item, len(replay.config.horizons))
            lane, position = divmod(slot, replay.slots_per_lane)
            t = (written - 1) - (written - 1 - position) % replay.slots_per_lane
            n = replay.config.horizons[h]
            x, a, r, discount, x_next = history.item_at(lane, t, n, replay.gamma)
            assert np.array_equal(batch.x[i], x), (lane, t, n)
            assert np.array_equal(batch.x_next[i], x_next), (lane, t, n)
            assert (batch.a[i], batch.r[i], batch.discount[i]) == (a, r, discount), (lane, t, n)
            result.add((lane, t, n))
    assert result == expected_samplable(history, replay)
    return len(result)


@pytest.mark.parametrize(
    ("env", "cap"), [("ALE/Breakout-v5", 50_000), ("ALE/Pong-v5", 37), ("ALE/Skiing-v5", 90)]
)
def test_items_match_history_of_real_emulators(env: str, cap: int):
    pytest.importorskip("ale_py")
    from lookfurther.envs import make_envs

    settings = preset(
        "no-demos",
        env=env,
        actor__lanes=LANES,
        environment__max_episode_length=cap,
        environment__noop_max=3,
    )
    envs = make_envs(env, settings.environment, LANES, 0, 1)
    weights = MasterWeights(MeanNetwork(envs.spec.actions), torch.float32)
    actor = Actor(weights, envs.spec, settings, range(settings.actor.lanes))
    actor.epsilon.fill_(1.0)
    replay = PrioritizedReplay(
        envs.spec, LANES, LANES * 53, settings.replay, settings.learner.gamma
    )
    history, compared = History(), 0
    for _ in range(12):  # 12 times 41 slots in rings of 53: nine wraps
        play_turns(envs, actor, replay, history, 41)
        compared += check_every_item(history, replay)
    ends = sum(int(s.terminal.sum() + s.truncated.sum()) for s in history.steps)
    envs.close()
    assert ends >= 3
    assert compared > 1000


def toy_step(rng: np.random.Generator, before: Step | None, lanes: int, stack: int) -> Step:
    """Planes of one random number; an episode ends with probability 1/8."""
    first = np.ones(lanes, bool) if before is None else before.terminal | before.truncated
    kind = np.where(first, 0, rng.choice(16, lanes))
    stacks = np.zeros((lanes, stack), np.float32)
    if before is not None:
        stacks[:, :-1] = np.where(first[:, None], 0, before.observation[:, 1:])
    stacks[:, -1] = rng.random(lanes)
    reward = np.where(first, 0, rng.integers(-3, 4, lanes)).astype(np.float32)
    return Step(stacks, reward, kind == 1, kind == 2, first, np.zeros(lanes, bool))


def add_toy_step(rng: np.random.Generator, replay: PrioritizedReplay, history: History) -> None:
    """Add one step of every lane to the replay and to the history."""
    lanes, steps = replay.lanes, history.steps
    if not steps:
        steps.append(toy_step(rng, None, lanes, replay.spec.stack))
    now, t = steps[-1], len(history.actions)
    steps.append(toy_step(rng, now, lanes, replay.spec.stack))
    history.actions.append(rng.integers(4, size=lanes))
    due = steps[t - replay.max_horizon] if t >= replay.max_horizon else None
    alive = ~(due.terminal | due.truncated) if due else np.zeros(lanes, bool)
    replay.add(
        Chunk(
            plane=now.observation[None, :, -1:],
            action=history.actions[-1][None],
            reward=steps[-1].reward[None],
            mark=(now.first * FIRST + now.terminal * TERMINAL + now.truncated * TRUNCATED)[None],
            priority=np.repeat(alive[None, :, None], len(replay.horizons), -1).astype(np.float32),
            invalidate_newest=np.zeros(lanes, np.int64),
        )
    )


@given(
    stack=st.integers(1, 40),
    horizons=st.sets(st.integers(1, 12), min_size=1, max_size=3),
    lanes=st.integers(1, 3),
    seed=st.integers(0, 9),
)
@example(stack=17, horizons={1, 10}, lanes=2, seed=0)
@example(stack=16, horizons={10}, lanes=1, seed=0)
@hypothesis_settings(max_examples=15)
def test_smallest_replay_keeps_whole_stacks(
    stack: int, horizons: set[int], lanes: int, seed: int
) -> None:
    settings = preset(
        "no-demos",
        env="toy",
        environment__frame_stack=stack,
        actor__lanes=lanes,
        replay__horizons=tuple(horizons),
        replay__learning_starts=lanes * (max(horizons) + 2),
    )
    capacity = validation.min_capacity(settings)
    validate(config.replace(settings, replay__capacity=capacity))
    with pytest.raises(ConfigError, match="capacity"):
        validate(config.replace(settings, replay__capacity=capacity - 1))
    spec = Spec("toy", (1,), stack, "float32", 4, 1.0)
    subject = PrioritizedReplay(spec, lanes, capacity, settings.replay, 0.9)
    rng, history = np.random.default_rng(seed), History()
    for _ in range(subject.slots_per_lane):
        add_toy_step(rng, subject, history)
    for _ in range(subject.slots_per_lane):
        add_toy_step(rng, subject, history)
        assert check_every_item(history, subject) >= lanes
