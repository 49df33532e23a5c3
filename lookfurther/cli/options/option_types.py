"""How tyro reads values from the command line, and how --help shows their types and defaults."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Union, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

OPTION_TYPES = ConstructorRegistry()
NO_VALUE = "none"  # in --help, for an empty text, an empty list and None


def parse_whole_number(text: str) -> int:
    """An integer; 1e6 is one, too."""
    try:
        return int(text)
    except ValueError:
        number = parse_finite_number(text, "a whole number")
    if not number.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def parse_finite_number(text: str, description: str = "a finite number") -> float:
    """A float that is neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not {description}")
    return number


@OPTION_TYPES.primitive_rule
def _int_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda texts: parse_whole_number(texts[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )


@OPTION_TYPES.primitive_rule
def _float_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not float:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="FLOAT",
        instance_from_str=lambda texts: parse_finite_number(texts[0]),
        is_instance=lambda value: type(value) in (int, float),
        str_from_instance=lambda value: [f"{value:g}"],
    )


@OPTION_TYPES.primitive_rule
def _str_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not str:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="STR",
        instance_from_str=lambda texts: texts[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value or NO_VALUE],
    )


@OPTION_TYPES.primitive_rule
def _optional_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """X | None is shown as X."""
    if info.type_origin not in (Union, types.UnionType):
        return None
    members = [member for member in get_args(info.type) if member is not types.NoneType]
    inner = _spec_of(members[0], info)
    if len(members) != 1 or inner is None:
        return None
    return dataclasses.replace(
        inner,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda v: [NO_VALUE] if v is None else inner.str_from_instance(v),
    )


@OPTION_TYPES.primitive_rule
def _tuple_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """tuple[X, ...] is shown as [X ...]."""
    if info.type_origin is not tuple or get_args(info.type)[1:] != (Ellipsis,):
        return None
    inner = _spec_of(get_args(info.type)[0], info)
    if inner is None:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{inner.metavar} ...]",
        instance_from_str=lambda texts: tuple(inner.instance_from_str([text]) for text in texts),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: (
            [text for value in values for text in inner.str_from_instance(value)] or [NO_VALUE]
        ),
        choices=inner.choices,
    )


def _spec_of(member: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """The rule for the type of a member of a union or tuple."""
    spec = OPTION_TYPES.get_primitive_spec(PrimitiveTypeInfo.make(member, info.markers))
    return spec if isinstance(spec, PrimitiveConstructorSpec) else None
