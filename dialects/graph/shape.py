# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements and compute none."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects.builtin import (
    I64,
    Float64Type,
    FloatAttr,
    IntegerAttr,
)
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from penstock.dialects.graph.base import (
    INTS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    HasQuantizedForm,
    PatternKind,
    SelectsElements,
    Tensor,
    Value,
    broadcast_shapes,
    check_axis,
    double,
    erased,
    integer_bounds,
    ints,
    require,
    same_element,
    set_type,
    shape_text,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.dims import Names, names_attr, read_names, size_of_name, symbols_of
from penstock.dialects.graph.number import Number, number_text
from penstock.dialects.graph.sizes import (
    Dim,
    UnknownSize,
    exact_quotient,
    is_known,
    may_equal,
    may_reach,
    more_known,
    unknown_size,
)


@irdl_op_definition
class TransposeOp(GraphOp):
    """Dimension i of the result is dimension `perm[i]` of `x`."""

    name = "graph.transpose"

    x = operand_def(TENSOR)
    perm = prop_def(INTS)

    traits = traits_def(SelectsElements(), HasPatternKind(PatternKind.INJECTIVE))
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

    def is_identity(self) -> bool:
        return list(self.perm.get_values()) == sorted(self.perm.get_values())


@irdl_op_definition
class ConcatOp(GraphOp):
    """The `inputs` one after the other along `axis`."""

    name = "graph.concat"

    inputs = var_operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasQuantizedForm(), HasPatternKind(PatternKind.INJECTIVE))
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
            same = len(shape) == len(first) and all(
                dim == axis or may_equal(left, right)
                for dim, (left, right) in enumerate(zip(common, shape, strict=True))
            )
            require(
                same,
                lambda other=other: (
                    f"{inputs[0]} and {other} differ in more than axis {axis} and cannot be concatenated"
                ),
            )
            common = [more_known(left, right) for left, right in zip(common, shape, strict=True)]
        total = sum(each.get_shape()[axis] for each in inputs)
        return tensor_type(element, [*common[:axis], total, *common[axis + 1 :]])

    def is_identity(self) -> bool:
        return len(self.inputs) == 1


@irdl_op_definition
class PadOp(GraphOp):
    """`x` with `value` around it: `pads` lists what stands before each dimension, then what stands after."""

    name = "graph.pad"

    x = operand_def(TENSOR)
    pads = prop_def(INTS)
    value = prop_def(FloatAttr[Float64Type], default_value=double(0.0))

    traits = traits_def(HasQuantizedForm(), HasPatternKind(PatternKind.INJECTIVE))
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

    def is_identity(self) -> bool:
        return not any(self.pads.get_values())

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
    """The first index of each dimension."""
    sizes = prop_def(INTS)
    """How many indices of each dimension."""
    steps = prop_def(INTS)
    """The distance of two neighbouring ones."""

    traits = traits_def(SelectsElements(), HasPatternKind(PatternKind.INJECTIVE))
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


class ToShapeOp(GraphOp, ABC):
    """
    An op that brings `x` into the shape of its result.

    `dims` names sizes of the result that are unknown and do not follow from those of `x`.
    """

    x = operand_def(TENSOR)
    dims = opt_prop_def(Names)

    assembly_format = "$x (`dims` $dims^)? attr-dict `:` type($x) `->` type($result)"

    def names(self) -> list[str]:
        """For each dimension of the result its name, "" if it has none."""
        return read_names(self.dims, self.result.type.get_shape())

    def _name(self, names: Sequence[str]) -> None:
        if any(names):
            self.properties["dims"] = names_attr(names)
        else:
            self.properties.pop("dims", None)


