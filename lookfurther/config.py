"""Every setting, typed and checked; the defaults are the paper's (Table 6, docs/departures.md)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from lookfurther.errors import ConfigError
from lookfurther.settings.bounds import check_bounds
from lookfurther.settings.decoding import decode_dataclass
from lookfurther.settings.run_config import RunConfig
from lookfurther.settings.setting_names import describe_unknown, flatten_tree

ClockUnit = Literal["steps", "frames"]


@dataclass(frozen=True)
class EnvConfig:
    """How environments are adapted.

    The settings from `action_repeat` to `episode_length_unit` are for Atari games only.
    """

    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers, innermost first, as module:Class"""
    layout: Literal["hwc", "chw"] = "hwc"
    """axis order of the environment's images"""
    frame_stack: int = 0
    """planes in an observation; 0: 4 for Atari, 1 elsewhere"""
    reward_transform: Literal["raw", "clip", "signed-log"] = "raw"
    """applied to rewards before learning"""
    action_repeat: int = 4
    """emulator frames that an action lasts"""
    full_actions: bool = True
    """all 18 Atari actions instead of the game's own"""
    noop_max: int = 30
    """maximum number of no-op frames at an episode's start"""
    sticky_prob: float = 0.0
    """probability that the emulator repeats the last action"""
    clock_period: int = 0
    """steps after which a clock in the lowest rows of the picture repeats; 0: no clock"""
    clock_unit: ClockUnit = "steps"
    """what the clock counts; frames: games after different numbers of no-op frames differ, too"""
    max_episode_length: int = 50_000
    """longest training episode, in `episode_length_unit`"""
    episode_length_unit: Literal["steps", "frames"] = "steps"
    """agent steps or emulator frames"""
    on_fault: Literal["stop", "drop"] = "stop"
    """if a value is not finite or not in its space: stop, or drop the episode and count it"""
    max_failures: int = 3
    """consecutive failures after which an environment or a worker process is not restarted"""
    processes: int = 0
    """worker processes that step Gymnasium environments; 0: the training process"""
    worker_timeout: float = 120.0
    """seconds for a step or reset before its worker process is replaced; 0: no limit"""
    threads: int = 0
    """threads that step Atari environments; 0: chosen from the cores"""


@dataclass(frozen=True)
class ActorConfig:
    """The m actors of Sec. 3.4."""

    lanes: int = 128
    """parallel environments, m in the paper"""
    epsilon_schedule: Literal["paper", "apex", "constant", "linear"] = "paper"
    """lanes' epsilons: this paper's 0.001 ... 0.1, Ape-X's 0.4 ... 0.0007, or one for all lanes"""
    epsilon_end: float = 0.01
    """constant epsilon, or the one to which a linear epsilon falls from 1"""
    epsilon_steps: int = 1_000_000
    """agent steps after `replay.learning_starts` over which a linear epsilon falls"""
    exploration: Literal["uniform", "persistent"] = "uniform"
    """duration of a random action: one step, or n steps with probability proportional to n^-2"""
    weight_sync_period: int = 10
    """steps of a lane between copies of the learner's weights"""
    jump_start_share: float = 0.0
    """share of Atari lanes that begin each episode at a random step of a demonstration"""
    jump_start_length: int = 600
    """steps of the agent from there on, then the episode is truncated"""
    jump_start_range: Literal["all", "reached"] = "all"
    """steps from which that one is drawn: all, or those near what other lanes reach"""
    max_demo_lengths: float = 0.0
    """truncate episodes at this many times the length of the longest demonstration; 0: never"""
    max_reward_gap: float = 0.0
    """truncate episodes without reward after this many times the demonstrations' longest gap"""
    life_loss: Literal["continue", "terminal", "reset"] = "continue"
    """lost life in Atari training: no event, a terminal step, or that and a new game"""
    stagger_steps: int = 0
    """truncate each lane's first episode at a random step, at most this one; 0: do not"""


