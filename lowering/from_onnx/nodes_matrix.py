# SPDX-License-Identifier: Apache-2.0
"""
Importers of operators on matrices: determinants, Einstein sums, and Fourier transforms as products with constants.

A product with the matrix of a transform takes n^2 steps where a fast one takes n log n, but it is a contraction, which
is what machines are good at; frames of speech are short. Complex numbers are pairs in the last dimension.
"""

from __future__ import annotations

import functools
import operator

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.graph.base import is_float, normalized_axis, require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.node import OnnxNode, Unsupported, imports
from penstock.lowering.from_onnx.nodes_indexing import first_index
from penstock.lowering.from_onnx.nodes_sampling import is_odd
from penstock.passes.graph.terms import Term


@imports("Det")
@in_accumulator
def det(node: OnnxNode) -> SSAValue:
    """
    The determinant of each matrix, the product of the pivots of Gaussian elimination.

    The pivot of a column is its largest element, so that no factor is above 1: Golub and Van Loan, "Matrix
    Computations", 3.4. Rows do not change places: those that have been pivots become 0, and the sign is that of the
    permutation, which is counted.
    """
    code, a = node.code, node.code.input(0)
    *batch, rows, size = a.shape
    require(rows == size, f"matrices of {rows} rows and {size} columns")
    size, rank = int(size), len(batch) + 2
    one = code.number(1.0, a.element_type)
    result, left = one.expand([*batch, 1, 1]), one.expand([*batch, size, 1])
    index = code.positions(size, rank - 2, rank)
    for column in range(size):
        # `left` is 1 for the rows that have not been pivots.
        values = a.cut(rank - 1, column, 1) * left
        sizes = abs(values) - (1.0 - left)
        size_of_pivot = code.emit(graph.ReduceMaxOp(sizes.value, axes=[rank - 2]))
        first = first_index(sizes.equal(size_of_pivot), index, rank - 2, size)
        is_pivot = index.equal(first)
        odd = is_odd((index < first).where(left, 0.0).sum([rank - 2]))
        row = is_pivot.where(a, 0.0).sum([rank - 2])
        # A NaN equals nothing, but stays one.
        is_number = size_of_pivot.equal(size_of_pivot)
        pivot = is_number.where(row.cut(rank - 1, column, 1), size_of_pivot)
        result = result * odd.where(-pivot, pivot)
        left = is_pivot.where(0.0, left)
        if column < size - 1:
            factor = values / pivot.equal(0.0).where(1.0, pivot)
            a = a - factor * left * row
    return result.reshape(batch).value


@imports("Einsum")
def einsum(node: OnnxNode) -> SSAValue:
    """Each operand brought to all letters, multiplied, and summed over the letters that the result lacks."""
    equation = node.string("equation", "").replace(" ", "")
    given, arrow, result_term = equation.partition("->")
    terms = given.split(",")
    require(len(terms) == len(node.inputs), f'"{equation}" is about {len(terms)} operands, not {len(node.inputs)}')
    values = [_lettered(node, index, term) for index, term in enumerate(terms)]
    names = [letters for _, letters in values]
    if not arrow:
        seen = given.replace(",", "").replace(".", "")
        result_term = "..." + "".join(sorted(letter for letter in set(seen) if seen.count(letter) == 1))
    batch = max((sum(name.isdigit() for name in letters) for letters in names), default=0)
    result = _letters(result_term, batch)
    order = list(dict.fromkeys([*result, *(name for letters in names for name in letters)]))
    if len(values) == 2 and (product := _as_matmul(values, result)) is not None:
        return product.value
    element, axes = node.type(0).element_type, [index for index, name in enumerate(order) if name not in result]
    # One product alone is rounded once in any case, and what is only transposed not at all.
    wide = accumulator_of(element) if axes or len(values) > 2 else element
    factors = (_aligned(value, letters, order).cast(wide) for value, letters in values)
    return functools.reduce(operator.mul, factors).sum(axes, keepdims=False).cast(element).value


def _letters(term: str, batch: int) -> list[str]:
    """The names of the dimensions of a term; those of an ellipsis are numbers, which count from its end."""
    before, dots, after = term.partition("...")
    return [*before, *(str(number) for number in reversed(range(batch if dots else 0))), *after]


def _lettered(node: OnnxNode, index: int, term: str) -> tuple[Term, list[str]]:
    """An operand and the names of its dimensions, all different: of two equal ones, the diagonal is taken."""
    value, rank = node.code.input(index), len(node.shape(index))
    letters = _letters(term, rank - len(term.replace("...", "")))
    require(len(letters) == rank, f'"{term}" for an operand of {rank} dimensions')
    for name in dict.fromkeys(letters):
        while letters.count(name) > 1:
            first = letters.index(name)
            second = letters.index(name, first + 1)
            size = value.shape[first]
            shape = [size if dim in (first, second) else 1 for dim in range(len(letters))]
            eye = node.code.constant(np.eye(size, dtype=np.bool_).reshape(shape), "diagonal")
            value = eye.where(value, 0).sum([second], keepdims=False)
            del letters[second]
    return value, letters


