"""
Importers of Fourier transforms, as products with matrices that are known at import.

A product takes n^2 steps where a fast transform takes n log n, but it is a contraction, which is what machines are
good at; frames of speech are short. Complex numbers are pairs in the last dimension.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float, normalized_axis, require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Node, Unsupported, imports


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
        pairs = np.stack([found.real, found.imag], axis=2)
        turned = np.stack([-found.imag, found.real], axis=2)
        columns = [pairs, turned][:parts]
    return np.stack(columns, axis=1).reshape(size * parts, -1)


@imports("DFT")
def dft(node: Node) -> SSAValue:
    """The axis is an attribute before operator set 20, then an input."""
    sums, x = Arithmetic(node), node.value(0)
    shape = node.shape(0)
    if node.opset < 20:
        axis = node.int("axis", 1)
    else:
        axis = int(node.array(2, "axis").ravel()[0]) if node.has(2) else -2
    axis = normalized_axis(axis, len(shape))
    inverse, onesided = node.flag("inverse", False), node.flag("onesided", False)
    size, parts = int(shape[axis]), shape[-1]
    require(axis != len(shape) - 1, "the last dimension holds the parts of numbers: it cannot be transformed")
    require(parts in (1, 2), f"numbers of {parts} parts, not 1 or 2")
    if node.has(1):
        length = int(node.array(1, "length").ravel()[0])
    else:
        length = 2 * (size - 1) if inverse and onesided else size
    require(length > 0, f"a transform of length {length}")
    if onesided and not inverse and parts == 2:
        raise Unsupported("onesided of complex numbers")
    last = len(shape) - 2
    perm = [*(dim for dim in range(last + 1) if dim != axis), axis, last + 1]
    rows = sums.transpose(x, *perm)
    others = [shape[dim] for dim in perm[:last]]
    matrix = transform(size, parts, length, inverse=inverse, onesided=onesided)
    flat = _product(node, sums.reshape(rows, [*others, size * parts]), matrix)
    result_parts = 1 if inverse and onesided else 2
    y = sums.reshape(flat, [*others, matrix.shape[1] // result_parts, result_parts])
    return sums.transpose(y, *(perm.index(dim) for dim in range(len(shape))))


def _product(node: Node, rows: SSAValue, matrix: Array) -> SSAValue:
    """The product with a constant, in the type of the rows."""
    sums, element = Arithmetic(node), tensor_of(rows).element_type
    require(is_float(element), f"numbers of type {element}")
    return sums.matmul(rows, sums.constant(matrix, "transform", element))


@imports("STFT")
def stft(node: Node) -> SSAValue:
    """The transforms of frames of a signal, which may overlap, each multiplied by a window."""
    sums, x = Arithmetic(node), node.value(0)
    shape = list(node.shape(0))
    if len(shape) == 2:
        shape = [*shape, 1]
    batches, size, parts = shape[0], int(shape[1]), shape[2]
    step = int(node.array(1, "frame step").ravel()[0])
    if node.has(3):
        length = int(node.array(3, "frame length").ravel()[0])
    else:
        length = node.shape(2)[0] if node.has(2) else size
    onesided = node.flag("onesided", True)
    require(0 < length <= size and step > 0, f"frames of {length}, {step} apart, of a signal of {size}")
    require(parts in (1, 2), f"numbers of {parts} parts, not 1 or 2")
    if onesided and parts == 2:
        raise Unsupported("onesided of complex numbers")
    frames = 1 + (size - length) // step
    where = np.arange(frames, dtype=np.int64)[:, np.newaxis] * step + np.arange(length, dtype=np.int64)
    rows = node.emit(graph.GatherOp(sums.reshape(x, shape), sums.constant(where, "frames"), axis=1))
    if node.has(2):
        require(tuple(node.shape(2)) == (length,), f"a window of shape {list(node.shape(2))} for frames of {length}")
        rows = sums.mul(rows, sums.reshape(sums.cast(node.value(2), tensor_of(x).element_type), [length, 1]))
    matrix = transform(length, parts, length, inverse=False, onesided=onesided)
    y = _product(node, sums.reshape(rows, [batches, frames, length * parts]), matrix)
    return sums.reshape(y, [batches, frames, matrix.shape[1] // 2, 2])
