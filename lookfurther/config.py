"""Every setting, typed and checked; the defaults are the paper's (Table 6, docs/departures.md)."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lookfurther.errors import ConfigError
from lookfurther.validation import bound_rules, relation_rules


@dataclass(frozen=True)
class EnvConfig:
    """How environments are adapted. `repeat` to `cap_unit` concern Atari alone."""

    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers, innermost first, as module:Class"""
    layout: Literal["hwc", "chw"] = "hwc"
    """axis order of the environment's images"""
    frame_stack: int = 0
    """planes in an observation; 0: 4 for Atari, 1 elsewhere"""
    reward_transform: Literal["raw", "clip", "signed-log"] = "raw"
    """what the learner sees of a reward"""
    action_repeat: int = 4
    """emulator frames an action lasts"""
    full_actions: bool = True
    """all 18 Atari actions rather than the game's own"""
    noop_max: int = 30
    """most no-op frames at an episode's start"""
    sticky_prob: float = 0.0
    """probability that the emulator repeats the last action"""
    max_episode_length: int = 50_000
    """longest training episode, in `cap_unit`"""
    episode_length_unit: Literal["steps", "frames"] = "steps"
    """agent steps, or emulator frames"""
    on_fault: Literal["stop", "drop"] = "stop"
    """on a value that is not finite or not in its space: stop, or drop the episode and count it"""
    max_failures: int = 3
    """failures in a row after which an environment or a worker process is given up"""
    processes: int = 0
    """worker processes that step Gymnasium environments; 0: this one"""
    worker_timeout: float = 120.0
    """seconds for a step or reset in a worker process, which is then replaced; 0: no limit"""
    threads: int = 0
    """threads that step Atari environments; 0: chosen from the cores"""


@dataclass(frozen=True)
class ActorConfig:
    """The m actors of Sec. 3.4."""

    lanes: int = 128
    """parallel environments, m in the paper"""
    epsilon_schedule: Literal["paper", "apex"] = "paper"
    """each lane's epsilon: this paper's 0.001 ... 0.1, or Ape-X's 0.4 ... 0.0007"""
    exploration: Literal["uniform", "persistent"] = "uniform"
    """a random action lasts one step, or n steps with probability proportional to n^-2"""
    weight_sync_period: int = 10
    """steps of a lane between copies of the learner's weights"""
    stagger_steps: int = 0
    """truncate each lane's first episode at a random one of these steps; 0: lanes start together"""


@dataclass(frozen=True)
class ReplayConfig:
    """Both replays: the agent's and the expert's."""

    capacity: int = 2_000_000
    """agent steps kept, each frame once"""
    horizons: tuple[int, ...] = (1, 10)
    """lengths of the stored transitions, in steps"""
    expert_horizons: tuple[int, ...] = ()
    """lengths of the expert's transitions; empty: as `horizons`"""
    alpha: float = 0.6
    """priority exponent"""
    beta: float = 0.4
    """importance exponent"""
    priority_offset: float = 1e-6
    """added to every priority"""
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


@dataclass(frozen=True)
class LearnerConfig:
    """Algorithm 1 and Table 6."""

    agent_items: int = 192
    """agent transitions in a batch"""
    expert_items: int = 64
    """expert transitions in a batch"""
    learning_rate: float = 5e-5
    """Adam's learning rate"""
    adam_eps: float = 0.01 / 256
    """the paper's Adam regularizer"""
    max_gradient_norm: float = 40.0
    """global norm to which gradients are clipped"""
    target_period: int = 2500
    """updates between copies to the target network"""
    gamma: float = 0.999
    """discount factor of one agent step"""
    margin: float = math.sqrt(0.999)
    """lambda of the imitation loss"""
    value_transform: Literal["h", "identity"] = "h"
    """Bellman operator: transformed, or the standard one"""
    value_transform_eps: float = 1e-2
    """epsilon in h"""
    tc_weight: float = 1.0
    """weight of the temporal consistency loss"""
    im_weight: float = 1.0
    """weight of the imitation loss"""
    value_floor: Literal["none", "return"] = "none"
    """lower bound of expert values: none, or the return that the demonstration obtained"""
    advantage_learning: float = 0.0
    """alpha of advantage learning: small action gaps grow by 1 / (1 - alpha); 0: off"""
    imitated_episodes: Literal["best", "all"] = "best"
    """expert episodes the imitation loss sees: the best one, or all as in DQfD"""
    imitated_steps: Literal["all", "unambiguous"] = "all"
    """steps of them it sees: all, or none whose observation recurs later with another action"""
    priority_type: Literal["huber", "abs"] = "huber"
    """priority of an item: its Huber TD loss, or its absolute TD error"""
    priority_after_step: bool = False
    """recompute priorities with the updated weights, as Algorithm 1 prints (one more pass)"""
    samples_per_insert: float = 8.0
    """items learned from per agent step inserted"""


