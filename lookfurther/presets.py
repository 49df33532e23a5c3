"""Variants of the paper and of earlier papers, as data: their settings and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lookfurther.config import Config, flatten_settings, replace
from lookfurther.errors import ConfigError
from lookfurther.settings.dqn_family import (
    APEX_DQN,
    CLASSIC_DQN,
    DOUBLE_DQN,
    DQFD_LOSS,
    DQFD_PARTS,
    DUELING_NETWORK,
    HORGAN_PARTS,
    ONE_ACTOR,
    PRIORITIZED_REPLAY,
    QUARTER_RATE,
    RAINBOW_PARTS,
    SMALL_DQN,
    SMALL_RATE,
    UNIFORM_REPLAY,
    Cited,
    borrow,
)
from lookfurther.settings.tuned import find_tuned_settings


class Preset(NamedTuple):
    """Overrides of the default configuration, as arguments of `config.replace`."""

    description: str
    overrides: dict[str, Any]
    small: Mapping[str, Any] = MappingProxyType({})  # its own sizes at the scale small


# Jump starts are for Atari games with demonstrations from every no-op start, on a GPU.
_ENCORE: Cited = {
    "actor__jump_start_share": (0.5, "ours, after Salimans & Chen 2018, Uchendu et al. 2022"),
    "actor__jump_start_length": (1200, "ours"),
    "actor__max_demo_lengths": (2.0, "ours"),
    "actor__stagger_steps": (2700, "ours"),
    "replay__expert_noop_starts": (True, "ours"),
    "network__name": ("dueling-deeper", "Sec. 4.1, Fig. 8"),
    "learner__target_period": (250, "ours"),
    "learner__weight_average": (
        20_000,
        "ours, after Polyak & Juditsky 1992, Schwarzer et al. 2023",
    ),
    "learner__imitated_episodes": ("all", DQFD_LOSS),
    "learner__imitated_steps": ("unambiguous", "ours"),
    "learner__samples_per_insert": (28.0, "ours"),
}
_SMALL_ENCORE: dict[str, Any] = {
    "actor__jump_start_share": 0.0,
    "actor__stagger_steps": 0,
    "replay__expert_noop_starts": False,
    "network__name": "auto",
    "learner__weight_average": 2_000,
    "learner__samples_per_insert": 8.0,
}


def _changed(settings: Cited) -> Cited:
    """The settings that differ from the defaults."""
    defaults = flatten_settings(Config())
    return {k: v for k, v in settings.items() if v[0] != defaults[k.replace("__", ".")]}


# Description, settings with their sources, and sizes at the scale small.
_CITED: dict[str, tuple[str, Cited, Mapping[str, Any]]] = {
    "apex-dqfd": ("Tables 1-4, Ape-X DQfD", {}, {}),
    "apex-dqfd-deeper": (
        "Tables 1-4, Ape-X DQfD (deeper)",
        {"network__name": ("dueling-deeper", "Sec. 4.1, Fig. 8")},
        {},
    ),
    "encore": (
        "Not of a paper, jump starts, averaged weights, more target copies",
        _ENCORE,
        _SMALL_ENCORE,
    ),
    "no-transform": (
        "Fig. 3, standard Bellman operator",
        {"learner__value_transform": ("identity", "Sec. 4.3, Fig. 3")},
        {},
    ),
    "no-tc": (
        "Fig. 3, without the TC loss",
        {"learner__tc_weight": (0.0, "Sec. 4.3, Fig. 3")},
        {},
    ),
    "no-imitation": (
        "Fig. 3, without the imitation loss",
        {"learner__im_weight": (0.0, "Sec. 4.3, Fig. 3")},
        {},
    ),
    "popart": (
        "Fig. 4, PopArt instead of the transformed operator (van Hasselt et al. 2016)",
        {
            "network__head": ("popart", "Sec. 4.4, Fig. 4; van Hasselt et al. 2016, Algorithm 1"),
            "learner__value_transform": ("identity", "Sec. 4.4"),
        },
        {},
    ),
    "constrained-td": (
        "Fig. 4, constrained TD instead of the TC loss (Durugkar & Stone 2017)",
        {
            "learner__constrained_td": (True, "Sec. 4.4, Fig. 4; Durugkar & Stone 2017"),
            "learner__tc_weight": (0.0, "Sec. 4.4"),
        },
        {},
    ),
    "no-demos": (
        "Fig. 3, without demonstrations, Ape-X's epsilons",
        {
            "learner__agent_items": (256, "Table 6, batch size"),
            "learner__expert_items": (0, "Sec. 4.3, Fig. 3"),
            "actor__epsilon_schedule": ("apex", "Fig. 3, caption"),
        },
        {},
    ),
    "apex-dqn": ("Tables 1-4, Ape-X DQN (Horgan et al. 2018)", APEX_DQN, {}),
    "apex-dqn-horgan": (
        "Horgan et al. 2018, Ape-X DQN with its own optimizer, loss and sizes",
        APEX_DQN | HORGAN_PARTS,
        SMALL_RATE,
    ),
    "clipped": (
        "Sec. 3.2, clipped rewards instead of the transformed Bellman operator",
        {
            "environment__reward_transform": ("clip", "Sec. 3.2; Mnih et al. 2015, Methods"),
            "learner__value_transform": ("identity", "Sec. 3.2"),
        },
        {},
    ),
    "replay-spiking": (
        "Lipton et al. 2016, demonstrations in the agent's replay until overwritten",
        {
            "learner__agent_items": (256, "Table 6, batch size"),
            "learner__expert_items": (0, "Sec. 2; Hester et al. 2018, Results"),
            "learner__demonstrations": ("spike", "Sec. 2; Hester et al. 2018, Results"),
            "learner__im_weight": (0.0, "Hester et al. 2018, Results"),
        },
        {},
    ),
    "dqfd": (
        "Hester et al. 2018, DQfD",
        borrow(ONE_ACTOR | PRIORITIZED_REPLAY | QUARTER_RATE | DUELING_NETWORK) | DQFD_PARTS,
        SMALL_RATE | {"learner__pretraining_updates": 2_000},
    ),
    "dqn": (
        "Mnih et al. 2015, DQN with the constants of DQN Zoo",
        DOUBLE_DQN | UNIFORM_REPLAY | CLASSIC_DQN,
        SMALL_DQN,
    ),
    "double-dqn": (
        "van Hasselt et al. 2016, Double DQN with the tuned constants of DQN Zoo",
        DOUBLE_DQN | UNIFORM_REPLAY,
        SMALL_DQN,
    ),
    "per": (
        "Schaul et al. 2016, Double DQN with prioritized replay, constants of DQN Zoo",
        DOUBLE_DQN | PRIORITIZED_REPLAY | QUARTER_RATE,
        SMALL_DQN,
    ),
    "dueling": (
        "Wang et al. 2016, the same with a dueling network",
        DOUBLE_DQN | PRIORITIZED_REPLAY | QUARTER_RATE | DUELING_NETWORK,
        SMALL_DQN,
    ),
    "rainbow": (
        "Hessel et al. 2018, Rainbow with the constants of DQN Zoo",
        DOUBLE_DQN | PRIORITIZED_REPLAY | RAINBOW_PARTS,
        {},
    ),
}
_CHANGED: dict[str, Cited] = {name: _changed(cited) for name, (_, cited, _) in _CITED.items()}
PRESETS: dict[str, Preset] = {
    name: Preset(description, {k: value for k, (value, _) in _CHANGED[name].items()}, small)
    for name, (description, _, small) in _CITED.items()
}
# Where the value of each setting of each preset is published.
SOURCES: dict[str, dict[str, str]] = {
    name: {k: source for k, (_, source) in settings.items()} for name, settings in _CHANGED.items()
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
