# SPDX-License-Identifier: Apache-2.0
"""
The node of each op that is not called after an operator of ONNX with its operands as inputs and its properties as
attributes: conversions, what has numbers as inputs there and as properties here, and integers of other widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from onnx import helper
from xdsl.dialects.builtin import f32, i8, i32, i64
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import python_value
from penstock.dialects.graph.sizes import is_known
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.nodes_quantization import UI8

MOST = 2**63 - 1
"""To the end, as an end of Slice."""
LEAST = -(2**63)
"""To the beginning, backwards."""


@dataclass(frozen=True)
class Sizes:
    """A shape as an input: numbers, and names of sizes that are known when the program runs."""

    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class Cast:
    """A value in another element type."""

    value: SSAValue
    element: Attribute


Given: TypeAlias = SSAValue | Array | Sizes | Cast | None
"""An input of a node."""


@dataclass(frozen=True)
class Node:
    """A node that computes the result of an op."""

    operator: str
    inputs: Sequence[Given]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: int = 0
    """Which of its outputs that is."""


OpT = TypeVar("OpT", bound=graph.GraphOp)
NodeRule: TypeAlias = Callable[[Any], "Node | None"]

NODES: dict[type[graph.GraphOp], NodeRule] = {}
"""By op: its node, or None where it is one by its name after all."""


def writes(*ops: type[graph.GraphOp]) -> Callable[[Callable[[OpT], Node | None]], Callable[[OpT], Node | None]]:
    """Register the decorated function as the rule of ops."""

    def register(rule: Callable[[OpT], Node | None]) -> Callable[[OpT], Node | None]:
        NODES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def data_type(element: Attribute) -> int:
    """An element type as ONNX numbers them."""
    return helper.np_dtype_to_tensor_dtype(numpy_dtype(element))


def _numbers(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


def _scalar(number: float, like: SSAValue) -> Array:
    return np.array(number, numpy_dtype(tensor_of(like).element_type))


# Conversions.


@writes(graph.CastOp)
def _cast(op: graph.CastOp) -> Node:
    element = op.result_type.element_type
    # What is too large for a float of 8 bits does not become its largest number.
    plain = {"saturate": 0} if numpy_dtype(element).name.startswith("float8") else {}
    return Node("Cast", [op.x], {"to": data_type(element), **plain})


@writes(graph.BitcastOp)
def _bitcast(op: graph.BitcastOp) -> Node:
    return Node("BitCast", [op.x], {"to": data_type(op.result_type.element_type)})


@writes(graph.QuantizeLinearOp)
def _quantize(op: graph.QuantizeLinearOp) -> Node:
    """The zero point says what the result's type is, and numbers are of the type of the scale."""
    scale, element = tensor_of(op.scale), op.result_type.element_type
    zero = op.zero_point or np.zeros(scale.get_shape(), numpy_dtype(element))
    inputs: list[Given] = [op.x, op.scale]
    if tensor_of(op.x).element_type != scale.element_type:
        inputs = [Cast(value, f32) for value in (op.x, op.scale)]
    return Node("QuantizeLinear", [*inputs, zero], {"axis": op.axis.value.data} if op.along is not None else {})


@writes(graph.DequantizeLinearOp)
def _dequantize(op: graph.DequantizeLinearOp) -> Node:
    axis = {"axis": op.axis.value.data} if op.along is not None else {}
    return Node("DequantizeLinear", [op.x, op.scale, op.zero_point], axis)


# Elements.


@writes(graph.ClipOp)
def _clip(op: graph.ClipOp) -> Node:
    return Node("Clip", [op.x, *(None if bound is None else _scalar(bound, op.x) for bound in op.bounds)])


@writes(graph.ModOp)
def _mod(op: Any) -> Node:
    return Node("Mod", [op.a, op.b], {"fmod": 1})


@writes(graph.ShiftLeftOp, graph.ShiftRightOp)
def _shift(op: Any) -> Node:
    direction = "LEFT" if isinstance(op, graph.ShiftLeftOp) else "RIGHT"
    return Node("BitShift", [op.a, op.b], {"direction": direction})


# Places.


