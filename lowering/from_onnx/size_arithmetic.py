# SPDX-License-Identifier: Apache-2.0
"""
Evaluation of nodes on sizes that are not known yet.

`Shape` of a tensor with unknown sizes is an array of Python objects, numbers and `Dim`s. Exporters gather, join and
multiply them on the way to a `Reshape` or an `Expand`. What is here computes that exactly, or raises UnknownSize
where a decision depends on what is not known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph.sizes import Dim, Size, UnknownSize, decided_equal
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import DOMAINS, OnnxNode, array_dtype


def has_unknown(array: Array) -> bool:
    """Whether an array holds sizes that are not known."""
    return array.dtype == object


def sizes_array(sizes: Sequence[Size], shape: Sequence[int] | None = None) -> Array:
    """An array of sizes: of 64-bit integers if all are known, else of objects."""
    known = not any(isinstance(size, Dim) for size in sizes)
    array: Array = np.empty(len(sizes), np.int64 if known else object)
    for index, size in enumerate(sizes):
        array[index] = size
    return array if shape is None else array.reshape(tuple(shape))


def first_unknown(array: Array) -> Dim:
    """The first size in an array that is not known."""
    return next(each for each in array.ravel() if isinstance(each, Dim))


def refuse_unknown(array: Array, why: str) -> None:
    """Raise UnknownSize, with what makes that a fault, if an array holds sizes that are not known."""
    if has_unknown(array):
        raise UnknownSize(first_unknown(array), why)


def evaluate_sizes(node: OnnxNode) -> list[Array] | None:
    """
    The outputs of a node whose inputs are arrays of sizes, None if it is none of the operators known here.

    Raises UnknownSize where the values depend on a decision about sizes that are not known.
    """
    evaluate = _OPERATORS.get(node.proto.op_type)
    if evaluate is None:
        return None
    found = evaluate(node)
    arrays = found if isinstance(found, list) else [found]
    return [_tidy(array) for array in arrays]


def _tidy(array: Array) -> Array:
    """Without objects, if all sizes turned out to be known."""
    array = np.asarray(array)
    if array.dtype != object:
        return array
    return sizes_array(cast(list[Size], array.ravel().tolist()), array.shape)


def _objects(node: OnnxNode, index: int) -> Array:
    """An input with Python's numbers in it, which compute with Dims."""
    array = cast(Array, node.held(index))
    if array.dtype.kind == "f":
        raise UnknownSize(_any_unknown(node), "cannot be computed with as a float")
    return array.astype(object)


def _any_unknown(node: OnnxNode) -> Dim:
    arrays = [cast(Array, each) for each in node.inputs if each is not None]
    return next(first_unknown(array) for array in arrays if has_unknown(array))


def _mapped(combine: Callable[..., Any]) -> Callable[[OnnxNode], Array]:
    """An operator on each element of its operands, which broadcast."""

    def evaluate(node: OnnxNode) -> Array:
        arrays = np.broadcast_arrays(*(_objects(node, index) for index in range(len(node.inputs))))
        flat = [combine(*each) for each in zip(*(array.ravel().tolist() for array in arrays), strict=True)]
        result: Array = np.empty(len(flat), object)
        result[:] = flat
        shaped = result.reshape(arrays[0].shape)
        return shaped.astype(np.bool_) if flat and all(isinstance(each, bool) for each in flat) else shaped

    return evaluate


