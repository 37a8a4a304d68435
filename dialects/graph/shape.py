"""Operators that move elements and compute none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import (
    I64,
    Float64Type,
    FloatAttr,
    IntegerAttr,
)
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from penstock.dialects.graph.base import (
    INTS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    check_axis,
    double,
    integer_bounds,
    ints,
    require,
    same_element,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.number import Number, number_text
from penstock.dialects.graph.sizes import (
    Dim,
    is_known,
    may_equal,
    may_reach,
    more_known,
)


@irdl_op_definition
class TransposeOp(GraphOp):
    """Dimension i of the result is dimension `perm[i]` of `x`."""

    name = "graph.transpose"

    x = operand_def(TENSOR)
    perm = prop_def(INTS)

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$x `perm` $perm attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def infer(cls, x: Tensor, perm: Sequence[int]) -> Tensor:
        """`x` with its dimensions in another order."""
        shape = x.get_shape()
        require(
            sorted(perm) == list(range(len(shape))),
            f"perm {list(perm)} is no permutation of the {len(shape)} dimensions of {x}",
        )
        return tensor_type(x.element_type, [shape[dim] for dim in perm])


@irdl_op_definition
class ConcatOp(GraphOp):
    """The `inputs` one after the other along `axis`."""

    name = "graph.concat"

    inputs = var_operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    assembly_format = "$inputs `axis` $axis attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, inputs: Sequence[Tensor], axis: int) -> Tensor:
        """The shape of the first operand with the sum of all sizes along `axis`."""
        require(len(inputs) > 0, f"{cls.name} needs at least one operand")
        element = same_element(inputs, cls.name)
        first = inputs[0].get_shape()
        check_axis(axis, len(first))
        common = list(first)
        for other in inputs[1:]:
            shape = other.get_shape()
            alike = len(shape) == len(first) and all(
                dim == axis or may_equal(left, right)
                for dim, (left, right) in enumerate(zip(common, shape, strict=True))
            )
            require(
                alike,
                f"{inputs[0]} and {other} differ in more than axis {axis} and cannot be concatenated",
            )
            common = [more_known(left, right) for left, right in zip(common, shape, strict=True)]
        total = sum(each.get_shape()[axis] for each in inputs)
        return tensor_type(element, [*common[:axis], total, *common[axis + 1 :]])


@irdl_op_definition
class PadOp(GraphOp):
    """`x` with `value` around it: `pads` lists what stands before each dimension, then what stands after."""

    name = "graph.pad"

    x = operand_def(TENSOR)
    pads = prop_def(INTS)
    value = prop_def(FloatAttr[Float64Type], default_value=double(0.0))

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))
    custom_directives = (Number,)
    assembly_format = "$x `pads` $pads (`value` custom<Number>($value)^)? attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def infer(cls, x: Tensor, pads: Sequence[int]) -> Tensor:
        """`x` grown by `pads`."""
        shape = x.get_shape()
        rank = len(shape)
        require(
            len(pads) == 2 * rank,
            f"pads {list(pads)} must have {2 * rank} entries, two a dimension of {x}",
        )
        require(min(pads, default=0) >= 0, f"pads {list(pads)} must not be negative")
        grown = [size + pads[dim] + pads[dim + rank] for dim, size in enumerate(shape)]
        return tensor_type(x.element_type, grown)

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
    negative, as in ONNX, but not 0. Where the size of `x` is unknown, a size of -1 takes all there is from
    `starts` on.
    """

    name = "graph.slice"

    x = operand_def(TENSOR)
    starts = prop_def(INTS)
    sizes = prop_def(INTS)
    steps = prop_def(INTS)

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
        extents = tensor_of(x).get_shape()
        sizes = [
            -1 if step > 0 and isinstance(size, Dim) and size == _size_to_end(extent, start, step) else size
            for size, extent, start, step in zip(sizes, extents, starts, steps, strict=True)
        ]
        super().__init__(x, starts=starts, sizes=sizes, steps=steps, result_type=result_type)

    @classmethod
    def infer(cls, x: Tensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
        """`x` in the shape `sizes`."""
        rank = x.get_num_dims()
        require(
            len(starts) == len(sizes) == len(steps) == rank,
            f"starts, sizes and steps must have {rank} entries each, one a dimension of {x};"
            f" they have {len(starts)}, {len(sizes)} and {len(steps)}",
        )
        taken: list[int] = []
        for dim, (extent, start, size, step) in enumerate(zip(x.get_shape(), starts, sizes, steps, strict=True)):
            require(step != 0, f"the step of dimension {dim} is 0")
            to_end = size == -1 and not is_known(extent) and step > 0
            require(size >= 0 or to_end, f"the size of dimension {dim} is {size}")
            last = start if to_end else start + (size - 1) * step
            inside = 0 <= min(start, last) and may_reach(extent, max(start, last) + 1)
            require(
                size == 0 or inside,
                f"dimension {dim} reads from {start} to {last}, outside its {extent} elements",
            )
            taken.append(_size_to_end(extent, start, step) if to_end else size)
        return tensor_type(x.element_type, taken)

    def is_identity(self) -> bool:
        whole = all(start == 0 for start in self.starts.get_values()) and all(
            step == 1 for step in self.steps.get_values()
        )
        extents = zip(self.sizes.get_values(), tensor_of(self.x).get_shape(), strict=True)
        return whole and all(size in (extent, -1) for size, extent in extents)

    def rebind(self, sizes: Mapping[str, int]) -> None:
        extents, starts, taken = tensor_of(self.x).get_shape(), self.starts.get_values(), list(self.sizes.get_values())
        for dim, (extent, start, step) in enumerate(zip(extents, starts, self.steps.get_values(), strict=True)):
            if taken[dim] == -1 and is_known(extent):
                taken[dim] = max(_size_to_end(extent, start, step), 1)
        self.properties["sizes"] = ints(taken)
        super().rebind(sizes)


def _size_to_end(extent: int, start: int, step: int) -> int:
    """How many indices there are from `start` to the end of a dimension."""
    return -((start - extent) // step)
