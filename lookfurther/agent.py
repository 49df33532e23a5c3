"""A trained agent: a network, its environment's Spec and the settings of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lookfurther.config import Config
from lookfurther.envs.trust import find_untrusted, import_modules
from lookfurther.errors import CheckpointError, ConfigError
from lookfurther.networks.dueling import (
    NetworkBuilder,
    count_parameters,
    load_network_weights,
    make_network_builder,
    q_values,
)
from lookfurther.networks.user_network import build_network
from lookfurther.rollout import select_actions
from lookfurther.training.checkpoints import checkpoint_metadata
from lookfurther.training.checkpoints.best_checkpoint import EVALUATION_EPSILON
from lookfurther.training.checkpoints.saved_weights import find_checkpoint
from lookfurther.training.hardware import resolve_device
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

    def __repr__(self) -> str:
        return (
            f"Agent({self.config.env}, {self.config.preset}, step {self.step:,},"
            f" {count_parameters(self.network):,} parameters on {self.device})"
        )

    @torch.no_grad()
    def q_values(self, observations: Any) -> np.ndarray:
        """f(x, a) [m, A], in the transformed space, of observations [m, ...], or [A] of one."""
        batch, is_single = self._to_batch(observations)
        q = q_values(self.network, torch.from_numpy(batch).to(self.device)).cpu().numpy()
        return q[0] if is_single else q

    def act(self, observations: Any, epsilon: float = 0.0) -> np.ndarray:
        """Actions [m] for observations [m, ...], or one action for a single observation."""
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon must be 0 ... 1, not {epsilon}")
        batch, is_single = self._to_batch(observations)
        actions = select_actions(self.network, batch, epsilon, self.generator)
        return actions[0] if is_single else actions

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """The action or actions, and `state`, with the signature of stable-baselines3.

        The greedy action if `deterministic`; otherwise a random one with the probability of
        evaluations, 0.001. The network is not recurrent: `state` and `episode_start` have no
        effect.
        """
        return self.act(observation, 0.0 if deterministic else EVALUATION_EPSILON), state

    def _to_batch(self, observations: Any) -> tuple[np.ndarray, bool]:
        """Observations as a batch [m, ...], and whether it was a single observation.

        An image may also have the layout of its environment, if frames are not stacked.
        """
        array, shape = np.asarray(observations), self.spec.observation_shape
        wanted = "integers" if self.spec.dtype == "uint8" else "numbers"
        if array.dtype.kind not in ("iub" if self.spec.dtype == "uint8" else "fiub"):
            raise ValueError(f"observations must be {wanted}, not of type {array.dtype}")
        array = array.astype(self.spec.dtype, copy=False)
        if shape not in (array.shape, array.shape[1:]) and self._is_env_image(array.shape):
            array = np.moveaxis(array, -1, -3)
        if array.shape == shape:
            return np.ascontiguousarray(array[None]), True
        if array.shape[1:] != shape:
            raise ValueError(
                f"observations must have shape {shape} or (m, {', '.join(map(str, shape))}),"
                f" not {np.shape(observations)}"
            )
        return np.ascontiguousarray(array), False

    def _is_env_image(self, shape: tuple[int, ...]) -> bool:
        """Whether images of this shape are those of the environment, channels last."""
        channels, *image = self.spec.observation_shape
        is_hwc = self.config.environment.layout == "hwc" and self.spec.stack == 1
        return is_hwc and len(image) == 2 and shape[-3:] == (*image, channels)


def read_agent(
    path: str | Path, network: NetworkBuilder | None = None, device: str | torch.device = "cpu"
) -> Agent:
    """`Agent.load` without the check of modules, for callers that never build the environment."""
    device = resolve_device(str(device), setting="device")
    saved = find_checkpoint(Path(path), ("weights",))
    config = checkpoint_metadata.get_config(saved)
    spec = checkpoint_metadata.get_network_spec(saved)
    weights = saved.files["weights"]
    try:
        build = network or make_network_builder(config.network)
        if network is None:
            _check_weight_shapes(build, spec, weights)
        module = build_network(build, spec)
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