def _quotient(dividend: Size, divisor: Size) -> Size:
    """Of integers, truncated, which is rounding down where nothing is negative."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return abs(dividend) // abs(divisor) * (1 if (dividend < 0) == (divisor < 0) else -1)
    if dividend < 0 or divisor < 1:
        raise UnknownSize(dividend if isinstance(dividend, Dim) else cast(Dim, divisor))
    return dividend // divisor


def _largest(*sizes: Size) -> Size:
    return cast(Size, max(cast(tuple[int, ...], sizes)))


def _smallest(*sizes: Size) -> Size:
    return cast(Size, min(cast(tuple[int, ...], sizes)))


def _chosen(condition: bool, left: Size, right: Size) -> Size:
    return left if condition else right


def _same(node: OnnxNode) -> Array:
    return cast(Array, node.held(0))


def _cast(node: OnnxNode) -> Array:
    array = _same(node)
    if array_dtype(node.int("to", 1)).kind not in "iu":
        refuse_unknown(array, "cannot be computed with as anything but an integer")
    return array


def _gather(node: OnnxNode) -> Array:
    return np.take(_same(node), node.array(1, "indices"), node.int("axis", 0))


def _concat(node: OnnxNode) -> Array:
    return np.concatenate([_objects(node, index) for index in range(len(node.inputs))], node.int("axis", 0))


def _unsqueeze(node: OnnxNode) -> Array:
    return np.expand_dims(_same(node), tuple(node.listed("axes", 1, 13) or ()))


def _squeeze(node: OnnxNode) -> Array:
    axes = node.listed("axes", 1, 13)
    return np.squeeze(_same(node), tuple(axes) if axes else None)


def _reshape(node: OnnxNode) -> Array:
    array, target = _same(node), node.ints_of(1, "shape")
    copied = [array.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return array.reshape(tuple(copied))


def _slice(node: OnnxNode) -> Array:
    array = _same(node)
    starts, ends, axes, steps = (
        node.listed(name, number, 10) for number, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    cut = [slice(None)] * array.ndim
    for position, (start, end) in enumerate(zip(starts or (), ends or (), strict=True)):
        step = steps[position] if steps else 1
        open_end = step < 0 and end <= -(2**31) + 1
        cut[axes[position] if axes else position] = slice(start, None if open_end else end, step)
    return array[tuple(cut)]


def _split(node: OnnxNode) -> list[Array]:
    array, axis = _same(node), node.int("axis", 0)
    sizes = node.listed("split", 1, 13)
    if sizes is None:
        return list(np.array_split(array, node.int("num_outputs", len(node.proto.output)), axis))
    return list(np.split(array, np.cumsum(sizes)[:-1], axis))


def _reduced(combine: Callable[[Any, Any], Any], empty: int, input_since: int) -> Callable[[OnnxNode], Array]:
    """A reduction of a list of sizes to one."""

    def evaluate(node: OnnxNode) -> Array:
        array = _objects(node, 0)
        axes = node.listed("axes", 1, input_since)
        if array.ndim != 1 or (axes and axes not in ([0], [-1])):
            raise UnknownSize(_any_unknown(node))
        total = reduce(combine, array.tolist(), empty)
        return sizes_array([total], [1] if node.flag("keepdims", True) else [])

    return evaluate


_OPERATORS: Mapping[str, Callable[[OnnxNode], Array | list[Array]]] = {
    "Add": _mapped(operator.add),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _mapped(_quotient),
    "Equal": _mapped(decided_equal),
    "Gather": _gather,
    "Greater": _mapped(operator.gt),
    "GreaterOrEqual": _mapped(operator.ge),
    "Identity": _same,
    "Less": _mapped(operator.lt),
    "LessOrEqual": _mapped(operator.le),
    "Max": _mapped(_largest),
    "Min": _mapped(_smallest),
    "Mod": _mapped(operator.mod),
    "Mul": _mapped(operator.mul),
    "Neg": _mapped(operator.neg),
    "ReduceProd": _reduced(operator.mul, 1, 18),
    "ReduceSum": _reduced(operator.add, 0, 13),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _mapped(operator.sub),
    "Unsqueeze": _unsqueeze,
    "Where": _mapped(_chosen),
}


def reshaped(node: OnnxNode) -> Sequence[Array] | None:
    """The result of a node that adds or drops dims of an array; None for another, and for one that is not right."""
    if node.proto.op_type not in ("Squeeze", "Unsqueeze") or node.proto.domain not in DOMAINS:
        return None
    try:
        return [_squeeze(node) if node.proto.op_type == "Squeeze" else _unsqueeze(node)]
    except (ValueError, VerifyException):
        # ONNX's own evaluator, which takes long to load, and the importer know better what is wrong.
        return None
