"""A trained agent: a network, its environment's Spec and the settings of its run."""

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
    """Chooses actions for observations of the form that `spec` describes."""

    def __init__(self, network: nn.Module, spec: Spec, config: Config, step: int = 0) -> None:
        self.network, self.spec, self.config = network.eval(), spec, config
        self.step = step  # agent steps of its training
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
        """Load an agent from a checkpoint, or from the best, else the newest, of a run folder.

        `network` is the builder given to `train`, if any. An environment or a wrapper that the
        checkpoint names is refused unless it is on the list in `lookfurther.envs.trust` or its
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
        """f(x, a) [m, A], in the transformed space, of observations [m, ...]."""
        inputs = torch.from_numpy(observations).to(self.device)
        return q_values(self.network, inputs).cpu().numpy()

    def act(self, observations: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
        """Actions [m] for observations [m, ...], or one action for a single observation."""
        observations = np.asarray(observations, dtype=self.spec.dtype)
        shape = self.spec.observation_shape
        if observations.shape == shape:
            return self.act(observations[None], epsilon)[0]
        if observations.shape[1:] != shape:
            raise ValueError(
                f"observations must have shape (m, {', '.join(map(str, shape))}),"
                f" not {observations.shape}"
            )
        return select_actions(self.network, observations, epsilon, self.generator)


def read_agent(
    path: str | Path, network: NetworkBuilder | None = None, device: str | torch.device = "cpu"
) -> Agent:
    """`Agent.load` without the check of modules, for callers that never build the environment."""
    saved = find_checkpoint(Path(path), ("weights",))
    config = checkpoint_metadata.get_config(saved)
    spec = checkpoint_metadata.get_network_spec(saved)
    weights = saved.files["weights"]
    try:
        build = network or make_network_builder(config.network)
        if network is None:
            _check_weight_shapes(build, spec, weights)
        module = build(spec)
        load_network_weights(module, weights)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    step = checkpoint_metadata.get_count(saved, "step")
    return Agent(module.to(device), spec, config, step)


def _check_weight_shapes(build: NetworkBuilder, spec: Spec, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of other shapes before the network is allocated.

    A forged spec or configuration could otherwise need more memory than the machine has.
    """
    try:
        with torch.device("meta"):
            expected = build(spec).state_dict()
    except RuntimeError as error:
        raise CheckpointError(f"its network cannot be built: {error}") from None
    for name in expected.keys() | weights.keys():
        stored, own = weights.get(name), expected.get(name)
        if stored is None or own is None or stored.shape != own.shape:
            raise CheckpointError(f"the weights do not fit this network: {name}")
