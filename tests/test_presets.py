"""The defaults against the paper's hyper-parameters, and each preset against the defaults."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lookfurther.config import Config, replace
from lookfurther.errors import ConfigError
from lookfurther.presets import PRESETS, SCALES, SOURCES, preset
from lookfurther.training.config_json import from_json, to_json
from lookfurther.validation import validate
from tests.test_config import flatten_config


def test_defaults_are_paper_hyper_parameters() -> None:
    """Table 6, and the numbers of Sec. 3.2 and 3.4."""
    c = preset("apex-dqfd")
    assert c == Config()
    assert c.batch_size == 256
    assert c.learner.agent_items == 192
    assert c.learner.expert_items == 64
    assert c.learner.learning_rate == 5e-5
    assert c.learner.adam_eps == 0.0000390625  # 0.01 / 256
    assert c.learner.max_gradient_norm == 40.0
    assert c.learner.target_period == 2500
    assert c.learner.gamma == 0.999
    assert c.learner.margin == pytest.approx(0.9994998749374609, rel=1e-15)  # sqrt(0.999)
    assert c.learner.value_transform == "h"
    assert c.learner.value_transform_eps == 1e-2
    assert c.learner.tc_weight == 1.0
    assert c.learner.im_weight == 1.0
    assert c.environment.full_actions is True
    assert c.environment.action_repeat == 4
    assert c.environment.reward_transform == "raw"
    assert c.environment.sticky_prob == 0.0
    assert (c.environment.max_episode_length, c.environment.episode_length_unit) == (
        50_000,
        "steps",
    )
    assert c.actor.lanes == 128
    assert c.actor.epsilon_schedule == "paper"
    assert c.replay.horizons == (1, 10)


# All settings that each preset and scale changes.
EXPECTED_OVERRIDES: dict[str, dict[str, Any]] = {
    "apex-dqfd": {},
    "apex-dqfd-deeper": {"network__name": "dueling-deeper"},
    "no-transform": {"learner__value_transform": "identity"},
    "no-tc": {"learner__tc_weight": 0.0},
    "no-imitation": {"learner__im_weight": 0.0},
    "popart": {"network__head": "popart", "learner__value_transform": "identity"},
    "constrained-td": {"learner__constrained_td": True, "learner__tc_weight": 0.0},
    "no-demos": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "actor__epsilon_schedule": "apex",
    },
    "apex-dqn": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "actor__epsilon_schedule": "apex",
        "learner__value_transform": "identity",
        "learner__tc_weight": 0.0,
        "learner__gamma": 0.99,
        "learner__priority_type": "abs",
        "environment__reward_transform": "clip",
        "replay__horizons": (3,),
    },
    "clipped": {
        "environment__reward_transform": "clip",
        "learner__value_transform": "identity",
    },
    "replay-spiking": {
        "learner__agent_items": 256,
        "learner__expert_items": 0,
        "learner__demonstrations": "spike",
        "learner__im_weight": 0.0,
    },
}
# Systems of other papers: test_preset_constants.py has their numbers.
OTHER_SYSTEMS = ("apex-dqn-horgan", "dqfd", "dqn", "double-dqn", "per", "dueling", "rainbow")
ENCORE: dict[str, Any] = {
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
SMALL_DQN: dict[str, Any] = {"actor__epsilon_steps": 20_000, "learner__learning_rate": 2.5e-4}
EXPECTED_SMALL: dict[str, dict[str, Any]] = {
    "apex-dqn-horgan": {"learner__learning_rate": 2.5e-4},
    "dqfd": {"learner__learning_rate": 2.5e-4, "learner__pretraining_updates": 2_000},
    **dict.fromkeys(("dqn", "double-dqn", "per", "dueling"), SMALL_DQN),
    "encore": {  # those of the settings that suit small tasks
        "actor__jump_start_share": 0.0,
        "actor__stagger_steps": 0,
        "replay__expert_noop_starts": False,
        "network__name": "auto",
        "learner__weight_average": 2_000,
        "learner__samples_per_insert": 8.0,
    },
}
SMALL_OVERRIDES: dict[str, Any] = {
    "actor__lanes": 32,
    "replay__capacity": 200_000,
    "replay__learning_starts": 2_000,
    "learner__learning_rate": 5e-4,
    "learner__target_period": 200,
    "run__steps": 1_000_000,
    "run__checkpoint_period": 200_000,
}


def overrides_of(config: Config) -> dict[str, Any]:
    """The settings that differ from the defaults, except the preset's name."""
    base = flatten_config(Config())
    return {k: v for k, v in flatten_config(config).items() if v != base[k] and k != "preset"}


