# SPDX-License-Identifier: Apache-2.0
"""Operations of TOSA that move elements, and that combine them along one dimension."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, i32

from penstock.dialects import graph
from penstock.dialects.graph.base import is_bool, is_float
from penstock.lowering.from_mlir.stablehlo.reductions import first_extremum
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import Unsupported, elements_of, int_of, result_of
from penstock.lowering.from_mlir.tosa.numbers import ints, known, points, tosa
from penstock.passes.graph.terms import Term


@tosa("const", "const_shape")
def _const(code: Any, op: ForeignOp) -> Term:
    value = op.get("value") or op.get("values")
    if not isinstance(value, DenseIntOrFPElementsAttr):
        raise Unsupported(f"with the value {value}")
    if isinstance(value.get_element_type(), IndexType):
        sizes = [int(each) for each in value.get_values()]
        return code.array(np.array(sizes, np.int64), "sizes")
    (array,) = elements_of(cast("graph.Dense", value))
    return code.array(array, "constant")


@tosa("reshape")
def _reshape(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    return x.reshape(result_of(op).get_shape())


@tosa("transpose")
def _transpose(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    return x.transpose(ints(code, op, (x, *rest), 1, "perms"))


@tosa("reverse")
def _reverse(code: Any, op: ForeignOp, x: Term) -> Term:
    return x.reversed([int_of(op, "axis")])


@tosa("concat")
def _concat(code: Any, op: ForeignOp, *xs: Term) -> Term:
    return code.emit(graph.ConcatOp([x.value for x in xs], axis=int_of(op, "axis")))


@tosa("slice")
def _slice(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    return x.slice(ints(code, op, (x, *rest), 1, "start"), ints(code, op, (x, *rest), 2, "size"))


@tosa("tile")
def _tile(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    times = ints(code, op, (x, *rest), 1, "multiples")
    apart = [size for pair in zip([1] * len(times), x.shape, strict=True) for size in pair]
    grown = [size for pair in zip(times, x.shape, strict=True) for size in pair]
    return x.reshape(apart).expand(grown).reshape(result_of(op).get_shape())


@tosa("pad")
def _pad(code: Any, op: ForeignOp, x: Term, *rest: Term) -> Term:
    widths = np.array(ints(code, op, (x, *rest), 1, "padding")).reshape(-1, 2)
    (zero,) = points(code, op, (), 0, "input_zp")
    value = float(known(code, rest[1], "a value").ravel()[0]) if len(rest) > 1 else zero
    return x.padded([int(each) for each in widths[:, 0]], [int(each) for each in widths[:, 1]], value)


@tosa("gather")
def _gather(code: Any, op: ForeignOp, values: Term, indices: Term) -> Term:
    """Rows [n, w] of values [n, k, c]: those at [n, w] of the indices."""
    batch, _, channels = values.shape
    if batch == 1:
        rows = values.reshape(values.shape[1:])
        found = code.emit(graph.GatherOp(rows.value, indices.reshape(indices.shape[1:]).value, axis=0))
        return found.reshape([batch, *found.shape])
    wide = indices.reshape([*indices.shape, 1]).expand([*indices.shape, channels])
    return code.emit(graph.GatherElementsOp(values.value, wide.value, axis=1))


@tosa("scatter")
def _scatter(code: Any, op: ForeignOp, values: Term, indices: Term, rows: Term) -> Term:
    """`values` with rows at other places."""
    wide = indices.reshape([*indices.shape, 1]).expand(rows.shape)
    return code.emit(graph.ScatterElementsOp(values.value, wide.value, rows.value, axis=1))


_REDUCTIONS = {
    "reduce_sum": graph.ReduceSumOp,
    "reduce_max": graph.ReduceMaxOp,
    "reduce_min": graph.ReduceMinOp,
    "reduce_prod": graph.ReduceProdOp,
    "reduce_product": graph.ReduceProdOp,
    "reduce_any": graph.ReduceMaxOp,
    "reduce_all": graph.ReduceMinOp,
}


@tosa(*_REDUCTIONS)
def _reduce(code: Any, op: ForeignOp, x: Term) -> Term:
    element = x.element_type
    taken = x.cast(i32) if is_bool(element) else x
    return code.emit(_REDUCTIONS[op.short](taken.value, axes=[int_of(op, "axis")])).cast(element)


@tosa("argmax")
def _argmax(code: Any, op: ForeignOp, x: Term) -> Term:
    if is_float(x.element_type) and "IGNORE" in str(op.get("nan_mode") or ""):
        raise Unsupported("of what is no number")
    _, index = first_extremum(code, x, int_of(op, "axis"), result_of(op).element_type, is_largest=True)
    return index
