# SPDX-License-Identifier: Apache-2.0
"""Operations of StableHLO that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    StringAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import (
    Unsupported,
    converts,
    elements_of,
    int_of,
    ints_of,
    listed,
    numbers_of,
    plain,
    reducer_of,
    result_of,
)
from penstock.passes.graph.terms import Term


@converts("constant")
def _constant(code: Any, op: ForeignOp) -> Term:
    value = op.get("value")
    if not isinstance(value, DenseIntOrFPElementsAttr):
        raise Unsupported(f"with the value {value}")
    (array,) = elements_of(cast("graph.Dense", value))
    return code.array(array, "constant")


@converts("iota")
def _iota(code: Any, op: ForeignOp) -> Term:
    result, dim = result_of(op), int_of(op, "dim", "iota_dimension")
    shape = result.get_shape()
    numbers = np.arange(shape[dim]).astype(numpy_dtype(result.element_type))
    line = code.array(numbers.reshape([-1 if each == dim else 1 for each in range(len(shape))]), "iota")
    return line.expand(shape)


@converts("broadcast_in_dim")
def _broadcast_in_dim(code: Any, op: ForeignOp, x: Term) -> Term:
    result, dims = result_of(op).get_shape(), ints_of(op, "dims", "broadcast_dimensions")
    if not dims:
        return x.expand(result)
    order = sorted(range(len(dims)), key=lambda dim: dims[dim])
    x = x.transpose(order)
    sizes = iter(x.shape)
    return x.reshape([next(sizes) if dim in dims else 1 for dim in range(len(result))]).expand(result)


@converts("reshape")
def _reshape(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.reshape(result_of(op).get_shape())


@converts("transpose")
def _transpose(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.transpose(ints_of(op, "dims", "permutation"))


@converts("reverse")
def _reverse(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.reversed(ints_of(op, "dims", "dimensions"))


@converts("concatenate")
def _concatenate(code: Any, op: ForeignOp, *xs: Term) -> Term:
    return code.emit(graph.ConcatOp([x.value for x in xs], axis=int_of(op, "dim", "dimension")))


@converts("slice")
def _slice(code: Any, op: ForeignOp, x: Term) -> Term:
    ranges = op.get("ranges")
    if ranges is None:
        starts, steps = ints_of(op, "start_indices"), ints_of(op, "strides")
    else:
        rows = [numbers_of(each) for each in cast(ArrayAttr[Attribute], ranges)]
        starts, steps = [row[0] for row in rows], [row[2] for row in rows]
    return x.slice(starts, result_of(op).get_shape(), steps)


@converts("pad")
def _pad(code: Any, op: ForeignOp, x: Term, value: Term) -> Term:
    low, high, inner = (
        ints_of(op, *names)
        for names in (("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding"))
    )
    number = code.known(value)
    if number is None:
        raise Unsupported("with a value that is known only when the program runs")
    if any(inner):
        if number != 0:
            raise Unsupported(f"with {number} between the elements")
        x = x.spread([each + 1 for each in inner])
    return x.padded(low, high, float(number))


def _clamped(code: Any, starts: Sequence[Term], shape: Sequence[int], sizes: Sequence[int]) -> list[Term]:
    """Where a slice begins that lies inside."""
    return [
        start.cast(i64).apply("max", 0).apply("min", extent - size)
        for start, extent, size in zip(starts, shape, sizes, strict=True)
    ]


@converts("dynamic_slice")
def _dynamic_slice(code: Any, op: ForeignOp, x: Term, *starts: Term) -> Term:
    sizes = result_of(op).get_shape()
    for axis, start in enumerate(_clamped(code, starts, x.shape, sizes)):
        if (known := code.known(start)) is not None:
            x = x.cut(axis, int(known), sizes[axis])
            continue
        places = code.array(np.arange(sizes[axis]), "places") + start
        x = x.emit(graph.GatherOp(x.value, places.value, axis=axis))
    return x


@converts("dynamic_update_slice")
def _dynamic_update_slice(code: Any, op: ForeignOp, x: Term, update: Term, *starts: Term) -> Term:
    """Where all is known, the parts around the update; else a scatter."""
    shape, sizes = x.shape, update.shape
    begins = _clamped(code, starts, shape, sizes)
    known = [code.known(begin) for begin in begins]
    part = [axis for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)) if extent != size]
    if len(part) == 1 and (found := known[part[0]]) is not None:
        axis, first = part[0], int(found)
        last = first + sizes[axis]
        before = [x.cut(axis, 0, first).value] if first else []
        after = [x.cut(axis, last, shape[axis] - last).value] if last < shape[axis] else []
        return code.emit(graph.ConcatOp([*before, update.value, *after], axis=axis))
    if not part:
        return update
    # Of the dimensions behind the last one that is updated in part, an index says nothing.
    outer = sizes[: part[-1] + 1]
    rows: list[Term] = []
    for axis, (begin, size) in enumerate(zip(begins, outer, strict=False)):
        places = code.array(np.arange(size), "places") + begin
        rows.append(places.reshape([-1 if dim == axis else 1 for dim in range(len(outer))]).expand(outer))
    index = code.emit(graph.ConcatOp([row.reshape([*outer, 1]).value for row in rows], axis=len(outer)))
    return code.emit(graph.ScatterNdOp(x.value, index.value, update.value))


@converts("gather")
def _gather(code: Any, op: ForeignOp, x: Term, indices: Term) -> Term:
    """Of parts that are one index wide in the dimensions that are looked up, and whole in all others."""
    said = str(op.get("dimension_numbers"))
    offset, collapsed, mapped, batching = (
        listed(said, name)
        for name in ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims")
    )
    vector = listed(said, "index_vector_dim") or [0]
    sizes, result = ints_of(op, "slice_sizes"), result_of(op).get_shape()
    whole = all(size == (1 if dim in mapped else x.shape[dim]) for dim, size in enumerate(sizes))
    rank = len(indices.shape)
    if batching or not whole or collapsed != sorted(mapped) or vector != [rank - 1]:
        raise Unsupported(f"of parts that are not whole: {said}")
    first = [*mapped, *(dim for dim in range(len(x.shape)) if dim not in mapped)]
    # What is outside is moved inside.
    limits = np.array([x.shape[dim] - 1 for dim in mapped])
    inside = indices.cast(i64).apply("max", 0).apply("min", code.array(limits, "limits"))
    found = code.emit(graph.GatherNdOp(x.transpose(first).value, inside.value))
    batch = [dim for dim in range(len(result)) if dim not in offset]
    order = [*batch, *offset]
    return found.transpose([order.index(dim) for dim in range(len(result))])


_COMBINED = {"": "none", "add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}
"""The reduction of a scatter by the operation of a region, "" for one that takes the update."""


@converts("scatter")
def _scatter(code: Any, op: ForeignOp, x: Term, indices: Term, updates: Term) -> Term:
    """
    Of parts that are one index wide in the dimensions that are looked up, and whole in all others. An update that lies
    outside changes nothing: it goes to an element more.
    """
    said = str(op.get("scatter_dimension_numbers"))
    window, inserted, mapped, batching = (
        listed(said, name)
        for name in (
            "update_window_dims",
            "inserted_window_dims",
            "scatter_dims_to_operand_dims",
            "input_batching_dims",
        )
    )
    vector, rank = listed(said, "index_vector_dim") or [0], len(indices.shape)
    if batching or not mapped or inserted != sorted(mapped) or vector != [rank - 1]:
        raise Unsupported(f"of parts that are not whole: {said}")
    ended = op.bodies[0].block.last_op
    takes_update = ended is not None and ended.operands[0] is op.bodies[0].block.args[1]
    word = "" if takes_update else reducer_of(op)
    if word not in _COMBINED:
        raise Unsupported(f"by {word}")
    first = [*mapped, *(dim for dim in range(len(x.shape)) if dim not in mapped)]
    moved = x.transpose(first)
    sizes = moved.shape
    grown = moved.padded([0] * len(sizes), [1, *[0] * (len(sizes) - 1)])
    places = indices.cast(i64)
    limits = code.array(np.array(sizes[: len(mapped)]), "limits")
    misses = (places < 0).apply("or", places.apply("less", limits).apply("not")).cast(i32)
    missed = code.emit(graph.ReduceMaxOp(misses.value, axes=[rank - 1])) > 0
    beyond = code.array(np.array([sizes[0], *[0] * (len(mapped) - 1)]), "beyond")
    batch = [dim for dim in range(len(updates.shape)) if dim not in window]
    values = updates.transpose([*batch, *window])
    done = graph.ScatterNdOp(grown.value, missed.where(beyond, places).value, values.value, reduction=_COMBINED[word])
    return code.emit(done).cut(0, 0, sizes[0]).transpose([first.index(dim) for dim in range(len(first))])


@converts("custom_call")
def _custom_call(code: Any, op: ForeignOp, *xs: Term) -> Term:
    target = op.get("target") or op.get("call_target_name")
    name = plain(target) if isinstance(target, StringAttr) else cast(Any, target).string_value()
    if name == "Sharding":
        return xs[0]
    raise Unsupported(f"it calls {name}")


@converts("optimization_barrier")
def _optimization_barrier(code: Any, op: ForeignOp, *xs: Term) -> Sequence[Term]:
    return xs