@writes(graph.ReshapeOp, graph.ExpandOp)
def _to_shape(op: graph.ReshapeOp | graph.ExpandOp) -> Node:
    """A size without a name follows from the others, or is that of what is repeated."""
    follows = -1 if isinstance(op, graph.ReshapeOp) else 1
    stated = zip(op.result_type.get_shape(), op.names(), strict=True)
    sizes = tuple(int(size) if is_known(size) else name or follows for size, name in stated)
    if isinstance(op, graph.ExpandOp):
        return Node("Expand", [op.x, Sizes(sizes)])
    return Node("Reshape", [op.x, Sizes(sizes)], {"allowzero": 1} if 0 in sizes else {})


@writes(graph.SliceOp)
def _slice(op: graph.SliceOp) -> Node:
    starts, sizes, steps = (list(each.get_values()) for each in (op.starts, op.sizes, op.steps))
    ends = [
        MOST if size == -1 else end if (end := start + size * step) >= 0 else LEAST
        for start, size, step in zip(starts, sizes, steps, strict=True)
    ]
    axes = [dim for dim, extent in enumerate(tensor_of(op.x).get_shape()) if _cuts(extent, starts, sizes, steps, dim)]
    parts = ([each[dim] for dim in axes] for each in (starts, ends))
    return Node("Slice", [op.x, *map(_numbers, parts), _numbers(axes), _numbers([steps[dim] for dim in axes])])


def _cuts(extent: int, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int], dim: int) -> bool:
    """Whether a slice leaves anything out of a dimension, or turns it round."""
    return (starts[dim], steps[dim]) != (0, 1) or sizes[dim] not in (extent, -1)


@writes(graph.PadOp)
def _pad(op: graph.PadOp) -> Node:
    return Node("Pad", [op.x, _numbers(op.pads.get_values()), _scalar(op.value.value.data, op.x)])


@writes(*(op for op in graph.OPS if issubclass(op, graph.ReductionOp)))
def _reduce(op: graph.ReductionOp) -> Node:
    operator = "".join(word.capitalize() for word in op.name.removeprefix("graph.").split("_"))
    axes = list(op.axes.get_values())
    if not axes:
        return Node("Identity", [op.x])
    return Node(operator, [op.x, _numbers(axes)], {"keepdims": int(bool(op.keepdims))})


@writes(graph.TopKOp)
def _top_k(op: graph.TopKOp) -> Node:
    attributes = {"axis": op.axis.value.data, "largest": int(bool(op.largest))}
    return Node("TopK", [op.x, _numbers([op.k.value.data])], attributes, output=1)


_INDICES: dict[type[graph.GraphOp], tuple[str, bool]] = {
    graph.GatherOp: ("Gather", False),
    graph.GatherElementsOp: ("GatherElements", False),
    graph.GatherNdOp: ("GatherND", True),
    graph.ScatterElementsOp: ("ScatterElements", False),
    graph.ScatterNdOp: ("ScatterND", True),
}
"""The operator, and whether its indices have 64 bits; else they may have 32."""


@writes(*_INDICES)
def _at_indices(op: Any) -> Node:
    operator, is_wide = _INDICES[type(op)]
    element = tensor_of(op.indices).element_type
    is_taken = element == i64 or (element == i32 and not is_wide)
    indices = op.indices if is_taken else Cast(op.indices, i64)
    updates = [op.updates] if isinstance(op, graph.ScatterElementsOp | graph.ScatterNdOp) else []
    attributes = {name: python_value(attribute) for name, attribute in op.properties.items()}
    return Node(operator, [op.x, indices, *updates], attributes)


# Products of integers.


@writes(graph.ConvOp)
def _conv(op: graph.ConvOp) -> Node | None:
    """Of integers of 8 bits, summed in 32; all others are convolutions by name."""
    if not is_conv_integer(op):
        return None
    attributes = {name: list(getattr(op, name).get_values()) for name in ("strides", "pads", "dilations")}
    return Node("ConvInteger", [op.x, op.w], {**attributes, "group": op.group.value.data})


def is_conv_integer(op: graph.ConvOp) -> bool:
    """Whether a convolution is one that ONNX has an operator for: of unsigned images by filters of 8 bits."""
    image, filters = (tensor_of(value).element_type for value in (op.x, op.w))
    is_taken = image == UI8 and filters in (UI8, i8)
    return is_taken and op.accumulator == i32 and op.b is None
