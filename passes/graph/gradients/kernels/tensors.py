"""Tensor ops of a kernel under construction, each appended at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import DenseArrayBase, IndexType, LocationAttr, TensorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.rewriter import InsertPoint

from penstock.dialects.graph import tensor_of
from penstock.passes.scalar_body import Body, constant_attribute
from penstock.passes.schedule.tile_nest import DimRange, insert_slice, slice_of
from penstock.passes.tensor.pointwise import dims, structured
from penstock.passes.tensor.reshape import emit_reshape

Operand = tuple[SSAValue, Sequence[AffineExpr]]
"""A tensor, and how loops index it."""


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor, which is static."""
    return tensor_of(value).get_shape()


def element_of(value: SSAValue) -> Attribute:
    """The element type of a tensor."""
    return tensor_of(value).element_type


@dataclass
class TensorCode:
    """Appends tensor ops to a block, at a location."""

    block: Block
    location: LocationAttr

    def emit(self, op: Operation) -> SSAValue:
        """Append an op, for its one result."""
        op.location = self.location
        self.block.add_op(op)
        return op.results[0]

    def empty(self, shape: Sequence[int], element: Attribute) -> SSAValue:
        """A tensor without contents."""
        return self.emit(tensor.EmptyOp([], TensorType(element, shape)))

    def generic(
        self,
        inputs: Sequence[Operand],
        output: SSAValue,
        compute: Callable[[Body, Sequence[SSAValue]], SSAValue],
        *,
        reductions: int = 0,
    ) -> SSAValue:
        """A generic with a parallel loop for each dim of `output`, and reduction loops after them."""

        def body(block: Block) -> SSAValue:
            return compute(Body(block, self.location), block.args)

        rank = len(shape_of(output))
        made = structured(inputs, (output, dims(rank)), body, self.location, reductions=reductions)
        return self.emit(made)

    def fill(self, shape: Sequence[int], element: Attribute, number: float) -> SSAValue:
        """A tensor of one number."""
        return self.generic([], self.empty(shape, element), lambda body, _: body.constant(number, element))

    def map(self, compute: Callable[[Body, Sequence[SSAValue]], SSAValue], *values: SSAValue) -> SSAValue:
        """What `compute` makes of the elements of tensors of one shape, in the type of the first."""
        rank = len(shape_of(values[0]))
        output = self.empty(shape_of(values[0]), element_of(values[0]))
        return self.generic([(value, dims(rank)) for value in values], output, compute)

    def sum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The sum of two tensors of one type."""
        return self.map(lambda body, xs: body.add(xs[0], xs[1]), a, b)

    def converted(self, value: SSAValue, element: Attribute) -> SSAValue:
        """A tensor in another element type; itself if it has it."""
        if element_of(value) == element:
            return value
        read = value, dims(len(shape_of(value)))
        output = self.empty(shape_of(value), element)
        return self.generic([read], output, lambda body, xs: body.cast(xs[0], element, False))

    def pad(self, value: SSAValue, low: Sequence[int], high: Sequence[int]) -> SSAValue:
        """A tensor with zeros around it; itself if there are none."""
        if not any((*low, *high)):
            return value
        shape = [a + size + b for a, size, b in zip(low, shape_of(value), high, strict=True)]
        element = element_of(value)
        zero = self.emit(arith.ConstantOp(constant_attribute(0, element)))
        region = Region(Block([tensor.YieldOp(zero)], arg_types=[IndexType()] * len(shape)))
        before, after = (DenseArrayBase.from_list(i64, list(each)) for each in (low, high))
        return self.emit(tensor.PadOp(value, (), (), region, before, after, TensorType(element, shape)))

    def slice(self, value: SSAValue, starts: Sequence[int], sizes: Sequence[int]) -> SSAValue:
        """A part of a tensor; itself if it is all of it."""
        spans = [DimRange(start, size) for start, size in zip(starts, sizes, strict=True)]
        return slice_of(self._builder(), value, spans)

    def insert(self, source: SSAValue, dest: SSAValue, starts: Sequence[int]) -> SSAValue:
        """`dest` with `source` at a place."""
        spans = [DimRange(start, size) for start, size in zip(starts, shape_of(source), strict=True)]
        return insert_slice(self._builder(), source, dest, spans)

    def _builder(self) -> Builder:
        return Builder(InsertPoint.at_end(self.block), operation_insertion_handler=[self._locate])

    def _locate(self, op: Operation) -> None:
        op.location = self.location

    def reshape(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same elements in another shape."""
        return emit_reshape(self.emit, value, shape)

    def spread(self, value: SSAValue, dim: int, step: int) -> SSAValue:
        """A tensor with `step - 1` zeros after each element of a dim; itself for a step of 1."""
        if step == 1:
            return value
        shape = shape_of(value)
        apart = self.reshape(value, [*shape[: dim + 1], 1, *shape[dim + 1 :]])
        none = [0] * len(shape_of(apart))
        after = list(none)
        after[dim + 1] = step - 1
        return self.reshape(self.pad(apart, none, after), [*shape[:dim], shape[dim] * step, *shape[dim + 1 :]])


def erase_unused(block: Block) -> None:
    """Erase the ops of a block, which have no effects, whose results nothing uses."""
    for op in reversed(list(block.ops)):
        if op.results and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
