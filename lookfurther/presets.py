"""Variants of the paper and of earlier papers, as data: their source, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError
from lookfurther.settings.dqn_family import (
    DOUBLE_DQN,
    DQFD_PARTS,
    DUELING_NETWORK,
    ONE_ACTOR,
    PRIORITIZED_REPLAY,
    RAINBOW_PARTS,
    SMALL_DQN,
    SMALL_RATE,
    UNIFORM_REPLAY,
)
from lookfurther.settings.tuned import find_tuned_settings


class Preset(NamedTuple):
    """Overrides of the default configuration, as arguments of `config.replace`."""

    description: str
    overrides: dict[str, Any]
    small: Mapping[str, Any] = MappingProxyType({})  # its own sizes at the scale small


_NO_DEMOS: dict[str, Any] = {
    "learner__agent_items": 256,
    "learner__expert_items": 0,
    "actor__epsilon_schedule": "apex",
}

_APEX_DQN: dict[str, Any] = _NO_DEMOS | {
    "learner__value_transform": "identity",
    "learner__tc_weight": 0.0,
    "learner__gamma": 0.99,
    "learner__priority_type": "abs",
    "environment__reward_transform": "clip",
    "replay__horizons": (3,),
}

# Jump starts are for Atari games with demonstrations from every no-op start, on a GPU.
_ENCORE: dict[str, Any] = {
    "actor__jump_start_share": 0.5,
    "actor__jump_start_length": 1200,
    "actor__max_demo_lengths": 2.0,
    "actor__stagger_steps": 2700,
    "replay__expert_noop_starts": True,
    "network__name": "dueling-deeper",
    "learner__target_period": 250,
    "learner__weight_average": 20_000,
    "learner__imitated_episodes": "all",
    "learner__imitated_steps": "unambiguous",
    "learner__samples_per_insert": 28.0,
}
_SMALL_ENCORE: dict[str, Any] = {
    "actor__jump_start_share": 0.0,
    "actor__stagger_steps": 0,
    "replay__expert_noop_starts": False,
    "network__name": "auto",
    "learner__weight_average": 2_000,
    "learner__samples_per_insert": 8.0,
}


def _changed(overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides that differ from the defaults."""
    return {k: v for k, v in overrides.items() if replace(Config(), **{k: v}) != Config()}


PRESETS: dict[str, Preset] = {
    "apex-dqfd": Preset("Tables 1-4, Ape-X DQfD", {}),
    "apex-dqfd-deeper": Preset(
        "Tables 1-4, Ape-X DQfD (deeper)", {"network__name": "dueling-deeper"}
    ),
    "encore": Preset(
        "Not of a paper, jump starts, averaged weights, more target copies",
        _ENCORE,
        _SMALL_ENCORE,
    ),
    "no-transform": Preset(
        "Fig. 3, standard Bellman operator", {"learner__value_transform": "identity"}
    ),
    "no-tc": Preset("Fig. 3, without the TC loss", {"learner__tc_weight": 0.0}),
    "no-imitation": Preset("Fig. 3, without the imitation loss", {"learner__im_weight": 0.0}),
    "popart": Preset(
        "Fig. 4, PopArt instead of the transformed operator (van Hasselt et al. 2016)",
        {"network__head": "popart", "learner__value_transform": "identity"},
    ),
    "constrained-td": Preset(
        "Fig. 4, constrained TD instead of the TC loss (Durugkar & Stone 2017)",
        {"learner__constrained_td": True, "learner__tc_weight": 0.0},
    ),
    "no-demos": Preset("Fig. 3, without demonstrations, Ape-X's epsilons", _NO_DEMOS),
    "apex-dqn": Preset("Tables 1-4, Ape-X DQN (Horgan et al. 2018)", _APEX_DQN),
    "apex-dqn-horgan": Preset(
        "Horgan et al. 2018, Ape-X DQN with its own optimizer, loss and sizes",
        _APEX_DQN
        | {
            "actor__lanes": 360,
            "actor__weight_sync_period": 100,
            "learner__agent_items": 512,
            "learner__learning_rate": 2.5e-4 / 4,
            "learner__optimizer": "rmsprop",
            "learner__rmsprop_eps": 1.5e-7,
            "learner__td_loss": "squared",
            "learner__samples_per_insert": 0.78,
        },
        SMALL_RATE,
    ),
    "clipped": Preset(
        "Sec. 3.2, clipped rewards instead of the transformed Bellman operator",
        {"environment__reward_transform": "clip", "learner__value_transform": "identity"},
    ),
    "replay-spiking": Preset(
        "Lipton et al. 2016, demonstrations in the agent's replay until overwritten",
        {
            "learner__agent_items": 256,
            "learner__expert_items": 0,
            "learner__demonstrations": "spike",
            "learner__im_weight": 0.0,
        },
    ),
    "dqfd": Preset(
        "Hester et al. 2018, DQfD",
        _changed(ONE_ACTOR | PRIORITIZED_REPLAY | DUELING_NETWORK | DQFD_PARTS),
        SMALL_RATE | {"learner__pretraining_updates": 2_000},
    ),
    "dqn": Preset(
        "Mnih et al. 2015, DQN with the constants of DQN Zoo",
        _changed(
            DOUBLE_DQN
            | UNIFORM_REPLAY
            | {
                "actor__epsilon_end": 0.1,
                "learner__target_period": 2_500,
                "learner__double_q": False,
            }
        ),
        SMALL_DQN,
    ),
    "double-dqn": Preset(
        "van Hasselt et al. 2016, Double DQN with the tuned constants of DQN Zoo",
        _changed(DOUBLE_DQN | UNIFORM_REPLAY),
        SMALL_DQN,
    ),
    "per": Preset(
        "Schaul et al. 2016, Double DQN with prioritized replay, constants of DQN Zoo",
        _changed(DOUBLE_DQN | PRIORITIZED_REPLAY),
        SMALL_DQN,
    ),
    "dueling": Preset(
        "Wang et al. 2016, the same with a dueling network",
        _changed(DOUBLE_DQN | PRIORITIZED_REPLAY | DUELING_NETWORK),
        SMALL_DQN,
    ),
    "rainbow": Preset(
        "Hessel et al. 2018, Rainbow with the constants of DQN Zoo",
        _changed(
            DOUBLE_DQN
            | PRIORITIZED_REPLAY
            | RAINBOW_PARTS
            | {"learner__rmsprop_eps": Config().learner.rmsprop_eps}
        ),
    ),
}
SCALES: dict[str, Preset] = {
    "paper": Preset("the paper's sizes", {}),
    "small": Preset(
        "for a laptop: fewer lanes, a small replay, faster learning on small tasks",
        {
            "actor__lanes": 32,
            "replay__capacity": 200_000,
            "replay__learning_starts": 2_000,
            "learner__learning_rate": 5e-4,
            "learner__target_period": 200,
            "run__steps": 1_000_000,
            "run__checkpoint_period": 200_000,
        },
    ),
}

