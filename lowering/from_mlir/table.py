# SPDX-License-Identifier: Apache-2.0
"""The conversions of operations of StableHLO by name, and what the form of an operation says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute

from penstock.dialects import graph
from penstock.dialects.graph import Tensor, tensor_of
from penstock.dialects.weights import Array
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.passes.graph.terms import Term
from penstock.runtime.interpreter.graph import evaluate_op


class Unsupported(Exception):
    """An operation cannot be imported; the message says what about it."""


Conversion: TypeAlias = Callable[..., "Term | Sequence[Term]"]
"""From the builder, an operation and its operands to its results."""
ConversionT = TypeVar("ConversionT", bound=Conversion)

CONVERSIONS: dict[str, Conversion] = {}
"""By the name of the operation."""


def converts(*names: str) -> Callable[[ConversionT], ConversionT]:
    """Register the decorated function for operations of StableHLO, or of CHLO with their whole name."""

    def register(conversion: ConversionT) -> ConversionT:
        CONVERSIONS.update({name if "." in name else f"stablehlo.{name}": conversion for name in names})
        return conversion

    return register


def is_shape(type: Attribute) -> bool:
    """Whether a type is that of a list of sizes in TOSA, which is always a constant."""
    return "tosa.shape<" in str(type)


def elements_of(value: graph.Dense) -> list[Array]:
    """The elements of an attribute."""
    return [np.asarray(each) for each in evaluate_op(graph.ConstantOp(value), [], None)]


def result_of(op: ForeignOp) -> Tensor:
    return tensor_of(op.results[0])


def items_of(attribute: Attribute) -> list[Attribute]:
    return list(cast(ArrayAttr[Attribute], attribute))


def plain(attribute: Attribute) -> Any:
    """A number or a word."""
    if isinstance(attribute, IntegerAttr):
        return cast("IntegerAttr[Any]", attribute).value.data
    return cast(StringAttr, attribute).data


def numbers_of(attribute: Attribute) -> list[int]:
    """A list of integers, in whatever form."""
    if isinstance(attribute, DenseArrayBase):
        return [int(each) for each in cast("DenseArrayBase[Any]", attribute).get_values()]
    if isinstance(attribute, DenseIntOrFPElementsAttr):
        return [int(each) for each in elements_of(cast("graph.Dense", attribute))[0].ravel()]
    return [int(plain(each)) for each in items_of(attribute)]


def ints_of(op: ForeignOp, *names: str, default: list[int] | None = None) -> list[int]:
    """The integers that are called by one of several names."""
    found = next((each for name in names if (each := op.get(name)) is not None), None)
    if found is None:
        if default is None:
            raise Unsupported(f"without {names[0]}")
        return default
    return numbers_of(found)


def int_of(op: ForeignOp, *names: str, default: int | None = None) -> int:
    found = next((each for name in names if (each := op.get(name)) is not None), None)
    if found is None:
        if default is None:
            raise Unsupported(f"without {names[0]}")
        return default
    return int(plain(found))


def pair_of(op: ForeignOp, name: str) -> tuple[list[int], list[int]]:
    """`[..] x [..]`."""
    if (found := op.get(name)) is None:
        return [], []
    left, right = items_of(found)
    return numbers_of(left), numbers_of(right)


def words_of(op: ForeignOp) -> list[str]:
    """The bare words of a form, or what they are called in generic form."""
    if (found := op.get("words")) is not None:
        return [str(plain(each)) for each in items_of(found)]
    found = [str(op.get(name) or "") for name in ("comparison_direction", "compare_type")]
    return [word.rstrip(">").rpartition(" ")[2] for word in found if word]


def listed(text: str, name: str) -> list[int]:
    """The integers of an entry of an attribute that is kept as text: `name = [1, 2]`, or one."""
    found = re.search(rf"\b{name} = (?:\[([-\d, ]*)\]|(\d+))", text)
    return [] if found is None else [int(each) for each in re.findall(r"-?\d+", found[1] or found[2] or "")]


def reducer_of(op: ForeignOp) -> str:
    """The operation by which two values are combined."""
    if (named := op.get("reducer")) is not None:
        return str(plain(named)).partition(".")[2]
    if len(op.results) == 1 and len(inner := list(op.bodies[0].block.ops)) == 2:
        combined = inner[0]
        if set(combined.operands) == set(op.bodies[0].block.args) and inner[1].operands[0] is combined.results[0]:
            return combined.name.partition(".")[2]
    raise Unsupported("by more than one operation on one value")
