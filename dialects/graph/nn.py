"""Operators of neural networks without a window: matrix products, normalisations and softmax."""

from __future__ import annotations

from abc import ABC
from typing import Any

from xdsl.dialects.builtin import (
    I64,
    BoolAttr,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, traits_def

from penstock.dialects.graph.accumulator import accumulated
from penstock.dialects.graph.base import (
    FLOATS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    PropertyValue,
    Tensor,
    boolean,
    broadcast_shapes,
    check_axis,
    integer,
    require,
    same_element,
    single,
    tensor_type,
)
from penstock.dialects.graph.layout import NCHW, channel_axis
from penstock.dialects.graph.number import Number
from penstock.dialects.graph.sizes import may_broadcast_to, may_equal


@irdl_op_definition
class GemmOp(GraphOp):
    """
    alpha * A' B' + beta * c on matrices: A' is `a`, or its transpose if `trans_a`, and so is B'.

    `c` broadcasts to the result. It is computed in the type of the operands, narrow floats in f32 and rounded once, or
    in the wider `accumulator`, to which alpha, beta, `c` and the result then belong.
    """

    name = "graph.gemm"

    a = operand_def(TENSOR)
    b = operand_def(TENSOR)
    c = opt_operand_def(TENSOR)
    alpha = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    beta = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    trans_a = prop_def(BoolAttr, default_value=boolean(False))
    trans_b = prop_def(BoolAttr, default_value=boolean(False))
    accumulator = opt_prop_def(Attribute)

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    custom_directives = (Number,)
    assembly_format = (
        "operands (`alpha` custom<Number>($alpha)^)? (`beta` custom<Number>($beta)^)?"
        " (`trans_a` $trans_a^)? (`trans_b` $trans_b^)? (`accumulate` $accumulator^)? attr-dict"
        " `:` functional-type(operands, results)"
    )

    @classmethod
    def infer(
        cls,
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        *,
        trans_a: bool,
        trans_b: bool,
        accumulator: Attribute | None = None,
    ) -> Tensor:
        """The matrix [m, n] of the product of [m, k] and [k, n]."""
        element = accumulated((a, b), c, accumulator, cls.name)
        for each in (a, b):
            require(each.get_num_dims() == 2, f"{cls.name} multiplies matrices, found {each}")
        m, left = reversed(a.get_shape()) if trans_a else a.get_shape()
        right, n = reversed(b.get_shape()) if trans_b else b.get_shape()
        require(may_equal(left, right), f"the inner sizes {left} of {a} and {right} of {b} differ")
        if c is not None:
            broadcast_shapes(c.get_shape(), (m, n))
            require(
                may_broadcast_to(c.get_shape(), (m, n)),
                f"{c} does not broadcast to {m}x{n}",
            )
        return tensor_type(element, (m, n))


@irdl_op_definition
class MatmulOp(GraphOp):
    """
    The matrix product as NumPy's: the last two dimensions are matrices, those before them broadcast, and
    a vector on the left is a row, on the right a column, whose dimension the result lacks. It is computed in the type
    of the operands, narrow floats in f32 and rounded once, or in the wider `accumulator`.
    """

    name = "graph.matmul"

    a = operand_def(TENSOR)
    b = operand_def(TENSOR)
    accumulator = opt_prop_def(Attribute)

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    assembly_format = "$a `,` $b (`accumulate` $accumulator^)? attr-dict `:` functional-type(operands, results)"

    @classmethod
    def infer(cls, a: Tensor, b: Tensor, *, accumulator: Attribute | None = None) -> Tensor:
        """The shape [batch..., m, n] of the product of [batch..., m, k] and [batch..., k, n]."""
        element = accumulated((a, b), None, accumulator, cls.name)
        left, right = a.get_shape(), b.get_shape()
        for each in (a, b):
            require(each.get_num_dims() > 0, f"{cls.name} multiplies no scalars, found {each}")
        inner = right[max(len(right) - 2, 0)]
        require(may_equal(left[-1], inner), f"the inner sizes {left[-1]} of {a} and {inner} of {b} differ")
        batch = broadcast_shapes(left[:-2], right[:-2])
        rows = left[-2:-1]
        columns = right[-1:] if len(right) > 1 else ()
        return tensor_type(element, (*batch, *rows, *columns))


@irdl_op_definition
class BatchNormalizationOp(GraphOp):
    """
    scale * (x - mean) / sqrt(var + epsilon) + bias for each index of dimension `axis`, as in inference:
    the four operands are vectors along that dimension.
    """

    name = "graph.batch_normalization"

    x = operand_def(TENSOR)
    scale = operand_def(TENSOR)
    bias = operand_def(TENSOR)
    mean = operand_def(TENSOR)
    var = operand_def(TENSOR)
    epsilon = prop_def(FloatAttr[Float32Type], default_value=single(1e-5))
    axis = prop_def(IntegerAttr[I64], default_value=integer(1))

    traits = traits_def(HasPatternKind(PatternKind.BROADCAST))
    custom_directives = (Number,)
    assembly_format = (
        "$x `,` $scale `,` $bias `,` $mean `,` $var (`epsilon` custom<Number>($epsilon)^)?"
        " (`axis` $axis^)? attr-dict `:` functional-type(operands, results)"
    )

    @classmethod
    def infer(cls, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, axis: int) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, cls.name)
        vectors = {"scale": scale, "bias": bias, "mean": mean, "var": var}
        same_element((x, *vectors.values()), cls.name)
        check_axis(axis, x.get_num_dims())
        channels = x.get_shape()[axis]
        for name, vector in vectors.items():
            require(
                vector.get_num_dims() == 1 and may_equal(vector.get_shape()[0], channels),
                f"{name} must have the shape {channels} of dimension {axis} of {x}, found {vector}",
            )
        return x


