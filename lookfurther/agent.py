"""A trained agent: weights and what they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lookfurther.config import Config
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.networks import (
    NetworkBuilder,
    load_network_weights,
    make_network_builder,
    q_values,
)
from lookfurther.rollout import select_actions
from lookfurther.training import checkpoint_metadata
from lookfurther.training.saved_weights import find_checkpoint
from lookfurther.types import Spec


class Agent:
    """Acts on observations as `spec` describes them."""

    def __init__(self, network: nn.Module, spec: Spec, config: Config, step: int = 0) -> None:
        self.network, self.spec, self.config = network.eval(), spec, config
        self.step = step  # agent steps it was trained for
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(config.run.seed)

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: NetworkBuilder | None = None,
        device: str | torch.device = "cpu",
        modules: Sequence[str] = (),
    ) -> Agent:
        """From a run folder (its best checkpoint, else its newest) or from one checkpoint.

        `network` is the builder given to `train`, where one was. An environment or a wrapper that
        the checkpoint names is refused unless it is on the list in `lookfurther.envs.trust` or its
        module is one of `modules`, which are imported.
        """
        import_modules(modules)
        agent = read_agent(path, network, device)
        reason = find_untrusted(agent.config.env, agent.config.environment.wrappers, modules)
        if reason or (reason := find_untrusted(agent.spec.env, (), modules)):
            raise CheckpointError(f"{path} was made with {reason}")
        return agent

    @torch.no_grad()
    def q_values(self, observations: np.ndarray) -> np.ndarray:
        """f(x, a) [m, A], in the transformed space, of observations [m, *spec.observation]."""
        x = torch.from_numpy(observations).to(self.device)
        return q_values(self.network, x).cpu().numpy()

    def act(self, observations: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [m] for observations [m, *spec.observation], or one action for a single one."""
        observations = np.asarray(observations, dtype=self.spec.dtype)
        if observations.shape == self.spec.observation_shape:
            return self.act(observations[None], epsilon)[0]
        if observations.shape[1:] != self.spec.observation_shape:
            raise ValueError(
                "observations must have shape (m,"
                f" {', '.join(map(str, self.spec.observation_shape))}),"
                f" not {observations.shape}"
            )
        return select_actions(self.network, observations, epsilon, self.generator)


def read_agent(
    path: str | Path, network: NetworkBuilder | None = None, device: str | torch.device = "cpu"
) -> Agent:
    """`Agent.load` for a caller that never builds the agent's environment."""
    saved = find_checkpoint(Path(path), ("weights",))
    config, spec, step = (
        checkpoint_metadata.get_config(saved),
        checkpoint_metadata.get_spec(saved),
        checkpoint_metadata.get_count(saved, "step"),
    )
    try:
        if network is None:
            _check_weight_shapes(make_network_builder(config.network), spec, saved.files["weights"])
        module = (network or make_network_builder(config.network))(spec)
        load_network_weights(module, saved.files["weights"])
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return Agent(module.to(device), spec, config, step)


def _check_weight_shapes(build: NetworkBuilder, spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of other shapes before memory is taken for the network.

    A forged spec or configuration could otherwise ask for more memory than there is.
    """
    try:
        with torch.device("meta"):
            wanted = build(spec).state_dict()
    except RuntimeError as error:
        raise CheckpointError(f"its network cannot be built: {error}") from None
    for name in wanted.keys() | weights.keys():
        there, here = (tensors.get(name) for tensors in (weights, wanted))
        if there is None or here is None or there.shape != here.shape:
            raise CheckpointError(f"the weights do not fit this network: {name}")
