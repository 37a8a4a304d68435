# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import normalized_axis, require
from penstock.dialects.graph.sizes import decided_equal, is_known, may_equal
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import Held, OnnxNode, Unsupported, array_dtype, imports, one_of
from penstock.lowering.from_onnx.size_arithmetic import sizes_array
from penstock.passes.graph.terms import Term

OPEN_END = 2**31 - 1
"""Exporters write "to the end" as the largest number of 32 or 64 bits."""

MAX_SLICES = 64
"""Gathers by constant indices and pads with other elements become at most this many slices."""


@imports("Reshape")
def reshape(node: OnnxNode) -> SSAValue:
    """A size of 0 copies that of the input, unless `allowzero`; one of -1 is computed."""
    given, target = node.shape(0), node.sizes_of(1, "shape")
    if not node.flag("allowzero", False):
        for axis, size in enumerate(target):
            fits = size != 0 or axis < len(given)
            require(fits, f"the shape {target} has a 0 without a counterpart in {list(given)}")
        target = [given[axis] if size == 0 else size for axis, size in enumerate(target)]
    return node.emit(graph.ReshapeOp(node.value(0), target))


@imports("Flatten")
def flatten(node: OnnxNode) -> SSAValue:
    shape, axis = node.shape(0), node.int("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return node.emit(graph.ReshapeOp(node.value(0), [math.prod(shape[:axis]), math.prod(shape[axis:])]))


@imports("Squeeze")
def squeeze(node: OnnxNode) -> SSAValue:
    shape, axes = node.shape(0), node.listed("axes", 1, 13)
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if decided_equal(size, 1)]
    dropped = [normalized_axis(axis, len(shape)) for axis in axes]
    for axis in dropped:
        require(may_equal(shape[axis], 1), f"axis {axis} of {list(shape)} has no size of 1")
    kept = [size for axis, size in enumerate(shape) if axis not in dropped]
    return node.emit(graph.ReshapeOp(node.value(0), kept))


@imports("Unsqueeze")
def unsqueeze(node: OnnxNode) -> SSAValue:
    given = node.listed("axes", 1, 13) or []
    rank = len(node.shape(0)) + len(given)
    axes, sizes = [normalized_axis(axis, rank) for axis in given], iter(node.shape(0))
    require(len(set(axes)) == len(axes), f"an axis is there twice in {axes}")
    return node.emit(graph.ReshapeOp(node.value(0), [1 if axis in axes else next(sizes) for axis in range(rank)]))


@imports("Transpose")
def transpose(node: OnnxNode) -> SSAValue:
    rank = len(node.shape(0))
    perm = node.ints("perm")
    perm = list(range(rank))[::-1] if perm is None else perm
    return node.emit(graph.TransposeOp(node.value(0), perm=perm))


@imports("Concat")
def concat(node: OnnxNode) -> SSAValue:
    return node.emit(graph.ConcatOp(node.values(), axis=node.int("axis", 1)))


@imports("Expand")
def expand(node: OnnxNode) -> SSAValue:
    return node.emit(graph.ExpandOp(node.value(0), node.sizes_of(1, "shape")))


@imports("Tile")
def tile(node: OnnxNode) -> SSAValue:
    """Repeats as a broadcast along new dimensions of size 1, folded into those they precede."""
    shape, repeats = node.shape(0), node.sizes_of(1, "repeats")
    require(len(repeats) == len(shape), f"{len(repeats)} repeats for {len(shape)} dimensions")
    split = [size for each in shape for size in (1, each)]
    wide = [size for times, each in zip(repeats, shape, strict=True) for size in (times, each)]
    result = [a * b for a, b in zip(shape, repeats, strict=True)]
    return node.code.input(0).reshape(split).expand(wide).reshape(result).value


