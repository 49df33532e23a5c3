"""Every setting, typed and checked; the defaults are the paper's (Table 6, docs/departures.md)."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lookfurther.errors import ConfigError


@dataclass(frozen=True)
class Environment:
    """How environments are adapted. `repeat` to `cap_unit` concern Atari alone."""

    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers, innermost first, as module:Class"""
    layout: Literal["hwc", "chw"] = "hwc"
    """axis order of the environment's images"""
    stack: int = 0
    """planes in an observation; 0: 4 for Atari, 1 elsewhere"""
    reward: Literal["raw", "clip", "signed-log"] = "raw"
    """what the learner sees of a reward"""
    repeat: int = 4
    """emulator frames an action lasts"""
    full_actions: bool = True
    """all 18 Atari actions rather than the game's own"""
    noops: int = 30
    """most no-op frames at an episode's start"""
    sticky: float = 0.0
    """probability that the emulator repeats the last action"""
    cap: int = 50_000
    """longest training episode, in `cap_unit`"""
    cap_unit: Literal["steps", "frames"] = "steps"
    """agent steps, or emulator frames"""
    on_fault: Literal["stop", "drop"] = "stop"
    """on a reward or observation that is not finite: stop, or drop the episode and count it"""
    max_failures: int = 3
    """exceptions in a row after which an environment is given up"""
    processes: int = 0
    """processes that step Gymnasium environments; 0: this one"""
    threads: int = 0
    """threads that step Atari environments; 0: chosen from the cores"""


@dataclass(frozen=True)
class Actor:
    """The m actors of Sec. 3.4."""

    lanes: int = 128
    """parallel environments, m in the paper"""
    ladder: Literal["paper", "apex"] = "paper"
    """each lane's epsilon: this paper's 0.001 ... 0.1, or Ape-X's 0.4 ... 0.0007"""
    weights_period: int = 400
    """steps of a lane between copies of the learner's weights"""


@dataclass(frozen=True)
class Replay:
    """Both replays: the agent's and the expert's."""

    capacity: int = 2_000_000
    """agent steps kept, each frame once"""
    horizons: tuple[int, ...] = (1, 10)
    """lengths of the stored transitions, in steps"""
    alpha: float = 0.6
    """priority exponent"""
    beta: float = 0.4
    """importance exponent"""
    offset: float = 1e-6
    """added to every priority"""
    start: int = 50_000
    """agent steps before learning begins"""


@dataclass(frozen=True)
class Network:
    """The action-value network."""

    name: Literal["auto", "dueling", "dueling-deeper", "small-conv", "mlp"] = "auto"
    """auto: dueling for Atari-sized images, small-conv for smaller ones, mlp for vectors"""
    convolutions: tuple[int, ...] = ()
    """channels of each convolution; empty: the network's own"""
    hidden: tuple[int, ...] = ()
    """widths of each stream's fully connected layers; empty: the network's own"""


@dataclass(frozen=True)
class Learner:
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
    transform: Literal["h", "identity"] = "h"
    """Bellman operator: transformed, or the standard one"""
    transform_eps: float = 1e-2
    """epsilon in h"""
    consistency: float = 1.0
    """weight of the temporal consistency loss"""
    imitation: float = 1.0
    """weight of the imitation loss"""
    imitated: Literal["best", "all"] = "best"
    """expert episodes the imitation loss sees: the best one, or all as in DQfD"""
    priority: Literal["huber", "abs"] = "huber"
    """priority of an item: its Huber TD loss, or its absolute TD error"""
    priority_after_step: bool = False
    """recompute priorities with the updated weights, as Algorithm 1 prints (one more pass)"""
    samples_per_insert: float = 8.0
    """items learned from per agent step inserted"""


@dataclass(frozen=True)
class Run:
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
    keep: int = 2
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
    environment: Environment = field(default_factory=Environment)
    actor: Actor = field(default_factory=Actor)
    replay: Replay = field(default_factory=Replay)
    network: Network = field(default_factory=Network)
    learner: Learner = field(default_factory=Learner)
    run: Run = field(default_factory=Run)

    @property
    def batch(self) -> int:
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


