"""Importers of operators on matrices and on patches of images that are not products."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Node, imports
from penstock.lowering.from_onnx.nodes_selection import positions
from penstock.lowering.from_onnx.nodes_shape import sliced


@imports("Det")
@in_accumulator
def det(node: Node) -> SSAValue:
    """
    The determinant of each matrix, the product of the pivots of Gaussian elimination.

    The pivot of a column is its largest element, so that no factor is above 1: Golub and Van Loan, "Matrix
    Computations", 3.4. Rows do not change places: those that have been pivots become 0, and the sign is that of the
    permutation, which is counted.
    """
    sums, a = Arithmetic(node), node.value(0)
    *batch, rows, size = node.shape(0)
    require(rows == size, f"matrices of {rows} rows and {size} columns")
    size = int(size)
    result = sums.expand(sums.number(1.0, a), [*batch, 1, 1])
    rank = len(batch) + 2
    place = positions(node, size, rank - 2, rank)
    # 1 for the rows that have not been pivots.
    left = sums.expand(sums.number(1.0, a), [*batch, size, 1])
    for column in range(size):
        values = sums.mul(sliced(node, a, rank - 1, column, 1), left)
        sizes = sums.sub(sums.unary(graph.AbsOp, values), sums.sub(1.0, left))
        size_of_pivot = node.emit(graph.ReduceMaxOp(sizes, axes=[rank - 2]))
        largest = sums.equal(sizes, size_of_pivot)
        nowhere = node.constant(np.array(size, np.int64))
        first = node.emit(graph.ReduceMinOp(node.emit(graph.WhereOp(largest, place, nowhere)), axes=[rank - 2]))
        is_pivot = sums.equal(place, first)
        before = sums.where(sums.less(place, first), left, 0.0)
        swaps = node.emit(graph.ReduceSumOp(before, axes=[rank - 2]))
        odd = sums.less(0.5, sums.sub(swaps, sums.mul(sums.floor(sums.mul(swaps, 0.5)), 2.0)))
        row = node.emit(graph.ReduceSumOp(sums.where(is_pivot, a, 0.0), axes=[rank - 2]))
        # A NaN is nobody's equal, but stays one.
        is_number = sums.equal(size_of_pivot, size_of_pivot)
        pivot = sums.where(is_number, sliced(node, row, rank - 1, column, 1), size_of_pivot)
        result = sums.mul(result, sums.where(odd, sums.unary(graph.NegOp, pivot), pivot))
        left = sums.where(is_pivot, 0.0, left)
        if column < size - 1:
            factor = sums.div(values, sums.where(sums.equal(pivot, 0.0), 1.0, pivot))
            a = sums.sub(a, sums.mul(sums.mul(factor, left), row))
    return sums.reshape(result, batch)


@imports("Col2Im")
def col2im(node: Node) -> SSAValue:
    """
    Patches put back where they come from, and added up where they overlap: the gradient of taking them.

    Where each element goes is known at import; what falls onto the padding goes to one element more.
    """
    sums, x = Arithmetic(node), node.value(0)
    image, block = node.ints_of(1, "image shape"), node.ints_of(2, "block shape")
    rank = len(image)
    strides, dilations = node.ints("strides") or [1] * rank, node.ints("dilations") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    batches, rows, columns = node.shape(0)
    window = math.prod(block)
    require(len(block) == rank and rows % window == 0, f"patches of shape {block} for {rows} rows")
    counts = [
        (image[dim] + pads[dim] + pads[dim + rank] - dilations[dim] * (block[dim] - 1) - 1) // strides[dim] + 1
        for dim in range(rank)
    ]
    require(columns == math.prod(counts), f"{columns} patches, where images of shape {image} have {counts}")
    whole = math.prod(image)
    index = np.zeros([*block, *counts], np.int64)
    outside = np.zeros(index.shape, np.bool_)
    for dim in range(rank):
        tap = np.arange(block[dim]).reshape([-1 if each == dim else 1 for each in range(2 * rank)]) * dilations[dim]
        step = np.arange(counts[dim]).reshape([-1 if each == rank + dim else 1 for each in range(2 * rank)])
        place = tap + step * strides[dim] - pads[dim]
        outside |= (place < 0) | (place >= image[dim])
        index = index * image[dim] + place
    index[outside] = whole
    channels = rows // window
    flat = sums.reshape(x, [batches * channels, window * columns])
    where = sums.expand(sums.constant(index.reshape(1, -1), "places"), [batches * channels, window * columns])
    zeros = sums.expand(sums.number(0, x), [batches * channels, whole + 1])
    total = node.emit(graph.ScatterElementsOp(zeros, where, flat, axis=1, reduction="add"))
    return sums.reshape(sliced(node, total, 1, 0, whole), [batches, channels, *image])
