"""Settings: the JSON round trip, types, and errors by name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookfurther import config
from lookfurther.cli.main import main
from lookfurther.config import Config, flatten_settings, from_dict, replace
from lookfurther.errors import ConfigError
from lookfurther.presets import preset
from lookfurther.settings import run_config
from lookfurther.settings.bounds import BOUNDS
from lookfurther.settings.setting_names import RENAMED_SETTINGS
from lookfurther.training.config_json import config_fingerprint, from_json, to_json
from lookfurther.validation import validate

VALID_CONFIG = Config(env="ALE/Pong-v5", demos=("pong",))


def setting_types(cls: type = Config, prefix: str = "") -> dict[str, Any]:
    """Every setting in `replace`'s spelling, with its type."""
    flat: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            flat |= setting_types(hint, f"{name}__")
        else:
            flat[prefix + name] = hint
    return flat


def setting_values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a setting's type."""
    if get_origin(hint) is tuple:
        return st.lists(setting_values(get_args(hint)[0]), max_size=4).map(tuple)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return {int: st.integers(), float: finite, str: st.text(), bool: st.booleans()}[hint]


overrides_of = st.fixed_dictionaries(
    {}, optional={k: setting_values(t) for k, t in setting_types().items()}
)


@settings(deadline=None, max_examples=50)
@given(overrides_of)
def test_json_round_trip(overrides: dict[str, Any]) -> None:
    """For any values of the right types, within their bounds or not."""
    config = make_unchecked(overrides)
    assert from_json(to_json(config)) == config
    assert from_dict(json.loads(to_json(config))) == config


@settings(deadline=None, max_examples=50)
@given(overrides_of)
def test_replace_changes_named_settings_or_names_a_bound(overrides: dict[str, Any]) -> None:
    try:
        after = flatten_config(replace(Config(), **overrides))
    except ConfigError as error:
        name = str(error).partition(" ")[0]
        assert not BOUNDS[name].holds(overrides[name.replace(".", "__")])
    else:
        assert after == flatten_config(Config()) | overrides


def make_unchecked(overrides: dict[str, Any]) -> Config:
    """The default configuration with overrides that `replace` might reject."""
    config = Config()
    for name, value in overrides.items():
        section, _, leaf = name.partition("__")
        if leaf:
            value = dataclasses.replace(getattr(config, section), **{leaf: value})
        config = dataclasses.replace(config, **{section: value})
    return config


def flatten_config(config: Config) -> dict[str, Any]:
    """Every setting's value, in `replace`'s spelling."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if isinstance(value, dict):
            flat |= {f"{name}__{leaf}": v for leaf, v in value.items()}
        else:
            flat[name] = value
    return flat


def test_validate_returns_valid_config_unchanged() -> None:
    assert validate(VALID_CONFIG) == VALID_CONFIG


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gamma": 0.9}, "unknown setting gamma: did you mean learner.gamma?"),
        ({"learner": {"gama": 0.9}}, "unknown setting learner.gama: did you mean learner.gamma?"),
        ({"learner": 3}, "learner must be an object, not 3"),
        ([], "configuration must be an object, not []"),
        ({"learner": {"gamma": "0.9"}}, "learner.gamma must be a finite number, not '0.9'"),
        ({"learner": {"gamma": True}}, "learner.gamma must be a finite number, not True"),
        ({"learner": {"gamma": None}}, "learner.gamma must be a finite number, not None"),
        ({"learner": {"gamma": float("nan")}}, "learner.gamma must be a finite number, not nan"),
        ({"run": {"minutes": float("inf")}}, "run.minutes must be a finite number, not inf"),
        ({"actor": {"lanes": 8.5}}, "actor.lanes must be a whole number, not 8.5"),
        ({"actor": {"lanes": True}}, "actor.lanes must be a whole number, not True"),
        (
            {"actor": {"epsilon_schedule": "rope"}},
            "actor.epsilon_schedule must be one of paper, apex, constant, linear, not 'rope'",
        ),
        (
            {"environment": {"full_actions": 1}},
            "environment.full_actions must be true or false, not 1",
        ),
        ({"env": 3}, "env must be a text, not 3"),
        ({"demos": "pong"}, "demos must be a list, not 'pong'"),
        ({"replay": {"horizons": [1, "10"]}}, "replay.horizons must be a whole number, not '10'"),
    ],
)
def test_unknown_or_mistyped_setting_is_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(json.dumps(data))
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", "{", '{"env": 1', "[" * 100_000, '{"x": ' + "9" * 5000 + "}"])
def test_invalid_json_raises_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="configuration is not JSON"):
        from_json(text)


def test_number_too_large_for_float_raises() -> None:
    with pytest.raises(ConfigError, match=r"learner\.gamma must be a finite number"):
        from_json('{"learner": {"gamma": 1' + "0" * 400 + "}}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*get_type_hints(Config), "gamma", "lanes"]), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(json_values)
def test_any_json_gives_config_or_error(data: Any) -> None:
    try:
        config = from_json(json.dumps(data))
    except ConfigError:
        return
    assert from_json(to_json(config)) == config


def test_missing_settings_keep_defaults() -> None:
    """A file of an older release, with fewer settings, still loads."""
    assert from_json('{"env": "CartPole-v1", "learner": {"gamma": 1}}') == replace(
        Config(), env="CartPole-v1", learner__gamma=1.0
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gamma", "learner.gamma"),
        ("learner__gama", "learner.gamma"),
        ("lerner__gamma", "learner.gamma"),
        ("env__x", "env"),
        ("steps", "run.steps"),
        ("zzz", None),
    ],
)
def test_replace_names_unknown_setting_and_similar_one(name: str, meant: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(VALID_CONFIG, **{name: 1})
    hint = f": did you mean {meant}?" if meant else ""
    assert str(caught.value) == f"unknown setting {name.replace('__', '.')}{hint}"


@pytest.mark.parametrize("old", RENAMED_SETTINGS)
def test_renamed_setting_error_gives_new_name(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file, in Python and on the command line."""
    message = f"{old} is now {RENAMED_SETTINGS[old]}"
    section, _, name = old.partition(".")
    for load in (
        lambda: from_dict({section: {name: 1}}),
        lambda: replace(Config(), **{old.replace(".", "__"): 1}),
    ):
        with pytest.raises(ConfigError) as caught:
            load()
        assert str(caught.value) == message
    option = f"--{old.replace('_', '-')}"
    for words in ([option, "1"], [f"{option}=1"], [f"--{old}", "1"]):
        assert main(["train", "no-demos", *words]) == 2
        assert capsys.readouterr().err == f"lookfurther: {message}\n"