@irdl_op_definition
class ReshapeOp(ToShapeOp):
    """
    The elements of `x` in row-major order in the shape of the result.

    One unknown size of the result follows from all others. If there are more, `dims` names all but one of them.
    """

    name = "graph.reshape"

    traits = traits_def(SelectsElements(), HasPatternKind(PatternKind.INJECTIVE))

    def __init__(self, x: Value, shape: Sequence[int]):
        inferred = self.infer(tensor_of(x), shape)
        super().__init__(x, result_type=inferred)
        sizes = inferred.get_shape()
        self._name(self._needed_names(sizes, symbols_of(sizes)))

    @classmethod
    def infer(cls, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` in `shape`, in which one size may be -1 and is then computed."""
        count = math.prod(x.get_shape())
        known = math.prod(size for size in shape if size != -1)
        require(list(shape).count(-1) <= 1, f"only one size of the shape {list(shape)} may be -1")
        free: int | None = None
        if -1 in shape:
            quotient = exact_quotient(count, known)
            fits = quotient is not None or not (is_known(count) and is_known(known))
            free = cast(int, quotient) if quotient is not None else unknown_size()
        else:
            fits = may_equal(known, count)
        require(fits, lambda: f"{count} elements of {x} do not fit the shape {shape_text(shape)}")
        return tensor_type(x.element_type, [cast(int, free) if size == -1 else size for size in shape])

    @staticmethod
    def _needed_names(sizes: Sequence[int], names: Sequence[str]) -> list[str]:
        """The names without which the sizes would not follow; raises UnknownSize if not even with them."""
        unknown = [dim for dim, size in enumerate(sizes) if not is_known(size)]
        if len(unknown) <= 1:
            return [""] * len(sizes)
        nameless = [dim for dim in unknown if not names[dim]]
        if len(nameless) > 1:
            raise UnknownSize(cast(Dim, sizes[nameless[1]]), f"does not follow: {shape_text(sizes)} has several such")
        return list(names)

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.get_shape())

    def is_identity(self) -> bool:
        return self.x.type == self.result.type and not self.dims

    def verify_(self) -> None:
        super().verify_()
        names = self.names()
        free = [dim for dim, size in enumerate(self.result_type.get_shape()) if not is_known(size) and not names[dim]]
        require(
            len(free) <= 1,
            lambda: (
                f"dimensions {free} of {self.result.type} do not follow from {self.x.type}: name all but one of them,"
                ' as in `dims ["N", ""]`'
            ),
        )

    def rebind(self, sizes: Mapping[str, int]) -> None:
        names, target = self.names(), list(self.result_type.get_shape())
        for dim, size in enumerate(target):
            if not is_known(size):
                target[dim] = size_of_name(names[dim], sizes) if names[dim] else -1
        inferred = self.infer(tensor_of(self.x), target)
        set_type(self.result, erased(inferred))
        found = inferred.get_shape()
        kept = [name if not is_known(size) else "" for name, size in zip(names, found, strict=True)]
        self._name(self._needed_names(found, kept))


@irdl_op_definition
class ExpandOp(ToShapeOp):
    """
    `x` repeated to the shape of the result, to which it broadcasts by NumPy's rule.

    An unknown size of the result is that of `x`, or the one that `dims` names.
    """

    name = "graph.expand"

    traits = traits_def(SelectsElements(), HasPatternKind(PatternKind.BROADCAST))

    def __init__(self, x: Value, shape: Sequence[int]):
        tensor = tensor_of(x)
        inferred = self.infer(tensor, shape)
        super().__init__(x, result_type=inferred)
        sizes = inferred.get_shape()
        own = (*[1] * (len(sizes) - tensor.get_num_dims()), *tensor.get_shape())
        asked = (*[1] * (len(sizes) - len(shape)), *shape)
        names = [""] * len(sizes)
        for dim, (size, before, wanted) in enumerate(zip(sizes, own, asked, strict=True)):
            if isinstance(wanted, Dim) and wanted != before:
                if is_known(size) or (name := wanted.symbol) is None:
                    raise UnknownSize(wanted)
                names[dim] = name
        self._name(names)

    @classmethod
    def infer(cls, x: Tensor, shape: Sequence[int]) -> Tensor:
        """`x` in the shape that its own and `shape` broadcast to."""
        return tensor_type(x.element_type, broadcast_shapes(x.get_shape(), shape))

    def _target(self, sizes: Mapping[str, int]) -> list[int]:
        """The shape to broadcast to: 1 where the size is that of `x`."""
        stated = zip(self.result_type.get_shape(), self.names(), strict=True)
        return [size if is_known(size) else size_of_name(name, sizes) if name else 1 for size, name in stated]

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self._target({}))

    def rebind(self, sizes: Mapping[str, int]) -> None:
        names = self.names()
        inferred = erased(self.infer(tensor_of(self.x), self._target(sizes)))
        set_type(self.result, inferred)
        self._name([name if name not in sizes else "" for name in names])