def _aligned(value: Term, letters: list[str], order: list[str]) -> Term:
    """A value with its dimensions in the given order, and sizes of 1 for those that it lacks."""
    perm = sorted(range(len(letters)), key=lambda dim: order.index(letters[dim]))
    ordered = value.transpose(perm)
    if len(order) == len(letters):
        return ordered
    sizes = dict(zip(letters, value.shape, strict=True))
    return ordered.reshape([sizes.get(name, 1) for name in order])


def _as_matmul(values: list[tuple[Term, list[str]]], result: list[str]) -> Term | None:
    """A product of matrices, if each operand has one letter of its own and they share one that is summed."""
    (a, left), (b, right) = values
    shared = [name for name in left if name in right and name not in result]
    own = [[name for name in one if name not in other] for one, other in ((left, right), (right, left))]
    if len(shared) != 1 or any(len(each) != 1 or each[0] not in result for each in own):
        return None
    rows, columns = own[0][0], own[1][0]
    batch = [name for name in result if name not in (rows, columns)]
    if any(name not in left or name not in right for name in batch):
        return None
    product = _aligned(a, left, [*batch, rows, shared[0]]) @ _aligned(b, right, [*batch, shared[0], columns])
    return _aligned(product, [*batch, rows, columns], result)


def transform(size: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
    """
    The matrix (size * parts, results * result parts) of a discrete Fourier transform of `length`, in float64.

    There are `size` numbers of 1 part, if they are real, or 2; the signal is cut off or filled with zeros to `length`.
    `onesided` leaves out what is conjugate to the rest: of the result, or, of the inverse, whose result is real then,
    of the input.
    """
    unit = np.eye(size)
    if inverse and onesided:
        columns = [np.fft.irfft(unit * factor, n=length, axis=1)[..., np.newaxis] for factor in (1, 1j)[:parts]]
    else:
        found = (np.fft.ifft if inverse else np.fft.fft)(unit, n=length, axis=1)
        if onesided:
            found = found[:, : length // 2 + 1]
        real, imaginary = np.stack([found.real, found.imag], axis=2), np.stack([-found.imag, found.real], axis=2)
        columns = [real, imaginary][:parts]
    return np.stack(columns, axis=1).reshape(size * parts, -1)


def _transformed(node: OnnxNode, rows: Term, length: int, *, inverse: bool, onesided: bool) -> Term:
    """The transforms of the last two dimensions (numbers, parts), in the type of the rows."""
    *others, size, parts = rows.shape
    require(is_float(rows.element_type), f"numbers of type {rows.element_type}")
    require(parts in (1, 2), f"numbers of {parts} parts, not 1 or 2")
    if onesided and not inverse and parts == 2:
        raise Unsupported("onesided of complex numbers")
    matrix = transform(int(size), parts, length, inverse=inverse, onesided=onesided)
    result_parts = 1 if inverse and onesided else 2
    flat = rows.reshape([*others, size * parts]) @ node.code.constant(matrix, "transform", rows.element_type)
    return flat.reshape([*others, matrix.shape[1] // result_parts, result_parts])


@imports("DFT")
def dft(node: OnnxNode) -> SSAValue:
    """The axis is an attribute before operator set 20, then an input."""
    x, rank = node.code.input(0), len(node.shape(0))
    if node.opset < 20:
        axis = node.int("axis", 1)
    else:
        axis = node.int_of(2, "axis") if node.has(2) else -2
    axis = normalized_axis(axis, rank)
    inverse, onesided = node.flag("inverse", False), node.flag("onesided", False)
    require(axis != rank - 1, "the last dimension holds the parts of numbers: it cannot be transformed")
    size = int(x.shape[axis])
    length = node.int_of(1, "length") if node.has(1) else 2 * (size - 1) if inverse and onesided else size
    require(length > 0, f"a transform of length {length}")
    perm = [*(dim for dim in range(rank - 1) if dim != axis), axis, rank - 1]
    y = _transformed(node, x.transpose(perm), length, inverse=inverse, onesided=onesided)
    return y.transpose([perm.index(dim) for dim in range(rank)]).value


@imports("STFT")
def stft(node: OnnxNode) -> SSAValue:
    """The transforms of frames of a signal, which may overlap, each multiplied by a window."""
    code, x = node.code, node.code.input(0)
    batches, size, parts = (*x.shape, 1)[:3]
    step = node.int_of(1, "frame step")
    if node.has(3):
        length = node.int_of(3, "frame length")
    else:
        length = node.shape(2)[0] if node.has(2) else int(size)
    require(0 < length <= size and step > 0, f"frames of {length}, {step} apart, of a signal of {size}")
    frames = 1 + (int(size) - length) // step
    where = np.arange(frames, dtype=np.int64)[:, np.newaxis] * step + np.arange(length, dtype=np.int64)
    signal = x.reshape([batches, size, parts])
    rows = code.emit(graph.GatherOp(signal.value, code.constant(where, "frames").value, axis=1))
    if node.has(2):
        require(tuple(node.shape(2)) == (length,), f"a window of shape {list(node.shape(2))} for frames of {length}")
        rows = rows * code.input(2, x.element_type).reshape([length, 1])
    return _transformed(node, rows, length, inverse=False, onesided=node.flag("onesided", True)).value
