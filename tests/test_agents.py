"""The trained agents of the repository: they load, are small, and their cards are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lookfurther import Agent

AGENTS = sorted((Path(__file__).parent.parent / "agents").iterdir())
MAX_BYTES = 16 * 2**20


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: folder.name)
def test_agent_loads_and_chooses_actions(folder: Path) -> None:
    agent = Agent.load(folder, device="cpu")
    shape = agent.spec.observation_shape
    values = agent.q_values(np.zeros((2, *shape), np.uint8))
    assert values.shape == (2, agent.spec.actions)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: folder.name)
def test_card_has_the_evaluated_scores(folder: Path) -> None:
    summary = json.loads((folder / "evaluation" / "noop" / "summary.json").read_text())
    card = (folder / "README.md").read_text()
    mean, best = f"{round(summary['mean']['value']):,}", f"{round(summary['best']):,}"
    assert re.search(
        rf"\| no-op starts \|.*\| {summary['episodes']} \| {mean} .*\| {best} \|", card
    )


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: folder.name)
def test_weights_are_small(folder: Path) -> None:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert max(sizes) <= MAX_BYTES
