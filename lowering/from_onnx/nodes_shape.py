"""Importers of operators that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import normalized_axis, require
from penstock.dialects.graph.sizes import decided_equal, is_known, may_equal, may_reach
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import Held, Node, Unsupported, array_dtype, imports
from penstock.lowering.from_onnx.size_arithmetic import sizes_array

LONGEST = 2**31 - 1
"""Exporters write "to the end" as the largest number of 32 or 64 bits."""

GATHER_LIMIT = 64
"""Gather by constant indices becomes at most this many slices."""


def reshaped(node: Node, shape: Sequence[int]) -> SSAValue:
    """The first input in another shape; itself if it has it already."""
    x = node.value(0)
    if tensor_of(x).get_shape() == tuple(shape):
        return x
    return node.emit(graph.ReshapeOp(x, shape))


@imports("Reshape")
def reshape(node: Node) -> SSAValue:
    """A size of 0 copies that of the input, unless `allowzero`; one of -1 is computed."""
    given, target = node.shape(0), node.sizes_of(1, "shape")
    if not node.flag("allowzero", False):
        for axis, size in enumerate(target):
            fits = size != 0 or axis < len(given)
            require(fits, f"the shape {target} has a 0 without a counterpart in {list(given)}")
        target = [given[axis] if size == 0 else size for axis, size in enumerate(target)]
    inferred = graph.ReshapeOp.infer(node.type(0), target)
    return reshaped(node, inferred.get_shape())


@imports("Flatten")
def flatten(node: Node) -> SSAValue:
    shape, axis = node.shape(0), node.int("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return reshaped(node, [math.prod(shape[:axis]), math.prod(shape[axis:])])


def _axes(node: Node, rank: int) -> list[int] | None:
    """The axes of Squeeze and Unsqueeze: an attribute before operator set 13, then an input."""
    if node.opset < 13:
        axes = node.ints("axes")
    else:
        axes = node.ints_of(1, "axes") if node.has(1) else None
    return None if axes is None else [normalized_axis(axis, rank) for axis in axes]


@imports("Squeeze")
def squeeze(node: Node) -> SSAValue:
    shape = node.shape(0)
    axes = _axes(node, len(shape))
    dropped = [axis for axis, size in enumerate(shape) if decided_equal(size, 1)] if axes is None else axes
    for axis in dropped:
        require(may_equal(shape[axis], 1), f"axis {axis} of {list(shape)} has no size of 1")
    return reshaped(node, [size for axis, size in enumerate(shape) if axis not in dropped])


@imports("Unsqueeze")
def unsqueeze(node: Node) -> SSAValue:
    count = len(node.ints("axes") or []) if node.opset < 13 else len(node.ints_of(1, "axes"))
    rank = len(node.shape(0)) + count
    axes = _axes(node, rank) or []
    sizes = iter(node.shape(0))
    return reshaped(node, [1 if axis in axes else next(sizes) for axis in range(rank)])


@imports("Transpose")
def transpose(node: Node) -> SSAValue:
    rank = len(node.shape(0))
    perm = node.ints("perm")
    perm = list(range(rank))[::-1] if perm is None else perm
    return node.emit(graph.TransposeOp(node.value(0), perm=perm))


@imports("Concat")
def concat(node: Node) -> SSAValue:
    values = node.values()
    if len(values) == 1:
        return values[0]
    return node.emit(graph.ConcatOp(values, axis=node.int("axis", 1)))


@imports("Expand")
def expand(node: Node) -> SSAValue:
    return node.emit(graph.ExpandOp(node.value(0), node.sizes_of(1, "shape")))


@imports("Tile")
def tile(node: Node) -> SSAValue:
    """Repeats as a broadcast along new dimensions of size 1, folded into those they precede."""
    shape, repeats = node.shape(0), node.sizes_of(1, "repeats")
    require(len(repeats) == len(shape), f"{len(repeats)} repeats for {len(shape)} dimensions")
    split = [size for each in shape for size in (1, each)]
    wide = [size for times, each in zip(repeats, shape, strict=True) for size in (times, each)]
    apart = node.emit(graph.ReshapeOp(node.value(0), split))
    repeated = node.emit(graph.ExpandOp(apart, wide))
    return node.emit(graph.ReshapeOp(repeated, [a * b for a, b in zip(shape, repeats, strict=True)]))


def sliced(
    node: Node,
    x: SSAValue,
    axis: int,
    start: int,
    size: int,
    step: int = 1,
) -> SSAValue:
    """Part of `x` along one axis; `x` itself if that is all of it."""
    shape = tensor_of(x).get_shape()
    if (start, size, step) == (0, shape[axis], 1):
        return x
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return node.emit(graph.SliceOp(x, starts=starts, sizes=sizes, steps=steps))


@imports("Split")
def split(node: Node) -> list[Held]:
    """Sizes are an attribute before operator set 13, then an input; without them, parts are equal."""
    x, shape = node.value(0), node.shape(0)
    axis = normalized_axis(node.int("axis", 0), len(shape))
    if node.opset < 13:
        sizes = node.ints("split")
    else:
        sizes = node.ints_of(1, "sizes") if node.has(1) else None
    if sizes is None:
        count = node.int("num_outputs", len(node.proto.output))
        each = -(-shape[axis] // count)
        sizes = [min(each, max(shape[axis] - index * each, 0)) for index in range(count)]
    require(decided_equal(sum(sizes), shape[axis]), f"the sizes {sizes} do not sum up to {shape[axis]}")
    starts = np.cumsum([0, *sizes])
    return [sliced(node, x, axis, int(start), size) for start, size in zip(starts, sizes, strict=False)]


@imports("Slice")
def slice_(node: Node) -> SSAValue:
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
        if not is_known(extent) and is_known(start) and start >= 0 and step > 0 and (end == extent or end >= LONGEST):
            firsts[axis], sizes[axis] = start, -((start - extent) // step)
            continue
        # Python clamps as ONNX does; what ends before it starts is empty.
        taken = range(*slice(start, _open_end(end, step), step).indices(extent))
        firsts[axis] = taken.start if taken else 0
        sizes[axis] = len(taken)
    return node.emit(graph.SliceOp(node.value(0), starts=firsts, sizes=sizes, steps=strides))


def _open_end(end: int, step: int) -> int | None:
    """Going backwards, exporters write "to the beginning" as the smallest number of 32 or 64 bits."""
    return None if step < 0 and end <= -(2**31) + 1 else end


def gather(node: Node) -> SSAValue:
    """By constant indices: a slice for each run of indices with one step."""
    x, shape = node.value(0), node.shape(0)
    axis = normalized_axis(node.int("axis", 0), len(shape))
    indices = node.array(1, "indices")
    flat = [int(index) for index in indices.ravel()]
    flat = [index % shape[axis] if index < 0 and -shape[axis] <= index else index for index in flat]
    for index in flat:
        require(
            0 <= index and may_reach(shape[axis], index + 1), f"index {index} is outside a dimension of {shape[axis]}"
        )
    runs = runs_of(flat)
    if len(runs) > GATHER_LIMIT:
        raise Unsupported(f"{len(runs)} runs of indices, more than {GATHER_LIMIT}")
    parts = [sliced(node, x, axis, start, size, step) for start, size, step in runs]
    if not parts:
        parts = [sliced(node, x, axis, 0, 0)]
    joined = parts[0] if len(parts) == 1 else node.emit(graph.ConcatOp(parts, axis=axis))
    result = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    if tensor_of(joined).get_shape() == result:
        return joined
    return node.emit(graph.ReshapeOp(joined, result))


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
def pad(node: Node) -> SSAValue:
    """Pads are an attribute before operator set 11, then an input; negative ones crop."""
    x, shape = node.value(0), node.shape(0)
    rank = len(shape)
    mode = node.string("mode", "constant")
    if node.opset < 11:
        pads, value = node.ints("pads") or [], node.float("value", 0.0)
    else:
        pads = node.ints_of(1, "pads")
        held = node.held(2) if node.has(2) else np.zeros(1)
        value = held if isinstance(held, SSAValue) else float(held.ravel()[0])
        if node.has(3):
            axes = [normalized_axis(axis, rank) for axis in node.ints_of(3, "axes")]
            pads, given = [0] * (2 * rank), pads
            for position, axis in enumerate(axes):
                pads[axis] = given[position]
                pads[axis + rank] = given[position + len(axes)]
    require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} dimensions")
    for axis in range(rank):
        before, after = min(pads[axis], 0), min(pads[axis + rank], 0)
        x = sliced(node, x, axis, -before, shape[axis] + before + after)
    pads = [max(amount, 0) for amount in pads]
    if mode == "constant":
        if isinstance(value, SSAValue):
            return _surrounded(node, x, pads, value)
        return node.emit(graph.PadOp(x, pads=pads, value=value)) if any(pads) else x
    for axis in range(rank):
        x = _extended(node, x, axis, pads[axis], pads[axis + rank], mode)
    return x


def _surrounded(node: Node, x: SSAValue, pads: Sequence[int], value: SSAValue) -> SSAValue:
    """`x` with a value around it that is known only when the program runs."""
    rank = len(tensor_of(x).get_shape())
    scalar = node.emit(graph.ReshapeOp(value, [])) if tensor_of(value).get_num_dims() else value
    for axis in range(rank):
        shape = tensor_of(x).get_shape()
        sides = [
            node.emit(graph.ExpandOp(scalar, [*shape[:axis], width, *shape[axis + 1 :]])) if width else None
            for width in (pads[axis], pads[axis + rank])
        ]
        parts = [part for part in (sides[0], x, sides[1]) if part is not None]
        x = node.emit(graph.ConcatOp(parts, axis=axis)) if len(parts) > 1 else x
    return x


def _extended(node: Node, x: SSAValue, axis: int, before: int, after: int, mode: str) -> SSAValue:
    """`x` padded along one axis with elements of its own."""
    shape = tensor_of(x).get_shape()
    size = shape[axis]
    if before == after == 0:
        return x
    if size == 0 or max(before, after) > GATHER_LIMIT * size:
        raise Unsupported(f"{before} and {after} elements around {size} in mode {mode}")
    positions = range(-before, size + after)
    if mode == "edge":
        parts = [x]
        if before:
            parts.insert(0, _repeated(node, x, axis, 0, before))
        if after:
            parts.append(_repeated(node, x, axis, size - 1, after))
        return node.emit(graph.ConcatOp(parts, axis=axis))
    if mode == "wrap":
        indices = [position % size for position in positions]
    elif mode == "reflect" and size > 1:
        period = 2 * (size - 1)
        folded = [position % period for position in positions]
        indices = [position if position < size else period - position for position in folded]
    else:
        raise Unsupported(f"mode {mode}")
    parts = [sliced(node, x, axis, start, length, step) for start, length, step in runs_of(indices)]
    return parts[0] if len(parts) == 1 else node.emit(graph.ConcatOp(parts, axis=axis))


def _repeated(node: Node, x: SSAValue, axis: int, index: int, times: int) -> SSAValue:
    """One element of an axis, several times."""
    one = sliced(node, x, axis, index, 1)
    shape = list(tensor_of(one).get_shape())
    shape[axis] = times
    return node.emit(graph.ExpandOp(one, shape))


@imports("Shape")
def shape_of(node: Node) -> Array:
    """The shape, or its dimensions from `start` to `end`, as an array known at import."""
    shape = node.shape(0)
    end = node.int("end", len(shape)) if node.has_attribute("end") else None
    return sizes_array(shape[node.int("start", 0) : end])


@imports("Size")
def size_of(node: Node) -> Array:
    return sizes_array([math.prod(node.shape(0))], [])


@imports("EyeLike")
def eye_like(node: Node) -> Array:
    """Ones on a diagonal, known from the shape."""
    require(len(node.shape(0)) == 2, f"the input has {len(node.shape(0))} dimensions, not 2")
    rows, columns = node.shape(0)
    if node.has_attribute("dtype"):
        dtype = array_dtype(node.int("dtype", 1))
    else:
        dtype = numpy_dtype(node.type(0).element_type)
    return np.eye(rows, columns, node.int("k", 0)).astype(dtype)


@imports("Trilu")
def trilu(node: Node) -> SSAValue:
    """A triangle of each matrix: the rest is 0, chosen by a mask known from the shape."""
    x, shape = node.value(0), node.shape(0)
    require(len(shape) >= 2, f"the input has {len(shape)} dimensions, a matrix has 2")
    offset = int(node.array(1, "diagonal").ravel()[0]) if node.has(1) else 0
    upper = node.flag("upper", True)
    inside = np.tri(shape[-2], shape[-1], offset - 1 if upper else offset) != 0
    mask = node.constant(np.logical_not(inside) if upper else inside, "mask")
    return node.emit(graph.WhereOp(mask, x, node.scalar(0.0, x)))


@imports("DepthToSpace")
def depth_to_space(node: Node) -> SSAValue:
    require(len(node.shape(0)) == 4, f"the input has {len(node.shape(0))} dimensions, not 4")
    batch, channels, height, width = node.shape(0)
    block = node.int("blocksize", 1)
    depth = channels // (block * block)
    if node.string("mode", "DCR") == "DCR":
        apart, perm = [batch, block, block, depth, height, width], [0, 3, 4, 1, 5, 2]
    else:
        apart, perm = [batch, depth, block, block, height, width], [0, 1, 4, 2, 5, 3]
    moved = node.emit(graph.TransposeOp(node.emit(graph.ReshapeOp(node.value(0), apart)), perm=perm))
    return node.emit(graph.ReshapeOp(moved, [batch, depth, height * block, width * block]))


@imports("SpaceToDepth")
def space_to_depth(node: Node) -> SSAValue:
    require(len(node.shape(0)) == 4, f"the input has {len(node.shape(0))} dimensions, not 4")
    batch, channels, height, width = node.shape(0)
    block = node.int("blocksize", 1)
    rows, columns = height // block, width // block
    apart = [batch, channels, rows, block, columns, block]
    perm = [0, 3, 5, 1, 2, 4] if node.string("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = node.emit(graph.TransposeOp(node.emit(graph.ReshapeOp(node.value(0), apart)), perm=perm))
    return node.emit(graph.ReshapeOp(moved, [batch, channels * block * block, rows, columns]))


@imports("ConstantOfShape")
def constant_of_shape(node: Node) -> SSAValue:
    """One number, repeated: where the shape has sizes that are not known yet, else it is evaluated before."""
    given = node.tensor("value")
    number = np.zeros(1, np.float32) if given is None else given
    require(number.size == 1, f"its value has {number.size} elements, not one")
    shape = node.sizes_of(0, "shape")
    return node.emit(graph.ExpandOp(node.constant(number.reshape(()), "value"), shape))
