"""The loss terms of one batch in DI-engine and in our objective, for benchmarks.di_engine."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from ding.rl_utils import dqfd_nstep_td_data, dqfd_nstep_td_error
from torch import nn

from benchmarks.di_engine_pipeline import piece_discounts
from lookfurther import Config
from lookfurther.objective import Objective
from lookfurther.types import Batch


def make_batch(generator: torch.Generator, config: Config) -> dict[str, torch.Tensor]:
    """Random values, rewards, ends and expert marks of 64 steps."""
    b, n = 64, config.replay.horizons[-1]
    values = {
        name: torch.randn(b, 2, generator=generator)
        for name in ("q", "q_1", "q_n", "target_1", "target_n")
    }
    return values | {
        "a": torch.randint(2, (b,), generator=generator),
        "rewards": torch.rand(n, b, generator=generator),
        "done_1": (torch.rand(b, generator=generator) < 0.1).float(),
        "done_n": (torch.rand(b, generator=generator) < 0.3).float(),
        "e": (torch.rand(b, generator=generator) < 0.5).float(),
        "w": torch.rand(b, generator=generator),
    }


def our_terms(data: dict[str, torch.Tensor], config: Config) -> dict[str, float]:
    """Means of the terms of our loss, and the loss, for the rows of a summed replay."""
    n, gamma = config.replay.horizons[-1], config.learner.gamma
    factors = gamma ** torch.arange(n, dtype=torch.float32)[:, None]
    returns = data["rewards"][0], (factors * data["rewards"]).sum(0)
    discounts = gamma * (1 - data["done_1"]), gamma**n * (1 - data["done_n"])
    rows = [2 * [data[name]] for name in ("a", "w")]
    a, w = (torch.cat(pair) for pair in rows)
    none = torch.full((len(a),), -torch.inf)
    e = torch.cat([data["e"], torch.zeros_like(data["e"])])  # the imitation loss counts once
    batch = Batch(
        none, a, torch.cat(returns), torch.cat(discounts), e, none, a, 2 * w, torch.arange(len(a))
    )
    q_both = torch.cat([data["q"], data["q"], data["q_1"], data["q_n"]])
    q_target = torch.cat([data["target_1"], data["target_n"]])
    objective = Objective(config.learner, nn.Identity(), nn.Identity())
    output = objective.compute_loss(q_both, q_target, batch)
    td_1, td_n = output.td.chunk(2)
    return {
        "one_step": float(td_1.mean()),
        "n_step": float(td_n.mean()),
        "margin": float(output.im.chunk(2)[0].mean()),
        "loss": float(output.loss),
        "priority": float(output.priority.chunk(2)[0].mean()),
    }


def peer_terms(data: dict[str, torch.Tensor], config: Config) -> dict[str, float]:
    """The same of DI-engine's `dqfd_nstep_td_error`."""
    step_data = dqfd_nstep_td_data(
        data["q"],
        data["target_n"],
        data["a"],
        data["q_n"].argmax(-1),
        data["rewards"],
        data["done_n"],
        data["done_1"],
        data["w"],
        data["target_1"],
        data["q_1"].argmax(-1),
        data["e"],
    )
    learner, n = config.learner, config.replay.horizons[-1]
    loss, priority, (n_step, one_step, margin) = dqfd_nstep_td_error(
        step_data, learner.gamma, 1.0, learner.im_weight, learner.margin, nstep=n
    )
    terms = {"one_step": one_step, "n_step": n_step, "margin": margin, "loss": loss}
    return {name: float(term) for name, term in terms.items()} | {
        "priority": float(priority.mean())
    }


def compare_equations(config: Config) -> dict[str, Any]:
    """The loss terms of both for one batch, and the discounts of pieces of episodes."""
    data = make_batch(torch.Generator().manual_seed(0), config)
    n, gamma = config.replay.horizons[-1], config.learner.gamma
    return {
        "lookfurther": our_terms(data, config),
        "DI-engine": peer_terms(data, config),
        "discounts_of_16_steps": piece_discounts(16, n, gamma),
        "exact_discounts_of_16_steps": [gamma ** min(n, 16 - t) for t in range(16)],
        "discounts_of_1_step": piece_discounts(1, n, gamma),
    }