def test_renamed_settings_exist_under_new_name_only() -> None:
    names = flatten_settings(Config()).keys()
    assert names >= set(RENAMED_SETTINGS.values())
    assert not names & RENAMED_SETTINGS.keys()


def test_fingerprint_ignores_excluded_settings_only() -> None:
    other = replace(VALID_CONFIG, run__seed=1, learner__gamma=0.5)
    assert config_fingerprint(other) != config_fingerprint(VALID_CONFIG)
    excluded = {"run.seed", "learner.gamma"}
    assert config_fingerprint(other, excluded) == config_fingerprint(VALID_CONFIG, excluded)


def test_settings_are_checked_when_made() -> None:
    """In Python as strictly as in a file; a Config that is made by hand is checked by `train`."""
    for name, value, message in (
        ("learner__value_transform", "g", "learner.value_transform must be one of h, identity"),
        ("actor__lanes", "8", "actor.lanes must be a whole number, not '8'"),
        ("actor__lanes", 0, "actor.lanes must be 1 or more, not 0"),
        ("learner", 5, "learner must be an object, not 5"),
    ):
        for make in (
            lambda name=name, value=value: replace(VALID_CONFIG, **{name: value}),
            lambda name=name, value=value: preset("no-demos", "paper", **{name: value}),
        ):
            with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
                make()
    with pytest.raises(ConfigError, match=r"learner\.gamma must be in \[0, 1\], not 2"):
        validate(make_unchecked({"env": "CartPole-v1", "learner__gamma": 2.0}))


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("replay__horizons", [1, 5], (1, 5)),
        ("run__steps", 1e5, 100_000),
        ("run__steps", np.int64(7), 7),
        ("learner__gamma", np.float32(0.5), 0.5),
        ("learner__gamma", 1, 1.0),
        ("run__folder", Path("runs/x"), "runs/x"),
    ],
)
def test_values_are_converted_to_their_type(name: str, given: Any, stored: Any) -> None:
    value = flatten_config(replace(Config(), **{name: given}))[name]
    assert value == stored
    assert type(value) is type(stored)


def test_repr_shows_changed_settings_only() -> None:
    config = preset("no-tc", env="CartPole-v1", run__seed=3)
    assert repr(config) == (
        "Config(preset='no-tc', env='CartPole-v1', learner.tc_weight=0.0, run.seed=3)"
    )
    assert repr(Config()) == "Config(preset='apex-dqfd')"


def test_batch_size_is_sum_of_shares() -> None:
    assert replace(VALID_CONFIG, learner__agent_items=5, learner__expert_items=3).batch_size == 8


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        VALID_CONFIG.learner.gamma = 0.9  # type: ignore[misc]


def test_every_setting_has_help_text() -> None:
    """A string below each setting, shown by the command line; a docstring for each section."""
    trees = [ast.parse(inspect.getsource(module)) for module in (config, run_config)]
    nodes = [node for tree in trees for node in tree.body]
    sections = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    documented = 0
    for name, section in sections.items():
        assert ast.get_docstring(section), name
        for field, below in zip(section.body, [*section.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) not in sections:
                assert isinstance(below, ast.Expr), f"{name}.{ast.unparse(field.target)}"
                assert isinstance(below.value, ast.Constant)
                assert isinstance(below.value.value, str)
                assert below.value.value.strip(), f"{name}.{ast.unparse(field.target)}"
                documented += 1
    assert documented == len(setting_types())