def test_every_preset_has_expected_overrides() -> None:
    assert set(PRESETS) == {*EXPECTED_OVERRIDES, *OTHER_SYSTEMS, "encore"}
    assert set(SCALES) == {"paper", "small"}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_changes_its_overrides_only(name: str) -> None:
    """An override equal to the default would be missing from the difference."""
    own, defaults = PRESETS[name].overrides, flatten_config(Config())
    expected = EXPECTED_OVERRIDES | {"encore": ENCORE}
    assert overrides_of(preset(name)) == expected.get(name, own) == own
    small = own | SMALL_OVERRIDES | EXPECTED_SMALL.get(name, {})
    changed = {k: v for k, v in small.items() if v != defaults[k]}
    assert overrides_of(preset(name, "small")) == changed
    assert preset(name).preset == name


@pytest.mark.parametrize("name", [*EXPECTED_OVERRIDES, *SCALES])
def test_preset_has_few_overrides(name: str) -> None:
    """At most 8 settings differ from the defaults or from another preset that it extends."""
    table = PRESETS if name in PRESETS else SCALES
    own = table[name].overrides.items()
    others = [p.overrides.items() for key, p in table.items() if key != name]
    assert min(len(own - other) for other in [{}.items(), *others] if other <= own) <= 8


@pytest.mark.parametrize("name", PRESETS)
def test_preset_describes_its_place_in_paper(name: str) -> None:
    place = r"(Tables? \d(-\d)?|Fig\. \d|Sec\. \d\.\d|[\w ]+ et al\. 20\d\d|Not of a paper), \S"
    assert re.match(place, PRESETS[name].description)


# A section, figure, table or name of a publication, or the statement that there is none.
PLACE = re.compile(
    r"Sec\. \d|Fig\. \d|Table \d|Algorithm \d|equation of|Background|Experimental Setup|Results"
    r"|Supplementary|The Integrated Agent|`\w+`|^ours\b|^not given: \w|\bfrom memory\b"
)


@pytest.mark.parametrize("name", PRESETS)
def test_every_override_has_a_source_and_nothing_else(name: str) -> None:
    assert SOURCES[name].keys() == PRESETS[name].overrides.keys()
    assert [source for source in SOURCES[name].values() if not PLACE.search(source)] == []


def test_source_is_that_of_the_preset_that_uses_the_value() -> None:
    """Parts of several presets: the same setting is published in different papers."""
    periods = {name: SOURCES[name].get("learner__target_period", "") for name in PRESETS}
    assert "Supplementary" in periods["dqfd"]
    assert periods["double-dqn"].endswith("(double_q)")
    assert periods["rainbow"] == "Hessel et al. 2018, Table 1"
    assert periods["encore"] == "ours"
    rates = {name: SOURCES[name].get("learner__learning_rate", "") for name in PRESETS}
    assert "Extended Data Table 1" in rates["dqn"]
    assert rates["per"].endswith("(prioritized)")
    assert rates["dqfd"] == f"not given: {rates['per']}"
    assert rates["rainbow"] == "Hessel et al. 2018, Table 1"
    assert "ape-x" in rates["apex-dqn-horgan"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_at_every_scale(name: str, scale: str) -> None:
    config = preset(name, scale, env="ALE/Pong-v5")
    if config.uses_demos:
        config = replace(config, demos=("pong",))
    assert from_json(to_json(validate(config))) == config


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPECTED_OVERRIDES)
def test_batch_size_is_always_256(name: str, scale: str) -> None:
    assert preset(name, scale).batch_size == 256


def test_further_overrides_apply_last() -> None:
    config = preset("no-tc", "small", learner__tc_weight=0.5, actor__lanes=3, env="CartPole-v1")
    assert (config.learner.tc_weight, config.actor.lanes) == (0.5, 3)
    assert config.env == "CartPole-v1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("apex",), "unknown preset 'apex': choose one of apex-dqfd, apex-dqfd-deeper, "),
        (("no-tc", "huge"), "unknown scale 'huge': choose one of paper, small"),
    ],
)
def test_unknown_preset_or_scale_lists_known_ones(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        preset(*arguments)
