"""
Reshapes as views: a collapse of neighbouring dims, an expansion, or the one after the other.

A scalar becomes a tensor of ones in rank by `tensor.reshape`: xDSL's `tensor.expand_shape` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

Emit = Callable[[Operation], SSAValue]
"""Appends an op and returns its result."""


def reassociation(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """
    The finest pairing of runs of dims of `source` with runs of dims of `target` that hold equally many
    elements, for two shapes of equal size. A scalar pairs with no run.
    """
    if not source or not target:
        return []
    if prod(source) == 0:
        return [(list(range(len(source))), list(range(len(target))))]
    pairs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        left, right = [i], [j]
        held, wanted = source[i], target[j]
        i, j = i + 1, j + 1
        while held != wanted:
            if held < wanted:
                left.append(i)
                held *= source[i]
                i += 1
            else:
                right.append(j)
                wanted *= target[j]
                j += 1
        pairs.append((left, right))
    # What is left over on one side are ones.
    pairs[-1][0].extend(range(i, len(source)))
    pairs[-1][1].extend(range(j, len(target)))
    return pairs


def emit_reshape(emit: Emit, value: SSAValue, target: Sequence[int]) -> SSAValue:
    """`value`, a static tensor, in the shape `target` of as many elements: at most two views."""
    assert isa(value.type, TensorType[Attribute])
    source, element = value.type.get_shape(), value.type.element_type
    target = tuple(target)
    if source == target:
        return value
    if not source:
        sizes = TensorType(i64, [len(target)])
        ones = emit(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(sizes, [1] * len(target))))
        return emit(tensor.ReshapeOp(value, ones, TensorType(element, target)))
    pairs = reassociation(source, target)
    middle = tuple(prod(source[dim] for dim in left) for left, _ in pairs)
    if middle != source:
        value = emit(
            tensor.CollapseShapeOp.build(
                operands=[value],
                result_types=[TensorType(element, middle)],
                properties={"reassociation": _groups(left for left, _ in pairs)},
            )
        )
    if middle != target:
        value = emit(
            tensor.ExpandShapeOp(
                value,
                (),
                _groups(right for _, right in pairs),
                DenseArrayBase.from_list(i64, target),
                TensorType(element, target),
            )
        )
    return value


def _groups(runs: Iterable[list[int]]) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    return ArrayAttr([ArrayAttr([IntegerAttr(dim, i64) for dim in run]) for run in runs])