class SoftmaxBase(GraphOp, ABC):
    """An op that normalises exp(x) along `axis`, which counts from the front."""

    x = operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `axis` $axis attr-dict `:` type($x) `->` type($result)"

    @classmethod
    def fill_in(cls, values: dict[str, PropertyValue], *types: Any) -> None:
        values.setdefault("axis", -1)
        super().fill_in(values, *types)

    @classmethod
    def infer(cls, x: Tensor, axis: int) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, cls.name)
        check_axis(axis, x.get_num_dims())
        return x


@irdl_op_definition
class SoftmaxOp(SoftmaxBase):
    """exp(x) / sum(exp(x)) along `axis`, after subtracting the largest element; narrow floats in f32, rounded once."""

    name = "graph.softmax"


@irdl_op_definition
class LogSoftmaxOp(SoftmaxBase):
    """The logarithm of the softmax: x - max - log(sum(exp(x - max))) along `axis`."""

    name = "graph.log_softmax"


@irdl_op_definition
class LrnOp(GraphOp):
    """
    Local response normalisation across channels: x / (bias + alpha / size * s)^beta, s the sum of squares
    over the channels from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2) that exist. It is computed in
    f32 and rounded once for narrow floats.
    """

    name = "graph.lrn"

    x = operand_def(TENSOR)
    size = prop_def(IntegerAttr[I64])
    alpha = prop_def(FloatAttr[Float32Type], default_value=single(1e-4))
    beta = prop_def(FloatAttr[Float32Type], default_value=single(0.75))
    bias = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    layout = prop_def(StringAttr, default_value=StringAttr(NCHW))

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    custom_directives = (Number,)
    assembly_format = (
        "$x `size` $size (`alpha` custom<Number>($alpha)^)? (`beta` custom<Number>($beta)^)?"
        " (`bias` custom<Number>($bias)^)? (`layout` $layout^)? attr-dict"
        " `:` type($x) `->` type($result)"
    )

    @classmethod
    def infer(cls, x: Tensor, size: int, layout: str) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, cls.name)
        require(size >= 1, f"size is {size}, must be at least 1")
        require(x.get_num_dims() >= 2, f"{cls.name} needs a dimension of channels, found {x}")
        channel_axis(layout, x.get_num_dims())
        return x
