"""The description of every setting: the text below its field."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from dataclasses import is_dataclass
from typing import Any, NamedTuple, get_type_hints

from lookfurther.config import Config


class SettingDescription(NamedTuple):
    """The type of a setting and its one-line description."""

    type: Any
    text: str


def describe_settings(cls: type = Config, prefix: str = "") -> dict[str, SettingDescription]:
    """Every setting by its dotted name."""
    texts, descriptions = field_docstrings(cls), {}
    for name, hint in get_type_hints(cls).items():
        if isinstance(hint, type) and is_dataclass(hint):
            descriptions |= describe_settings(hint, f"{prefix}{name}.")
        else:
            descriptions[prefix + name] = SettingDescription(hint, texts[name])
    return descriptions


def field_docstrings(cls: type) -> dict[str, str]:
    """The text below each field of a dataclass, by the field's name."""
    (class_node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(class_node, ast.ClassDef)
    texts = {}
    for node, following in itertools.pairwise(class_node.body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            texts[node.target.id] = str(following.value.value)
    return texts
