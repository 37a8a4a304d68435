"""Operators that move elements and compute none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I64,
    DenseArrayBase,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
)
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from penstock.dialects.graph.base import (
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    broadcast_shapes,
    check_axis,
    double,
    integer,
    integer_bounds,
    ints,
    normalized_axis,
    require,
    same_element,
    shape_text,
    tensor_of,
)
from penstock.dialects.graph.number import Number, number_text


@irdl_op_definition
class ReshapeOp(GraphOp):
    """The elements of `x` in row-major order in the shape of the result."""

    name = "graph.reshape"

    x = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, shape: Sequence[int]):
        super().__init__([x], self.infer(tensor_of(x), shape))

    @staticmethod
    def infer(x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` in `shape`, in which one size may be -1 and is then computed."""
        count = math.prod(x.get_shape())
        known = math.prod(size for size in shape if size != -1)
        require(list(shape).count(-1) <= 1, f"only one size of the shape {list(shape)} may be -1")
        free = -1 in shape
        fits = known != 0 and count % known == 0 if free else known == count
        require(fits, f"{count} elements of {x} do not fit the shape {shape_text(shape)}")
        sizes = [count // known if size == -1 else size for size in shape]
        return TensorType(x.element_type, sizes)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.get_shape())


@irdl_op_definition
class ExpandOp(GraphOp):
    """`x` repeated to the shape of the result, to which it broadcasts by NumPy's rule."""

    name = "graph.expand"

    x = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, shape: Sequence[int]):
        super().__init__([x], self.infer(tensor_of(x), shape))

    @staticmethod
    def infer(x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` in the shape that its own and `shape` broadcast to."""
        return TensorType(x.element_type, broadcast_shapes(x.get_shape(), shape))

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.get_shape())


@irdl_op_definition
class TransposeOp(GraphOp):
    """Dimension i of the result is dimension `perm[i]` of `x`."""

    name = "graph.transpose"

    x = operand_def(TENSOR)
    perm = prop_def(DenseArrayBase.constr(IntegerType(64)))

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x `perm` $perm attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, *, perm: Sequence[int], result_type: Tensor | None = None):
        inferred = self.infer(tensor_of(x), perm)
        super().__init__([x], result_type or inferred, {"perm": ints(perm)})

    @staticmethod
    def infer(x: Tensor, perm: Sequence[int]) -> Tensor:
        """`x` with its dimensions in another order."""
        shape = x.get_shape()
        require(
            sorted(perm) == list(range(len(shape))),
            f"perm {list(perm)} is no permutation of the {len(shape)} dimensions of {x}",
        )
        return TensorType(x.element_type, [shape[dim] for dim in perm])

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.perm.get_values())


@irdl_op_definition
class ConcatOp(GraphOp):
    """The `inputs` one after the other along `axis`."""

    name = "graph.concat"

    inputs = var_operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$inputs `axis` $axis attr-dict `:` functional-type(operands, results)"

    def __init__(self, inputs: Sequence[Value], *, axis: int, result_type: Tensor | None = None):
        types = [tensor_of(value) for value in inputs]
        if types:
            axis = normalized_axis(axis, types[0].get_num_dims())
        super().__init__([inputs], result_type or self.infer(types, axis), {"axis": integer(axis)})

    @staticmethod
    def infer(inputs: Sequence[Tensor], axis: int) -> Tensor:
        """The shape of the first operand with the sum of all sizes along `axis`."""
        require(len(inputs) > 0, "graph.concat needs at least one operand")
        element = same_element(inputs, "graph.concat")
        first = inputs[0].get_shape()
        check_axis(axis, len(first))
        for other in inputs[1:]:
            shape = other.get_shape()
            alike = len(shape) == len(first) and all(
                dim == axis or left == right for dim, (left, right) in enumerate(zip(first, shape, strict=True))
            )
            require(
                alike,
                f"{inputs[0]} and {other} differ in more than axis {axis} and cannot be concatenated",
            )
        total = sum(each.get_shape()[axis] for each in inputs)
        return TensorType(element, [*first[:axis], total, *first[axis + 1 :]])

    def infer_type(self) -> Tensor:
        return self.infer([tensor_of(value) for value in self.inputs], self.axis.value.data)


@irdl_op_definition
class PadOp(GraphOp):
    """`x` with `value` around it: `pads` lists what stands before each dimension, then what stands after."""

    name = "graph.pad"

    x = operand_def(TENSOR)
    pads = prop_def(DenseArrayBase.constr(IntegerType(64)))
    value = prop_def(FloatAttr[Float64Type], default_value=double(0.0))

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    custom_directives = (Number,)
    assembly_format = "$x `pads` $pads (`value` custom<Number>($value)^)? attr-dict `:` type($x) `->` type($result)"

    def __init__(
        self,
        x: Value,
        *,
        pads: Sequence[int],
        value: float = 0.0,
        result_type: Tensor | None = None,
    ):
        inferred = self.infer(tensor_of(x), pads)
        properties = {"pads": ints(pads), "value": double(value)}
        super().__init__([x], result_type or inferred, properties)

    @staticmethod
    def infer(x: Tensor, pads: Sequence[int]) -> Tensor:
        """`x` grown by `pads`."""
        shape = x.get_shape()
        rank = len(shape)
        require(
            len(pads) == 2 * rank,
            f"pads {list(pads)} must have {2 * rank} entries, two a dimension of {x}",
        )
        require(min(pads, default=0) >= 0, f"pads {list(pads)} must not be negative")
        grown = [size + pads[dim] + pads[dim + rank] for dim, size in enumerate(shape)]
        return TensorType(x.element_type, grown)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.pads.get_values())

    def verify_(self) -> None:
        super().verify_()
        element, value = self.result_type.element_type, self.value.value.data
        if (bounds := integer_bounds(element)) is None:
            return
        fits = math.isfinite(value) and value == int(value) and int(value) in bounds
        require(fits, f"the padding value {number_text(value)} is no {element}")


@irdl_op_definition
class SliceOp(GraphOp):
    """
    Part of `x`: index i of a dimension of the result reads `starts + i * steps` of that dimension of `x`.

    All three lists have one entry a dimension, and every index read lies inside `x`. Steps may be
    negative, as in ONNX, but not 0.
    """

    name = "graph.slice"

    x = operand_def(TENSOR)
    starts = prop_def(DenseArrayBase.constr(IntegerType(64)))
    sizes = prop_def(DenseArrayBase.constr(IntegerType(64)))
    steps = prop_def(DenseArrayBase.constr(IntegerType(64)))

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x `starts` $starts `sizes` $sizes `steps` $steps attr-dict `:` type($x) `->` type($result)"

    def __init__(
        self,
        x: Value,
        *,
        starts: Sequence[int],
        sizes: Sequence[int],
        steps: Sequence[int] | None = None,
        result_type: Tensor | None = None,
    ):
        steps = [1] * len(starts) if steps is None else steps
        inferred = self.infer(tensor_of(x), starts, sizes, steps)
        properties = {"starts": ints(starts), "sizes": ints(sizes), "steps": ints(steps)}
        super().__init__([x], result_type or inferred, properties)

    @staticmethod
    def infer(x: Tensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
        """`x` in the shape `sizes`."""
        rank = x.get_num_dims()
        require(
            len(starts) == len(sizes) == len(steps) == rank,
            f"starts, sizes and steps must have {rank} entries each, one a dimension of {x};"
            f" they have {len(starts)}, {len(sizes)} and {len(steps)}",
        )
        for dim, (extent, start, size, step) in enumerate(zip(x.get_shape(), starts, sizes, steps, strict=True)):
            require(step != 0, f"the step of dimension {dim} is 0")
            require(size >= 0, f"the size of dimension {dim} is {size}")
            last = start + (size - 1) * step
            require(
                size == 0 or (0 <= start < extent and 0 <= last < extent),
                f"dimension {dim} reads from {start} to {last}, outside its {extent} elements",
            )
        return TensorType(x.element_type, sizes)

    def infer_type(self) -> Tensor:
        return self.infer(
            tensor_of(self.x),
            self.starts.get_values(),
            self.sizes.get_values(),
            self.steps.get_values(),
        )
