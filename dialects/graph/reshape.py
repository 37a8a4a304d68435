"""Operators that bring a tensor into a given shape, in which sizes may be unknown."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, traits_def

from penstock.dialects.graph.base import (
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    broadcast_shapes,
    erased,
    require,
    set_type,
    shape_text,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.dims import Names, names_attr, read_names, size_of_name, symbols_of
from penstock.dialects.graph.sizes import Dim, UnknownSize, exact_quotient, is_known, may_equal, unknown_size


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

    traits = traits_def(HasPatternKind(PatternKind.INJECTIVE))

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
        require(fits, f"{count} elements of {x} do not fit the shape {shape_text(shape)}")
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
            f"dimensions {free} of {self.result.type} do not follow from {self.x.type}: name all but one of them,"
            ' as in `dims ["N", ""]`',
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

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))

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
