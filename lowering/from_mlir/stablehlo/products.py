# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of StableHLO."""

from __future__ import annotations

import math
from typing import Any, cast

from xdsl.ir import Attribute

from penstock.dialects import graph
from penstock.lowering.from_mlir.syntax import ForeignOp
from penstock.lowering.from_mlir.table import (
    Unsupported,
    converts,
    int_of,
    items_of,
    listed,
    numbers_of,
    pair_of,
    plain,
    result_of,
)
from penstock.passes.graph.terms import Term


@converts("dot_general", "dot")
def _dot_general(code: Any, op: ForeignOp, a: Term, b: Term) -> Term:
    """A product of matrices: the batch first, then what is left of the one side, and of the other."""
    if op.short == "dot":
        batch, contracted = (list[int](), list[int]()), ([len(a.shape) - 1], [0])
    elif (generic := op.get("dot_dimension_numbers")) is not None:
        text = str(generic)
        batch, contracted = (
            (listed(text, f"lhs_{what}_dimensions"), listed(text, f"rhs_{what}_dimensions"))
            for what in ("batching", "contracting")
        )
    else:
        batch, contracted = pair_of(op, "batching_dims"), pair_of(op, "contracting_dims")
    result = result_of(op)
    sides: list[Term] = []
    for x, of_batch, of_sum, is_left in ((a, batch[0], contracted[0], True), (b, batch[1], contracted[1], False)):
        free = [dim for dim in range(len(x.shape)) if dim not in of_batch and dim not in of_sum]
        order = [*of_batch, *free, *of_sum] if is_left else [*of_batch, *of_sum, *free]
        rows, inner = (math.prod(x.shape[dim] for dim in dims) for dims in (free, of_sum))
        sizes = [x.shape[dim] for dim in of_batch]
        sides.append(x.transpose(order).reshape([*sizes, *((rows, inner) if is_left else (inner, rows))]))
    element = result.element_type
    accumulator = None if element == a.element_type else element
    found = code.emit(graph.MatmulOp(sides[0].value, sides[1].value, accumulator=accumulator))
    return found.reshape(result.get_shape())


@converts("convolution")
def _convolution(code: Any, op: ForeignOp, x: Term, w: Term) -> Term:
    numbers, window = op.get("dim_numbers"), op.get("window")
    if numbers is None or int_of(op, "batch_group_count", default=1) != 1:
        raise Unsupported("in groups of the batch" if numbers is not None else "in generic form")
    images, filters, results = ([str(plain(each)) for each in items_of(side)] for side in items_of(numbers))
    rank = len(images) - 2
    space = [str(dim) for dim in range(rank)]
    said: dict[str, Attribute] = cast(Any, window).data if window is not None else {}
    ones = [1] * rank
    strides, spread, dilations = (
        numbers_of(said[name]) if name in said else ones for name in ("stride", "lhs_dilate", "rhs_dilate")
    )
    pads = [numbers_of(each) for each in items_of(said["pad"])] if "pad" in said else [[0, 0]] * rank
    backwards = [
        dim
        for dim, each in enumerate(items_of(said["reverse"]) if "reverse" in said else [])
        if plain(each) in (1, "true")
    ]
    x = x.transpose([images.index(letter) for letter in ("b", "f", *space)]).spread([1, 1, *spread])
    w = w.transpose([filters.index(letter) for letter in ("o", "i", *space)])
    w = w.reversed([dim + 2 for dim in backwards])
    low, high = ([pair[side] for pair in pads] for side in (0, 1))
    if min(*low, *high) < 0:
        x, low, high = x.padded([0, 0, *low], [0, 0, *high]), [0] * rank, [0] * rank
    element = result_of(op).element_type
    y = code.emit(
        graph.ConvOp(
            x.value,
            w.value,
            strides=strides,
            pads=[*low, *high],
            dilations=dilations,
            group=int_of(op, "feature_group_count", default=1),
            accumulator=None if element == x.element_type else element,
        )
    )
    return y.transpose([["b", "f", *space].index(letter) for letter in results])