# Numbers with a least value, and numbers that must exceed 0.
_LEAST = {
    "environment.stack": 0,
    "environment.repeat": 1,
    "environment.noops": 0,
    "environment.cap": 1,
    "environment.max_failures": 1,
    "environment.processes": 0,
    "environment.threads": 0,
    "actor.lanes": 1,
    "actor.weights_period": 1,
    "replay.alpha": 0,
    "learner.agent_items": 1,
    "learner.expert_items": 0,
    "learner.target_period": 1,
    "learner.consistency": 0,
    "learner.imitation": 0,
    "run.steps": 1,
    "run.minutes": 0,
    "run.seed": 0,
    "run.threads": 0,
    "run.evaluate_period": 0,
    "run.evaluate_episodes": 1,
    "run.log_period": 1,
    "run.checkpoint_period": 0,
    "run.checkpoint_minutes": 0,
    "run.keep": 1,
}
_POSITIVE = (
    "replay.offset",
    "learner.learning_rate",
    "learner.adam_eps",
    "learner.max_gradient_norm",
    "learner.transform_eps",
    "learner.samples_per_insert",
)


def _bounds(c: Config) -> list[tuple[bool, str]]:
    """(holds, what must hold) for every setting that is bounded by itself."""
    value = {name: attrgetter(name)(c) for name in (*_LEAST, *_POSITIVE)}
    return [
        (c.env != "", "env must be given, for example --env ALE/Pong-v5"),
        *((value[k] >= n, f"{k} must be {n} or more, not {value[k]}") for k, n in _LEAST.items()),
        *((value[k] > 0, f"{k} must be above 0, not {value[k]}") for k in _POSITIVE),
    ]


def _relations(c: Config) -> list[tuple[bool, str]]:
    """(holds, what must hold) for every other constraint."""
    e, a, r, n, le, run = c.environment, c.actor, c.replay, c.network, c.learner, c.run
    lag = max(r.horizons, default=0)
    room, warm = a.lanes * (lag + 16), a.lanes * (lag + 2)
    return [
        (0 <= e.sticky < 1, f"environment.sticky must be in [0, 1), not {e.sticky}"),
        (
            e.processes <= a.lanes,
            f"environment.processes ({e.processes}) exceeds actor.lanes ({a.lanes})",
        ),
        (
            min(r.horizons, default=0) >= 1,
            f"replay.horizons must be lengths of 1 or more, not {r.horizons}",
        ),
        (
            len(set(r.horizons)) == len(r.horizons),
            f"replay.horizons repeats a length: {r.horizons}",
        ),
        (0 <= r.beta <= 1, f"replay.beta must be in [0, 1], not {r.beta}"),
        (
            r.capacity >= room,
            f"replay.capacity ({r.capacity}) must be at least {room}:"
            " actor.lanes x (the longest horizon + 16)",
        ),
        (
            r.start >= warm,
            f"replay.start ({r.start}) must be at least {warm}:"
            " actor.lanes x (the longest horizon + 2)",
        ),
        (r.start <= r.capacity, f"replay.start ({r.start}) exceeds replay.capacity ({r.capacity})"),
        (
            min(n.convolutions, default=1) >= 1,
            f"network.convolutions must be widths of 1 or more, not {n.convolutions}",
        ),
        (
            min(n.hidden, default=1) >= 1,
            f"network.hidden must be widths of 1 or more, not {n.hidden}",
        ),
        (0 <= le.gamma <= 1, f"learner.gamma must be in [0, 1], not {le.gamma}"),
        (
            le.expert_items == 0 or len(c.demos) > 0,
            f"learner.expert_items is {le.expert_items}, but no demonstrations are given:"
            " add --demos NAME, or use the preset no-demos",
        ),
        (
            le.expert_items > 0 or len(c.demos) == 0,
            "demonstrations are given, but learner.expert_items is 0:"
            " drop --demos or choose another preset",
        ),
        (
            re.fullmatch(r"auto|cpu|cuda(:\d+)?", run.device) is not None,
            f"run.device must be auto, cpu, cuda or cuda:N, not {run.device!r}",
        ),
    ]


def validate(config: Config) -> Config:
    """config with every type checked, or a ConfigError that names the first setting at fault."""
    config = _build(Config, dataclasses.asdict(config), "")
    for holds, rule in _bounds(config) + _relations(config):
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
    return _build(Config, data, "")


def _build(cls: type, data: Any, path: str) -> Any:
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
            values[name] = _build(hint, value, f"{path}{name}.")  # type: ignore[arg-type]
        else:
            values[name] = _leaf(hint, value, path + name)
    return cls(**values)


_WORDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def _leaf(hint: Any, value: Any, path: str) -> Any:
    """value as the type `hint` says, or a ConfigError."""
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_leaf(get_args(hint)[0], v, path) for v in value)
        raise ConfigError(f"{path} must be a list, not {value!r}")
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise ConfigError(f"{path} must be one of {', '.join(get_args(hint))}, not {value!r}")
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if hint is not float and type(value) is hint:
        return value
    raise ConfigError(f"{path} must be {_WORDS[hint]}, not {value!r}")
