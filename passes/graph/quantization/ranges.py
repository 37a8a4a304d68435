# SPDX-License-Identifier: Apache-2.0
"""
Which numbers the values of a graph take: what quantisation has to know, as a table from names to ranges.

The table is plain: {name of a value: [lowest, highest]}, as JSON in a file, or in the module attribute `graph.ranges`.
Names are those of a model's nodes and inputs where the IR has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, ModuleOp, NameLoc
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import NAME, attribute_text
from penstock.dialects.graph.base import is_float, tensor_of

RANGES_ATTRIBUTE = "graph.ranges"
"""The table of a module: a dictionary from names to arrays of two numbers."""

Range = tuple[float, float]
"""The lowest and the highest number."""


def value_names(func: FuncOp) -> dict[SSAValue, str]:
    """
    A name for each float value of a graph, constants apart, in the order of the graph.

    That of the model's input or node, where the IR has it, else the name in the text, else the operator and its place.
    Of values with one name the second is called `name#1`, and so on.
    """
    names: dict[SSAValue, str] = {}
    taken: dict[str, int] = {}
    for value, name in _wanted(func):
        count = taken.get(name, 0)
        taken[name] = count + 1
        names[value] = f"{name}#{count}" if count else name
    return names


def _wanted(func: FuncOp) -> list[tuple[SSAValue, str]]:
    found: list[tuple[SSAValue, str]] = []
    for index, argument in enumerate(func.body.block.args):
        name = attribute_text(func, index, NAME) or argument.name_hint
        found.append((argument, name or f"arg{index}"))
    for index, op in enumerate(func.body.block.ops):
        if not op.operands:
            continue  # a constant
        located = op.location.desc.data if isinstance(op.location, NameLoc) else None
        for result in op.results:
            found.append((result, located or result.name_hint or f"{op.name}#{index}"))
    return [(value, name) for value, name in found if is_float(tensor_of(value).element_type)]


def checked_ranges(table: object, place: str | None = None) -> dict[str, Range]:
    """The table that a JSON text holds; raises UserError, at `place`, where it is none."""
    if not isinstance(table, dict):
        raise UserError("ranges are an object from names to [lowest, highest]", loc=place)
    checked: dict[str, Range] = {}
    for name, pair in cast(dict[str, Any], table).items():
        numbers = cast(list[Any], pair) if isinstance(pair, list | tuple) else []
        if len(numbers) != 2 or not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
            raise UserError(f'the range of "{name}" is not two finite numbers', loc=place)
        low, high = float(numbers[0]), float(numbers[1])
        if low > high:
            raise UserError(f'the range of "{name}" ends before it begins: {low} to {high}', loc=place)
        checked[name] = (low, high)
    return checked


def read_ranges(path: str | Path) -> dict[str, Range]:
    """The table in a JSON file; raises UserError if it cannot be read, or is none."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the ranges: {error.strerror}", loc=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("the ranges are no text in UTF-8", loc=str(path)) from None
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the ranges are no JSON: {error}", loc=str(path)) from None
    return checked_ranges(table, str(path))


def ranges_text(ranges: Mapping[str, Range]) -> str:
    """A table as JSON, a value a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(list(pair))}" for name, pair in ranges.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def ranges_of(module: ModuleOp) -> dict[str, Range] | None:
    """The table of a module, None if it has none; raises UserError for an attribute that is no table."""
    attribute = module.attributes.get(RANGES_ATTRIBUTE)
    if attribute is None:
        return None
    if not isinstance(attribute, DictionaryAttr):
        raise UserError(f"{RANGES_ATTRIBUTE} is not a dictionary", loc=module.location)
    table = {
        name: [each.value.data for each in pair if isinstance(each, FloatAttr)] if isa(pair, ArrayAttr) else []
        for name, pair in attribute.data.items()
    }
    return checked_ranges(table, RANGES_ATTRIBUTE)
