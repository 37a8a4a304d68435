# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements: generics that copy by index, pads, slices and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.graph.layout import layout_of_rank, steps_between
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.generics import first_of
from penstock.passes.graph.values import is_view
from penstock.passes.shapes import Dims, element_of, loops, shape_of, signless, tensor_type


def copied(kernel: KernelBuilder, source: SSAValue, dims: Dims, shape: Sequence[int]) -> SSAValue:
    """A tensor of `shape` whose elements are those of `source` at `dims`."""
    output = kernel.empty(shape, element_of(source))
    return kernel.generic([(source, dims)], (output, loops(len(shape))), 0, first_of)


@lowers(graph.ReshapeOp)
def reshape(kernel: KernelBuilder, op: graph.ReshapeOp) -> SSAValue:
    """A view."""
    return kernel.reshape(kernel.value(op.x), shape_of(op.result))


@lowers(graph.ExpandOp)
def expand(kernel: KernelBuilder, op: graph.ExpandOp) -> SSAValue:
    """A copy in which the repeated dims read index 0."""
    return kernel.pointwise([op.x], op.result, first_of)


@lowers(graph.TransposeOp)
def transpose(kernel: KernelBuilder, op: graph.TransposeOp) -> SSAValue:
    """A copy whose map permutes the loops."""
    shape = shape_of(op.result)
    place = dict(zip(op.perm.get_values(), loops(len(shape)), strict=True))
    return copied(kernel, kernel.value(op.x), [place[dim] for dim in range(len(shape))], shape)


@lowers(graph.PadOp)
def pad(kernel: KernelBuilder, op: graph.PadOp) -> SSAValue:
    """A `tensor.pad`."""
    pads, rank = op.pads.get_values(), len(shape_of(op.x))
    return kernel.pad(kernel.value(op.x), pads[:rank], pads[rank:], op.value.value.data)


@lowers(graph.SliceOp)
def slice_(kernel: KernelBuilder, op: graph.SliceOp) -> SSAValue:
    """
    An extracted slice, and a copy of it where it is no view; a dim with a negative step is extracted forwards and
    copied backwards.
    """
    if is_view(op):
        return emit_slice(kernel.emit, op, kernel.value(op.x))
    x, sizes = kernel.value(op.x), op.sizes.get_values()
    offsets: list[int] = []
    strides: list[int] = []
    dims: list[AffineExpr] = []
    for loop, start, size, step in zip(
        loops(len(sizes)), op.starts.get_values(), sizes, op.steps.get_values(), strict=True
    ):
        backwards = step < 0 and size > 1
        offsets.append(start + (size - 1) * step if backwards else start)
        strides.append(abs(step) if size > 1 else 1)
        dims.append(loop * -1 + (size - 1) if backwards else loop)
    if 0 in sizes:
        # Nothing is read: an empty slice may begin anywhere inside.
        offsets = [0] * len(sizes)
    extracted = kernel.emit(tensor.ExtractSliceOp(x, offsets, sizes, strides, tensor_type(tuple(sizes), element_of(x))))
    return copied(kernel, extracted, dims, sizes)


def emit_slice(emit: Callable[[Operation], SSAValue], op: graph.SliceOp, x: SSAValue) -> SSAValue:
    """The slice of the tensor `x` as a view; where a dim has one index its step says nothing, and is 1."""
    sizes = op.sizes.get_values()
    steps = [step if size > 1 else 1 for step, size in zip(op.steps.get_values(), sizes, strict=True)]
    return emit(tensor.ExtractSliceOp(x, op.starts.get_values(), sizes, steps, tensor_type(sizes, element_of(x))))


@lowers(graph.ConcatOp)
def concat(kernel: KernelBuilder, op: graph.ConcatOp) -> SSAValue:
    """As `emit_concat`."""
    return emit_concat(kernel.emit, op, [kernel.value(each) for each in op.inputs])


def emit_concat(emit: Callable[[Operation], SSAValue], op: graph.ConcatOp, parts: Sequence[SSAValue]) -> SSAValue:
    """A destination into which the tensors `parts` of the operands are inserted one after the other."""
    type = tensor_type(shape_of(op.result), signless(element_of(op.result)))
    result = emit(tensor.EmptyOp((), type))
    axis, at = op.axis.value.data, 0
    for part in parts:
        sizes = shape_of(part)
        offsets = [0] * len(sizes)
        offsets[axis] = at
        at += sizes[axis]
        places = (offsets, sizes, [1] * len(sizes))
        lists = [DenseArrayBase.from_list(i64, list(each)) for each in places]
        names = ("static_offsets", "static_sizes", "static_strides")
        result = emit(
            tensor.InsertSliceOp.build(
                operands=[part, result, [], [], []],
                result_types=[type],
                properties=dict(zip(names, lists, strict=True)),
            )
        )
    return result


@lowers(graph.LayoutTransformOp)
def layout_transform(kernel: KernelBuilder, op: graph.LayoutTransformOp) -> SSAValue:
    """
    Zeros that fill the last blocks; every dim in the runs that both layouts keep together; a copy whose map permutes
    them; the runs joined; what is beyond the result's sizes left out, in the copy where the source has no blocks.
    """
    x, result = kernel.value(op.x), shape_of(op.result)
    shape = shape_of(x)
    source, target = layout_of_rank(op.source.data, len(shape)), layout_of_rank(op.target.data, len(result))
    steps = steps_between(source, target, shape, result)
    after = [large - size for large, size in zip(steps.grown, shape, strict=True)]
    x = kernel.pad(x, [0] * len(shape), after, 0)
    x = kernel.reshape(x, steps.split)
    kept = [dim for dim in steps.perm if steps.split[dim] != 1]
    if kept != sorted(kept):
        place = dict(zip(steps.perm, loops(len(steps.perm)), strict=True))
        moved = [steps.split[dim] for dim in steps.perm]
        x = copied(kernel, x, [place[dim] for dim in range(len(steps.split))], moved)
    x = kernel.reshape(x, steps.joined)
    if steps.joined != tuple(result):
        zeros, ones = [0] * len(result), [1] * len(result)
        cut = tensor.ExtractSliceOp(x, zeros, result, ones, tensor_type(tuple(result), element_of(x)))
        x = copied(kernel, kernel.emit(cut), loops(len(result)), result)
    return x