TUNED = "tuned"  # instead of a preset: the tuned settings of an environment


def preset(name: str, scale: str = "paper", **overrides: Any) -> Config:
    """The configuration of a preset and a scale, with further overrides.

    Presets, with their source; those without demonstrations take no `demos`:

      apex-dqfd        Tables 1-4, Ape-X DQfD
      apex-dqfd-deeper Tables 1-4, Ape-X DQfD (deeper)
      encore           Not of a paper, jump starts, averaged weights, more target copies
      no-transform     Fig. 3, standard Bellman operator
      no-tc            Fig. 3, without the TC loss
      no-imitation     Fig. 3, without the imitation loss
      popart           Fig. 4, PopArt instead of the transformed operator (van Hasselt et al. 2016)
      constrained-td   Fig. 4, constrained TD instead of the TC loss (Durugkar & Stone 2017)
      no-demos         Fig. 3, without demonstrations, Ape-X's epsilons
      apex-dqn         Tables 1-4, Ape-X DQN (Horgan et al. 2018)
      apex-dqn-horgan  Horgan et al. 2018, Ape-X DQN with its own optimizer, loss and sizes
      clipped          Sec. 3.2, clipped rewards instead of the transformed Bellman operator
      replay-spiking   Lipton et al. 2016, demonstrations in the agent's replay until overwritten
      dqfd             Hester et al. 2018, DQfD
      dqn              Mnih et al. 2015, DQN with the constants of DQN Zoo
      double-dqn       van Hasselt et al. 2016, Double DQN with the tuned constants of DQN Zoo
      per              Schaul et al. 2016, Double DQN with prioritized replay, constants of DQN Zoo
      dueling          Wang et al. 2016, the same with a dueling network
      rainbow          Hessel et al. 2018, Rainbow with the constants of DQN Zoo

    Scales:

      paper  the paper's sizes
      small  for a laptop: fewer lanes, a small replay, faster learning on small tasks

    An override is a setting of `Config`; the dot of its name becomes two underscores:

      preset("no-demos", "small", env="CartPole-v1", run__steps=100_000, learner__gamma=0.99)
      preset("tuned", env="CartPole-v1")  # instead of a preset: tuned settings of the environment

    docs/settings.md lists all settings. An unknown one or an invalid value raises a ConfigError.
    """
    if name == TUNED:
        return _tuned_config(scale, overrides)
    return replace(Config(), **(_preset_overrides(name, scale) | overrides))


def _preset_overrides(name: str, scale: str) -> dict[str, Any]:
    """What a preset changes at a scale."""
    _check_names(name, scale)
    small = dict(PRESETS[name].small) if scale == "small" else {}
    return PRESETS[name].overrides | SCALES[scale].overrides | small | {"preset": name}


def _tuned_config(scale: str, overrides: dict[str, Any]) -> Config:
    """The configuration of the environment in `overrides`, which takes its own scale."""
    if scale != "paper":
        raise ConfigError("tuned settings have their own scale: leave it out")
    tuned = find_tuned_settings(overrides.get("env"))
    merged = tuned.overrides() | {"preset": TUNED} | overrides
    return replace(preset(tuned.preset, tuned.scale), **merged)


def _check_names(name: Any, scale: Any) -> None:
    if not isinstance(name, str) or name not in PRESETS:
        choices = ", ".join((*PRESETS, TUNED))
        raise ConfigError(f"unknown preset {name!r}: choose one of {choices}")
    if not isinstance(scale, str) or scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
