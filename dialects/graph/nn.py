"""Operators of neural networks without a window: matrix products, normalisations and softmax."""

from __future__ import annotations

from abc import ABC

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
    Tensor,
    Value,
    boolean,
    broadcast_shapes,
    check_axis,
    integer,
    normalized_axis,
    require,
    same_element,
    single,
    tensor_of,
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

    def __init__(
        self,
        a: Value,
        b: Value,
        c: Value | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        trans_a: bool = False,
        trans_b: bool = False,
        accumulator: Attribute | None = None,
        result_type: Tensor | None = None,
    ):
        inferred = self.infer(
            tensor_of(a),
            tensor_of(b),
            None if c is None else tensor_of(c),
            trans_a=trans_a,
            trans_b=trans_b,
            accumulator=accumulator,
        )
        properties = {
            "alpha": single(alpha),
            "beta": single(beta),
            "trans_a": boolean(trans_a),
            "trans_b": boolean(trans_b),
            "accumulator": accumulator,
        }
        super().__init__([a, b, c], result_type or inferred, properties)

    @staticmethod
    def infer(
        a: Tensor,
        b: Tensor,
        c: Tensor | None = None,
        *,
        trans_a: bool,
        trans_b: bool,
        accumulator: Attribute | None = None,
    ) -> Tensor:
        """The matrix [m, n] of the product of [m, k] and [k, n]."""
        element = accumulated((a, b), c, accumulator, "graph.gemm")
        for each in (a, b):
            require(each.get_num_dims() == 2, f"graph.gemm multiplies matrices, found {each}")
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

    def infer_type(self) -> Tensor:
        return self.infer(
            tensor_of(self.a),
            tensor_of(self.b),
            None if self.c is None else tensor_of(self.c),
            trans_a=bool(self.trans_a),
            trans_b=bool(self.trans_b),
            accumulator=self.accumulator,
        )


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

    def __init__(self, a: Value, b: Value, *, accumulator: Attribute | None = None, result_type: Tensor | None = None):
        inferred = self.infer(tensor_of(a), tensor_of(b), accumulator=accumulator)
        super().__init__([a, b], result_type or inferred, {"accumulator": accumulator})

    @staticmethod
    def infer(a: Tensor, b: Tensor, *, accumulator: Attribute | None = None) -> Tensor:
        """The shape [batch..., m, n] of the product of [batch..., m, k] and [batch..., k, n]."""
        element = accumulated((a, b), None, accumulator, "graph.matmul")
        left, right = a.get_shape(), b.get_shape()
        for each in (a, b):
            require(each.get_num_dims() > 0, f"graph.matmul multiplies no scalars, found {each}")
        inner = right[max(len(right) - 2, 0)]
        require(may_equal(left[-1], inner), f"the inner sizes {left[-1]} of {a} and {inner} of {b} differ")
        batch = broadcast_shapes(left[:-2], right[:-2])
        rows = left[-2:-1]
        columns = right[-1:] if len(right) > 1 else ()
        return tensor_type(element, (*batch, *rows, *columns))

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.a), tensor_of(self.b), accumulator=self.accumulator)


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

    def __init__(
        self,
        x: Value,
        scale: Value,
        bias: Value,
        mean: Value,
        var: Value,
        *,
        epsilon: float = 1e-5,
        axis: int = 1,
        result_type: Tensor | None = None,
    ):
        axis = normalized_axis(axis, tensor_of(x).get_num_dims())
        operands = (x, scale, bias, mean, var)
        inferred = self.infer(*(tensor_of(value) for value in operands), axis=axis)
        properties = {"epsilon": single(epsilon), "axis": integer(axis)}
        super().__init__(operands, result_type or inferred, properties)

    @staticmethod
    def infer(x: Tensor, *vectors: Tensor, axis: int) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, "graph.batch_normalization")
        same_element((x, *vectors), "graph.batch_normalization")
        check_axis(axis, x.get_num_dims())
        channels = x.get_shape()[axis]
        for name, vector in zip(("scale", "bias", "mean", "var"), vectors, strict=True):
            require(
                vector.get_num_dims() == 1 and may_equal(vector.get_shape()[0], channels),
                f"{name} must have the shape {channels} of dimension {axis} of {x}, found {vector}",
            )
        return x

    def infer_type(self) -> Tensor:
        return self.infer(*(tensor_of(value) for value in self.operands), axis=self.axis.value.data)


class SoftmaxBase(GraphOp, ABC):
    """An op that normalises exp(x) along `axis`, which counts from the front."""

    x = operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `axis` $axis attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, *, axis: int = -1, result_type: Tensor | None = None):
        axis = normalized_axis(axis, tensor_of(x).get_num_dims())
        super().__init__([x], result_type or self.infer(tensor_of(x), axis), {"axis": integer(axis)})

    @classmethod
    def infer(cls, x: Tensor, axis: int) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, cls.name)
        check_axis(axis, x.get_num_dims())
        return x

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.axis.value.data)


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

    def __init__(
        self,
        x: Value,
        *,
        size: int,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        layout: str = NCHW,
        result_type: Tensor | None = None,
    ):
        properties = {
            "size": integer(size),
            "alpha": single(alpha),
            "beta": single(beta),
            "bias": single(bias),
            "layout": StringAttr(layout),
        }
        inferred = self.infer(tensor_of(x), size, layout)
        super().__init__([x], result_type or inferred, properties)

    @staticmethod
    def infer(x: Tensor, size: int, layout: str) -> Tensor:
        """The type of `x`."""
        FLOATS.check(x, "graph.lrn")
        require(size >= 1, f"size is {size}, must be at least 1")
        require(x.get_num_dims() >= 2, f"graph.lrn needs a dimension of channels, found {x}")
        channel_axis(layout, x.get_num_dims())
        return x

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.size.value.data, self.layout.data)
