"""A trained agent: weights and what they see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from lookfurther.config import Config, from_dict
from lookfurther.errors import CheckpointError
from lookfurther.networks import Builder, ask, builder, fill
from lookfurther.play import choose
from lookfurther.runtime import checkpoint
from lookfurther.types import Spec

PARTS = ("weights",)  # of a checkpoint


class Agent:
    """Acts on observations as `spec` describes them."""

    def __init__(self, network: nn.Module, spec: Spec, config: Config, step: int = 0) -> None:
        self.network, self.spec, self.config = network.eval(), spec, config
        self.step = step  # agent steps it was trained for
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(config.run.seed)

    @classmethod
    def load(
        cls, path: str | Path, network: Builder | None = None, device: str | torch.device = "cpu"
    ) -> Agent:
        """From a run folder (its best checkpoint, else its newest) or from one checkpoint.

        `network` is the builder given to `train`, where one was.
        """
        saved = _find(Path(path))
        config = from_dict(saved.facts["config"])
        spec = Spec.from_dict(saved.facts["spec"])
        module = (network or builder(config.network))(spec)
        try:
            fill(module, saved.files["weights"])
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        return cls(module.to(device), spec, config, saved.facts["step"])

    @torch.no_grad()
    def values(self, observations: np.ndarray) -> np.ndarray:
        """f(x, a) [m, A], in the transformed space, of observations [m, *spec.observation]."""
        x = torch.from_numpy(observations).to(self.device)
        return ask(self.network, x).cpu().numpy()

    def act(self, observations: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [m] for observations [m, *spec.observation], or one action for a single one."""
        observations = np.asarray(observations, dtype=self.spec.dtype)
        if observations.shape == self.spec.observation:
            return self.act(observations[None], epsilon)[0]
        if observations.shape[1:] != self.spec.observation:
            raise ValueError(
                f"observations must have shape (m, {', '.join(map(str, self.spec.observation))}),"
                f" not {observations.shape}"
            )
        return choose(self.network, observations, epsilon, self.generator)


def _find(path: Path) -> checkpoint.Checkpoint:
    """The checkpoint a path stands for, without the replays that may lie in it."""
    if (path / checkpoint.MANIFEST).exists():
        return checkpoint.load(path, PARTS)
    saved, _ = checkpoint.best(path / "best", PARTS)
    if saved is None:
        saved, _ = checkpoint.newest(path / "checkpoints", PARTS)
    if saved is not None:
        return saved
    raise CheckpointError(f"{path} holds no checkpoint")
