# SPDX-License-Identifier: Apache-2.0
"""Between real numbers and the small integers that stand for them: real = (integer - zero point) * scale."""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects.builtin import I64, IntegerAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, prop_def, traits_def

from penstock.dialects.graph.base import (
    FLOATS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    PropertyValue,
    Tensor,
    Value,
    check_axis,
    integer,
    integer_bounds,
    is_float,
    require,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.sizes import may_equal


def _is_narrow(element: Attribute) -> bool:
    bounds = integer_bounds(element)
    return bounds is not None and 2 < len(bounds) <= 1 << 16


def _is_word(element: Attribute) -> bool:
    return integer_bounds(element) == range(-(1 << 31), 1 << 31)


QUANTIZED = Elements("integers of 2 to 16 bits", _is_narrow)
DEQUANTIZED = Elements("integers of 2 to 16 bits and i32", lambda e: _is_narrow(e) or _is_word(e))
REAL = Elements("floats and i32", lambda e: is_float(e) or _is_word(e))


class LinearOp(GraphOp):
    """
    What the two directions share: `scale` and `zero_point` are one number for all of `x`, or vectors along
    dimension `axis`; without a `zero_point` it is 0.
    """

    x = operand_def(TENSOR)
    scale = operand_def(TENSOR)
    """The number that one step stands for."""
    zero_point = opt_operand_def(TENSOR)
    """The integer that stands for 0."""
    axis = prop_def(IntegerAttr[I64], default_value=integer(1))
    """The dimension along which scales differ."""

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    assembly_format = "operands (`axis` $axis^)? attr-dict `:` functional-type(operands, results)"

    @property
    def along(self) -> int | None:
        """The dimension along which the scale differs; None for one scale."""
        return self.axis.value.data if tensor_of(self.scale).get_num_dims() else None

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        """Where there is one scale the axis does not count, and is the default."""
        if types[1].get_num_dims():
            super().fill_in(values, *types)
        else:
            values["axis"] = None

    @classmethod
    def check(cls, x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, integers: Attribute) -> None:
        """Raise VerifyException unless the operands fit each other; `integers` is the integral element type."""
        FLOATS.check(scale, cls.name)
        if scale.get_num_dims():
            check_axis(axis, x.get_num_dims())
            size = x.get_shape()[axis]
            require(
                scale.get_num_dims() == 1 and may_equal(scale.get_shape()[0], size),
                f"the scale must be a scalar, or have the shape {size} of dimension {axis} of {x}, found {scale}",
            )
        if zero_point is None:
            return
        same_shape = zero_point.get_num_dims() == scale.get_num_dims() and all(
            may_equal(*sizes) for sizes in zip(zero_point.get_shape(), scale.get_shape(), strict=True)
        )
        require(
            same_shape and zero_point.element_type == integers,
            f"the zero point must be of {integers} and have the shape of the scale {scale}, found {zero_point}",
        )


@irdl_op_definition
class QuantizeLinearOp(LinearOp):
    """
    The integer that stands for each element of `x`: x / scale, in f32, rounded to the nearest integer, halves to the
    even one, plus the zero point, or the nearest number that the result's type holds.
    """

    name = "graph.quantize_linear"

    def __init__(
        self, x: Value, scale: Value, zero_point: Value | None = None, *, element_type: Attribute, axis: int = 1
    ):
        values: dict[str, PropertyValue] = {"axis": axis}
        zero = None if zero_point is None else tensor_of(zero_point)
        types = tensor_of(x), tensor_of(scale), zero
        self.fill_in(values, *types)
        inferred = self.infer(*types, cast(int, values["axis"]), element_type)
        super().__init__(x, scale, zero_point, axis=axis, result_type=inferred)

    @classmethod
    def infer(cls, x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, element_type: Attribute) -> Tensor:
        """The shape of `x` with elements of `element_type`."""
        REAL.check(x, cls.name)
        result = tensor_type(element_type, x.get_shape())
        require(
            QUANTIZED.contains(element_type),
            f"{cls.name} gives {QUANTIZED.words}, but the elements of the result type are {element_type}",
        )
        cls.check(x, scale, zero_point, axis, element_type)
        return result

    def infer_type(self) -> Tensor:
        zero = None if self.zero_point is None else tensor_of(self.zero_point)
        element = self.result_type.element_type
        return self.infer(tensor_of(self.x), tensor_of(self.scale), zero, self.axis.value.data, element)


@irdl_op_definition
class DequantizeLinearOp(LinearOp):
    """The number that each element of `x` stands for: x - zero point in i32, times the scale in f32."""

    name = "graph.dequantize_linear"

    @classmethod
    def infer(cls, x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
        """The shape of `x` with the elements of `scale`."""
        DEQUANTIZED.check(x, cls.name)
        cls.check(x, scale, zero_point, axis, x.element_type)
        return tensor_type(scale.element_type, x.get_shape())
