"""The paper's variants as data: where they are in the paper, and the settings they change."""

from __future__ import annotations

from typing import Any, NamedTuple

from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError


class Preset(NamedTuple):
    """Overrides of the default configuration, as arguments of `config.replace`."""

    description: str
    overrides: dict[str, Any]


_NO_DEMOS: dict[str, Any] = {
    "learner__agent_items": 256,
    "learner__expert_items": 0,
    "actor__epsilon_schedule": "apex",
}

PRESETS: dict[str, Preset] = {
    "apex-dqfd": Preset("Tables 1-4, Ape-X DQfD", {}),
    "apex-dqfd-deeper": Preset(
        "Tables 1-4, Ape-X DQfD (deeper)", {"network__name": "dueling-deeper"}
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
    "apex-dqn": Preset(
        "Tables 1-4, Ape-X DQN (Horgan et al. 2018)",
        _NO_DEMOS
        | {
            "learner__value_transform": "identity",
            "learner__tc_weight": 0.0,
            "learner__gamma": 0.99,
            "learner__priority_type": "abs",
            "environment__reward_transform": "clip",
            "replay__horizons": (3,),
        },
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


def preset(name: str, scale: str = "paper", **overrides: Any) -> Config:
    """The configuration of a preset and a scale, with further overrides.

    Presets, with their place in the paper; those without demonstrations take no `demos`:

      apex-dqfd        Tables 1-4, Ape-X DQfD
      apex-dqfd-deeper Tables 1-4, Ape-X DQfD (deeper)
      no-transform     Fig. 3, standard Bellman operator
      no-tc            Fig. 3, without the TC loss
      no-imitation     Fig. 3, without the imitation loss
      popart           Fig. 4, PopArt instead of the transformed operator (van Hasselt et al. 2016)
      constrained-td   Fig. 4, constrained TD instead of the TC loss (Durugkar & Stone 2017)
      no-demos         Fig. 3, without demonstrations, Ape-X's epsilons
      apex-dqn         Tables 1-4, Ape-X DQN (Horgan et al. 2018)

    Scales:

      paper  the paper's sizes
      small  for a laptop: fewer lanes, a small replay, faster learning on small tasks

    An override is a setting of `Config`; the dot of its name becomes two underscores:

      preset("no-demos", "small", env="CartPole-v1", run__steps=100_000, learner__gamma=0.99)

    The result shows the settings that differ from the defaults. docs/settings.md lists them all.
    An unknown setting or an invalid value raises a ConfigError.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    if not isinstance(scale, str) or scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    merged = PRESETS[name].overrides | SCALES[scale].overrides | {"preset": name} | overrides
    return replace(Config(), **merged)