@dataclass(frozen=True)
class ReplayConfig:
    """Both replays: the agent's and the expert's."""

    capacity: int = 2_000_000
    """agent steps stored, each frame once"""
    horizons: tuple[int, ...] = (1, 10)
    """lengths of the transitions, in steps"""
    expert_horizons: tuple[int, ...] = ()
    """lengths of the expert's transitions; empty: as `horizons`"""
    expert_noop_starts: bool = False
    """also store the first steps of Atari demonstrations as they look after every no-op start"""
    horizon_losses: Literal["separate", "summed"] = "separate"
    """an item for each length, with its own priority, or one item for the sum of all losses"""
    alpha: float = 0.6
    """priority exponent"""
    beta: float = 0.4
    """importance exponent"""
    beta_schedule: Literal["constant", "linear"] = "constant"
    """importance exponent over the run: constant, or rising linearly to 1 at the end of the run"""
    priority_offset: float = 1e-6
    """added to every priority"""
    expert_priority_offset: float = 0.0
    """added to every expert priority; 0: `priority_offset`"""
    learning_starts: int = 50_000
    """agent steps before learning begins"""


@dataclass(frozen=True)
class NetworkConfig:
    """The action-value network."""

    name: Literal["auto", "dueling", "dueling-deeper", "small-conv", "mlp"] = "auto"
    """auto: dueling for Atari-sized images, small-conv for smaller ones, mlp for vectors"""
    convolutions: tuple[int, ...] = ()
    """channels of each convolution; empty: the network's own"""
    hidden: tuple[int, ...] = ()
    """widths of each stream's fully connected layers; empty: the network's own"""
    head: Literal["values", "popart", "categorical"] = "values"
    """outputs: action values, values normalised by PopArt, or C51's value distributions"""
    atoms: int = 51
    """atoms of a value distribution"""
    v_min: float = -10.0
    """value of the lowest atom"""
    v_max: float = 10.0
    """value of the highest atom"""
    noisy_std: float = 0.0
    """sigma_0 of noisy layers, their initial noise; 0: no noisy layers"""
    dueling: bool = True
    """a value and an advantage stream; no: one stream, as in DQN"""
    torso_gradient_scale: float = 1.0
    """factor of the gradients from the streams to the convolutions"""
    initialization: Literal["fan-in", "glorot"] = "fan-in"
    """first weights: PyTorch's, within 1 / sqrt(fan_in), or Glorot's uniform ones, biases 0"""


@dataclass(frozen=True)
class LearnerConfig:
    """Algorithm 1 and Table 6."""

    agent_items: int = 192
    """agent transitions in a batch"""
    expert_items: int = 64
    """expert transitions in a batch"""
    demonstrations: Literal["fixed", "annealed", "priority", "spike"] = "fixed"
    """share of a batch: fixed, falling to 0 over the run, by priority, or in the agent replay"""
    learning_rate: float = 5e-5
    """the optimizer's learning rate"""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """learning rate over the run: constant, or falling linearly to 0 at `run.steps`"""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """adam, or DQN's centred RMSProp"""
    adam_eps: float = 0.01 / 256
    """the paper's Adam regularizer"""
    rmsprop_eps: float = 0.01 / 32**2
    """RMSProp's regularizer, added to the variance"""
    max_gradient_norm: float = 40.0
    """global norm to which gradients are clipped"""
    target_period: int = 2500
    """updates between copies to the target network"""
    weight_average: int = 0
    """act with averaged weights: time constant of the average in updates; 0: no average"""
    gamma: float = 0.999
    """discount factor of one agent step"""
    margin: float = math.sqrt(0.999)
    """lambda of the imitation loss"""
    margin_scale: float = 0.0
    """smallest lambda, relative to the value of the demonstrated action; 0: as in the paper"""
    td_loss: Literal["huber", "squared"] = "huber"
    """loss of a TD error: Huber, or half its square"""
    double_q: bool = True
    """the online network chooses the next action; no: the target network, as in DQN"""
    value_transform: Literal["h", "identity"] = "h"
    """Bellman operator: transformed, or the standard one"""
    value_transform_eps: float = 1e-2
    """epsilon in h"""
    tc_weight: float = 1.0
    """weight of the temporal consistency loss"""
    im_weight: float = 1.0
    """weight of the imitation loss"""
    popart_step: float = 1e-4
    """step of the moving moments of network.head popart"""
    constrained_td: bool = False
    """bootstrap from the online network; project out the gradient of the next state's value"""
    l2_weight: float = 0.0
    """weight of the sum of all squared weights and biases"""
    pretraining_updates: int = 0
    """updates on demonstrations alone before the first step"""
    value_floor: Literal["none", "return", "backup"] = "none"
    """lower bound of expert values: none, the return, or values backed up along the episode"""
    advantage_learning: float = 0.0
    """alpha of advantage learning: small action gaps grow by 1 / (1 - alpha); 0: off"""
    imitated_episodes: Literal["best", "all"] = "best"
    """expert episodes in the imitation loss: the best one, or all as in DQfD"""
    imitated_steps: Literal["all", "unambiguous"] = "all"
    """steps: all, or those of one action whose observation has no other action later"""
    priority_type: Literal["huber", "abs"] = "huber"
    """priority of an item: its Huber TD loss, or its absolute TD error"""
    priority_losses: Literal["td", "td+im"] = "td"
    """losses in a priority: TD, or TD and imitation, to repeat expert steps that it plays wrong"""
    priority_after_step: bool = False
    """compute priorities with the updated weights, as in Algorithm 1 (one more forward pass)"""
    samples_per_insert: float = 8.0
    """items that the learner learns from for each agent step added to the replay"""