@dataclass(frozen=True)
class RunConfig:
    """Where, how long and on what."""

    folder: str = ""
    """run folder; empty: runs/ENV-PRESET-SEED"""
    steps: int = 50_000_000
    """agent steps to train for"""
    minutes: float = 0.0
    """stop after so many minutes of wall time; 0: no limit"""
    seed: int = 0
    """of every random choice"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """of the networks' arithmetic; weights stay float32. auto: bfloat16 where it is faster"""
    compile: Literal["auto", "on", "off"] = "auto"
    """fuse the learner's arithmetic into compiled kernels, half a minute at the start. auto: GPU"""
    threads: int = 0
    """threads of the learner on a CPU; 0: chosen from the cores"""
    evaluate_period: int = 0
    """agent steps between evaluations that choose the best checkpoint; 0: never"""
    evaluate_episodes: int = 40
    """episodes of such an evaluation, at epsilon 0.001"""
    log_period: int = 2_000
    """agent steps between metrics"""
    checkpoint_period: int = 1_000_000
    """agent steps between checkpoints; 0: only at the end"""
    checkpoint_minutes: float = 15.0
    """also a checkpoint after so many minutes; 0: never"""
    keep_checkpoints: int = 2
    """checkpoints kept"""


@dataclass(frozen=True)
class Config:
    """One training run, whole."""

    env: str = ""
    """environment id, such as ALE/MontezumaRevenge-v5 or CartPole-v1"""
    demos: tuple[str, ...] = ()
    """demonstration sets, by name or path"""
    preset: str = "apex-dqfd"
    """what the variant is called in the run's title and folder"""
    environment: EnvConfig = field(default_factory=EnvConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def batch_size(self) -> int:
        return self.learner.agent_items + self.learner.expert_items


def replace(config: Config, **overrides: Any) -> Config:
    """config with overrides such as learner__gamma=0.99 or env="CartPole-v1"."""
    for name, value in overrides.items():
        section, _, leaf = name.partition("__")
        try:
            if leaf:
                value = dataclasses.replace(getattr(config, section), **{leaf: value})
            config = dataclasses.replace(config, **{section: value})
        except (AttributeError, TypeError):
            raise ConfigError(f"unknown setting {name.replace('__', '.', 1)}") from None
    return config


def validate(config: Config) -> Config:
    """config with every type checked, or a ConfigError that names the first setting at fault."""
    config = _parse_section(Config, dataclasses.asdict(config), "")
    for holds, rule in bound_rules(config) + relation_rules(config):
        if not holds:
            raise ConfigError(rule)
    return config


def to_json(config: Config) -> str:
    """config as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The inverse of `to_json`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"configuration is not JSON: {error}") from None
    return from_dict(data)


def from_dict(data: Any) -> Config:
    """The inverse of `asdict`: a setting left out keeps its default, an unknown one is refused."""
    return _parse_section(Config, data, "")


def _parse_section(cls: type, data: Any, path: str) -> Any:
    """An object of the dataclass `cls` from plain data, every value checked against its type."""
    if not isinstance(data, dict):
        raise ConfigError(f"{path.rstrip('.') or 'configuration'} must be an object, not {data!r}")
    hints = get_type_hints(cls)
    if unknown := set(data) - set(hints):
        raise ConfigError(f"unknown setting {path}{min(unknown)}")
    values = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _parse_section(hint, value, f"{path}{name}.")  # type: ignore[arg-type]
        else:
            values[name] = _parse_value(hint, value, path + name)
    return cls(**values)


MAX_TEXT_LENGTH = 4096  # characters of one setting: the longest path of a file
_TYPE_DESCRIPTIONS = {
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
}


def _parse_value(hint: Any, value: Any, path: str) -> Any:
    """value as the type `hint` says, or a ConfigError."""
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_parse_value(get_args(hint)[0], v, path) for v in value)
        raise ConfigError(f"{path} must be a list, not {value!r}")
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{path} must be one of {', '.join(get_args(hint))}, not {value!r}")
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if hint is str and isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        raise ConfigError(f"{path} must have at most {MAX_TEXT_LENGTH:,} characters")
    if hint is not float and type(value) is hint:
        return value
    raise ConfigError(f"{path} must be {_TYPE_DESCRIPTIONS[hint]}, not {value!r}")