def repeated(x: Term, axis: int, times: int) -> Term:
    """Each element along an axis several times in a row."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = x.reshape([*before, size, 1, *after]).expand([*before, size, times, *after])
    return wide.reshape([*before, size * times, *after])


@imports("Split")
def split(node: OnnxNode) -> list[Held]:
    """Without sizes, parts are equal."""
    x, shape = node.code.input(0), node.shape(0)
    axis = normalized_axis(node.int("axis", 0), len(shape))
    if (sizes := node.listed("split", 1, 13)) is None:
        count = node.int("num_outputs", len(node.proto.output))
        each = -(-shape[axis] // count)
        sizes = [min(each, max(shape[axis] - index * each, 0)) for index in range(count)]
    require(decided_equal(sum(sizes), shape[axis]), f"the sizes {sizes} do not sum up to {shape[axis]}")
    starts = np.cumsum([0, *sizes])
    return [x.cut(axis, int(start), size).value for start, size in zip(starts, sizes, strict=False)]


@imports("Slice")
def slice_(node: OnnxNode) -> SSAValue:
    """Starts, ends, axes and steps are attributes before operator set 10, then inputs."""
    shape = node.shape(0)
    if node.opset < 10:
        starts, ends = node.ints("starts") or [], node.ints("ends") or []
        axes, steps = node.ints("axes"), None
    else:
        starts, ends = node.sizes_of(1, "starts"), node.sizes_of(2, "ends")
        axes = node.ints_of(3, "axes") if node.has(3) else None
        steps = node.ints_of(4, "steps") if node.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    firsts, sizes, strides = [0] * len(shape), list(shape), [1] * len(shape)
    require(
        len(starts) == len(ends) == len(axes) == len(steps),
        f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps",
    )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = normalized_axis(axis, len(shape))
        require(step != 0, "a step is 0")
        extent, strides[axis] = shape[axis], step
        if not is_known(extent) and is_known(start) and start >= 0 and step > 0 and (end == extent or end >= OPEN_END):
            firsts[axis], sizes[axis] = start, -((start - extent) // step)
            continue
        # Python clamps as ONNX does; what ends before it starts is empty.
        # Going backwards, exporters write "to the beginning" as the smallest number of 32 or 64 bits.
        stop = None if step < 0 and end <= -(2**31) + 1 else end
        taken = range(*slice(start, stop, step).indices(extent))
        firsts[axis] = taken.start if taken else 0
        sizes[axis] = len(taken)
    return node.emit(graph.SliceOp(node.value(0), starts=firsts, sizes=sizes, steps=strides))


def joined_runs(x: Term, axis: int, runs: Sequence[tuple[int, int, int]]) -> Term:
    """The elements along an axis in runs of indices; see `runs_of`."""
    parts = [x.cut(axis, *run).value for run in runs]
    return x.emit(graph.ConcatOp(parts, axis=axis))


def runs_of(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """`indices` as runs (start, size, step) of one step each, as long as possible from the left."""
    runs: list[tuple[int, int, int]] = []
    position = 0
    while position < len(indices):
        start = indices[position]
        following = position + 1
        step = indices[following] - start if following < len(indices) else 1
        size = 1
        while step != 0 and following < len(indices) and indices[following] == start + size * step:
            size, following = size + 1, following + 1
        runs.append((start, size, step if size > 1 else 1))
        position = following
    return runs


@imports("Pad")
def pad(node: OnnxNode) -> SSAValue:
    """Negative pads crop."""
    x, shape = node.code.input(0), node.shape(0)
    rank = len(shape)
    mode, value, pads = node.string("mode", "constant"), node.float("value", 0.0), node.listed("pads", 1, 11) or []
    if node.opset >= 11:
        held = node.held(2) if node.has(2) else np.zeros(1)
        value = node.code.term(held) if isinstance(held, SSAValue) else float(one_of(held, "padding"))
        if node.has(3):
            axes = [normalized_axis(axis, rank) for axis in node.ints_of(3, "axes")]
            require(len(pads) == 2 * len(axes), f"{len(pads)} pads are given for {len(axes)} axes")
            pads, given = [0] * (2 * rank), pads
            for position, axis in enumerate(axes):
                pads[axis] = given[position]
                pads[axis + rank] = given[position + len(axes)]
    require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} dimensions")
    for axis in range(rank):
        before, after = min(pads[axis], 0), min(pads[axis + rank], 0)
        x = x.cut(axis, -before, shape[axis] + before + after)
    pads = [max(amount, 0) for amount in pads]
    if mode == "constant" and not isinstance(value, Term):
        return node.emit(graph.PadOp(x.value, pads=pads, value=value))
    for axis in range(rank):
        before, after = pads[axis], pads[axis + rank]
        if before == after == 0:
            continue
        if isinstance(value, Term) and mode == "constant":
            x = _surrounded(x, axis, (before, value.reshape([])), (after, value.reshape([])))
        else:
            x = _extended(x, axis, before, after, mode)
    return x.value


def _surrounded(x: Term, axis: int, *sides: tuple[int, Term]) -> Term:
    """`x` between values, each with the number of times that it is repeated along an axis."""
    shape = x.shape
    before, after = (
        [value.expand([*shape[:axis], width, *shape[axis + 1 :]]).value] if width else [] for width, value in sides
    )
    return x.emit(graph.ConcatOp([*before, x.value, *after], axis=axis))


def _extended(x: Term, axis: int, before: int, after: int, mode: str) -> Term:
    """`x` padded along one axis with elements of its own."""
    size = x.shape[axis]
    if size == 0 or max(before, after) > MAX_SLICES * size:
        raise Unsupported(f"{before} and {after} elements around {size} in mode {mode}")
    positions = range(-before, size + after)
    if mode == "edge":
        return _surrounded(x, axis, (before, x.cut(axis, 0, 1)), (after, x.cut(axis, size - 1, 1)))
    if mode == "wrap":
        indices = [position % size for position in positions]
    elif mode == "reflect" and size > 1:
        period = 2 * (size - 1)
        folded = [position % period for position in positions]
        indices = [position if position < size else period - position for position in folded]
    else:
        raise Unsupported(f"mode {mode}")
    return joined_runs(x, axis, runs_of(indices))


@imports("Shape")
def shape_of(node: OnnxNode) -> Array:
    """The shape, or its dimensions from `start` to `end`, as an array known at import."""
    shape = node.shape(0)
    return sizes_array(shape[node.int("start", 0) : node.int("end", len(shape))])


@imports("Size")
def size_of(node: OnnxNode) -> Array:
    return sizes_array([math.prod(node.shape(0))], [])


@imports("EyeLike")
def eye_like(node: OnnxNode) -> Array:
    """Ones on a diagonal, known from the shape."""
    require(len(node.shape(0)) == 2, f"the input has {len(node.shape(0))} dimensions, not 2")
    rows, columns = node.shape(0)
    given = node.int("dtype", 0)
    dtype = array_dtype(given) if given else numpy_dtype(node.type(0).element_type)
    return np.eye(rows, columns, node.int("k", 0)).astype(dtype)


@imports("Trilu")
def trilu(node: OnnxNode) -> SSAValue:
    """A triangle of each matrix: the rest is 0, chosen by a mask known from the shape."""
    x, shape = node.value(0), node.shape(0)
    require(len(shape) >= 2, f"the input has {len(shape)} dimensions, a matrix has 2")
    offset = node.int_of(1, "diagonal") if node.has(1) else 0
    upper = node.flag("upper", True)
    inside = np.tri(shape[-2], shape[-1], offset - 1 if upper else offset) != 0
    mask = node.constant(np.logical_not(inside) if upper else inside, "mask")
    return node.emit(graph.WhereOp(mask, x, node.scalar(0.0, x)))


@imports("DepthToSpace", "SpaceToDepth")
def move_blocks(node: OnnxNode) -> SSAValue:
    """Blocks of pixels out of the channels, or into them."""
    require(len(node.shape(0)) == 4, f"the input has {len(node.shape(0))} dimensions, not 4")
    batch, channels, height, width = node.shape(0)
    block, depth_first = node.int("blocksize", 1), node.string("mode", "DCR") == "DCR"
    if node.proto.op_type == "DepthToSpace":
        depth = channels // (block * block)
        channel_dims = [block, block, depth] if depth_first else [depth, block, block]
        apart, result = [batch, *channel_dims, height, width], [batch, depth, height * block, width * block]
        perm = [0, 3, 4, 1, 5, 2] if depth_first else [0, 1, 4, 2, 5, 3]
    else:
        rows, columns = height // block, width // block
        apart, result = [batch, channels, rows, block, columns, block], [batch, channels * block**2, rows, columns]
        perm = [0, 3, 5, 1, 2, 4] if depth_first else [0, 1, 3, 5, 2, 4]
    return node.code.input(0).reshape(apart).transpose(perm).reshape(result).value


@imports("ConstantOfShape")
def constant_of_shape(node: OnnxNode) -> SSAValue:
    """One number, repeated: where the shape has sizes that are not known yet, else it is evaluated before."""
    given = node.tensor("value")
    number = np.zeros(1, np.float32) if given is None else given
    require(number.size == 1, f"its value has {number.size} elements, not one")
    shape = node.sizes_of(0, "shape")
    return node.emit(graph.ExpandOp(node.constant(number.reshape(()), "value"), shape))
