# SPDX-License-Identifier: Apache-2.0
"""The options of passes for people: what each takes, in words, what it is for, and what is wrong with a value."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec, ParameterListType
from xdsl.utils.hints import isa

from penstock.dialects.docstrings import strings_under_fields

_ONE = {int: "an integer", float: "a number", bool: "true or false", str: "a word"}
_MANY = {int: "integers", float: "numbers", bool: "true or false each", str: "words"}


@dataclass(frozen=True)
class PassOption:
    """One option of a pass, as it is written in a pipeline."""

    name: str
    takes: str
    """What values it takes, in words."""
    default: str
    """As it is written; empty if it has to be given or is nothing."""
    required: bool
    documentation: str


def options_of(pass_type: type[ModulePass]) -> list[PassOption]:
    """The options of a pass, in the order of its fields."""
    kinds, documented = _types_of(pass_type), strings_under_fields(pass_type, ModulePass)
    required = pass_type.required_fields()
    return [
        PassOption(
            field.name.replace("_", "-"),
            in_words(kinds[field.name]),
            _spelled(field.default),
            field.name in required,
            documented.get(field.name, ""),
        )
        for field in dataclasses.fields(pass_type)
        if field.init
    ]


def in_words(kind: Any) -> str:
    """What an option of a type takes: `integers, separated by commas`."""
    members = [each for each in _members(kind) if each is not type(None)]
    numbers = {int, float} <= set(members)
    said = [_member_in_words(each) for each in members if not (numbers and each is int)]
    return " or ".join(dict.fromkeys(said))


@cache
def _types_of(pass_type: type[ModulePass]) -> dict[str, Any]:
    return get_type_hints(pass_type)


def unfit(pass_type: type[ModulePass], spec: ArgSpec) -> str | None:
    """What is wrong with the values that options of a pass are given, or with those that are not; None if nothing."""
    kinds = _types_of(pass_type)
    given = spec.normalize_parameter_names().parameters
    for name, values in given.items():
        if not _fits(values, kinds[name]):
            shown = ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
            said = f'not "{shown}"' if values else "and nothing is given"
            return (
                f'the option "{name.replace("_", "-")}" of the pass "{spec.name}" takes {in_words(kinds[name])}, {said}'
            )
    for name in [field.name for field in dataclasses.fields(pass_type) if field.name in pass_type.required_fields()]:
        if name not in given:
            return f'the pass "{spec.name}" needs the option "{name.replace("_", "-")}": {in_words(kinds[name])}'
    return None


def _fits(values: ParameterListType, kind: Any) -> bool:
    if not values:
        return type(None) in _members(kind)
    return (len(values) == 1 and isa(values[0], kind)) or isa(values, kind)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _member_in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is not tuple:
        return _ONE.get(kind, str(kind))
    inner = get_args(kind)
    if len(inner) == 2 and inner[1] is Ellipsis:
        members = _members(inner[0])
        member = float if float in members else members[0]
        if get_origin(member) is Literal:
            return f"{_member_in_words(member)}, several separated by commas"
        return f"{_MANY.get(member, str(member))}, separated by commas"
    return f"{len(inner)} values, separated by commas: " + ", ".join(map(in_words, inner))


def _spelled(default: object) -> str:
    match default:
        case None | dataclasses.MISSING:
            return ""
        case bool():
            return str(default).lower()
        case tuple():
            return ",".join(map(str, default))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return str(default)