@dataclass(frozen=True)
class Config:
    """All settings of one training run."""

    env: str = ""
    """environment id, such as ALE/MontezumaRevenge-v5 or CartPole-v1"""
    demos: tuple[str, ...] = ()
    """names or paths of demonstration sets"""
    preset: str = "apex-dqfd"
    """name of the variant in the run's title and folder"""
    environment: EnvConfig = field(default_factory=EnvConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def batch_size(self) -> int:
        return self.learner.agent_items + self.learner.expert_items

    @property
    def uses_demos(self) -> bool:
        """Whether the run learns from demonstrations."""
        return self.learner.expert_items > 0 or self.learner.demonstrations in ("priority", "spike")

    def __repr__(self) -> str:
        """The preset, and the settings that differ from the defaults of `Config`."""
        settings, defaults = flatten_settings(self), flatten_settings(Config())
        shown = {"preset": self.preset} | {n: v for n, v in settings.items() if v != defaults[n]}
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def replace(config: Config, **overrides: Any) -> Config:
    """config with checked overrides such as learner__gamma=0.99 or env="CartPole-v1"."""
    check_is_config(config)
    for name, value in overrides.items():
        section, _, leaf = name.partition("__")
        try:
            if leaf:
                value = dataclasses.replace(getattr(config, section), **{leaf: value})
            config = dataclasses.replace(config, **{section: value})
        except (AttributeError, TypeError):
            raise unknown_setting(name.replace("__", ".", 1)) from None
    return check_values(config)


def check_values(config: Config) -> Config:
    """config with every value checked by itself: its type and its bounds."""
    check_is_config(config)
    config = from_dict(dataclasses.asdict(config))
    check_bounds(flatten_settings(config))
    return config


def check_is_config(value: Any) -> None:
    """Raise a ConfigError for anything but a Config."""
    if not isinstance(value, Config):
        found = type(value).__name__
        raise ConfigError(f"config must be a Config, not {found}: preset(name) makes one")


def unknown_setting(name: str) -> ConfigError:
    """The error for a dotted name that is not a setting."""
    return ConfigError(describe_unknown(name, flatten_settings(Config())))


def flatten_settings(config: Config) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return dict(flatten_tree(dataclasses.asdict(config)))


def from_dict(data: Any) -> Config:
    """The inverse of `asdict`: missing settings keep their defaults, unknown ones are errors."""
    return decode_dataclass(Config, data, unknown_setting)
