# SPDX-License-Identifier: Apache-2.0
"""Operators of neural networks without a window: matrix products, normalisations, softmax and attention."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

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

from penstock.dialects.graph.base import (
    FLOATS,
    INTS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    accumulated,
    boolean,
    broadcast_shapes,
    check_axis,
    integer,
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
    """Whether B' is the transpose of `b`."""
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
                lambda name=name, vector=vector: (
                    f"{name} must have the shape {channels} of dimension {axis} of {x}, found {vector}"
                ),
            )
        return x


class SoftmaxBase(GraphOp, ABC):
    """An op that normalises exp(x) along `axis`, which counts from the front."""

    DEFAULT_AXIS: ClassVar[int | None] = -1

    x = operand_def(TENSOR)
    axis = prop_def(IntegerAttr[I64])

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))
    assembly_format = "$x `axis` $axis attr-dict `:` type($x) `->` type($result)"

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
    """The order of the dimensions of `x` and of the result, "NCHW" or "NHWC"."""

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


@irdl_op_definition
class AttentionOp(GraphOp):
    """
    softmax(q k^T * scale + mask) v for every index of the dimensions before the last two.

    With batch... the same in all of them, q is [batch..., m, d], k is [batch..., n, d], v is [batch..., n, e], the
    scores are [batch..., m, n], to which `mask` broadcasts, and the result is [batch..., m, e]. Each operand may be
    stored in another order: `q_perm`, `k_perm` and `v_perm` are the permutations of a `graph.transpose` that makes
    it what is written here, and `result_perm` is that of one which makes the result out of [batch..., m, e].

    It is computed in the type of the operands, narrow floats in f32, or in the wider `accumulator`, to which the mask
    then belongs; the result has the type of v. The powers are rounded to it too before they are multiplied with v, and
    their sum divides the product. A row of which every score is -inf is NaN, as a softmax is, or zero with
    `zero_masked`.

    `blocks` says how many queries and how many keys are on chip at once; it has no bearing on what is computed, but
    for rounding. See Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness",
    NeurIPS 2022, and ONNX's Attention.
    """

    name = "graph.attention"

    q = operand_def(TENSOR)
    k = operand_def(TENSOR)
    v = operand_def(TENSOR)
    mask = opt_operand_def(TENSOR)
    scale = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    q_perm = opt_prop_def(INTS)
    k_perm = opt_prop_def(INTS)
    v_perm = opt_prop_def(INTS)
    result_perm = opt_prop_def(INTS)
    zero_masked = prop_def(BoolAttr, default_value=boolean(False))
    blocks = opt_prop_def(INTS)
    accumulator = opt_prop_def(Attribute)

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    custom_directives = (Number,)
    assembly_format = (
        "operands (`scale` custom<Number>($scale)^)? (`q_perm` $q_perm^)? (`k_perm` $k_perm^)? (`v_perm` $v_perm^)?"
        " (`result_perm` $result_perm^)? (`zero_masked` $zero_masked^)? (`blocks` $blocks^)?"
        " (`accumulate` $accumulator^)? attr-dict `:` functional-type(operands, results)"
    )

    @property
    def perms(self) -> tuple[tuple[int, ...], ...]:
        """The permutations of q, k, v and the result, written out."""
        identity = tuple(range(tensor_of(self.q).get_num_dims()))
        found = (self.q_perm, self.k_perm, self.v_perm, self.result_perm)
        return tuple(identity if each is None else tuple(each.get_values()) for each in found)

    @classmethod
    def infer(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        q_perm: Sequence[int] | None = None,
        k_perm: Sequence[int] | None = None,
        v_perm: Sequence[int] | None = None,
        result_perm: Sequence[int] | None = None,
        accumulator: Attribute | None = None,
    ) -> Tensor:
        """The shape [batch..., m, e], permuted by `result_perm`."""
        FLOATS.check(q, cls.name)
        accumulated((q, k, v), mask, accumulator, cls.name)
        rank = q.get_num_dims()
        require(rank >= 2, f"{cls.name} needs matrices, found {q}")
        for each in (k, v):
            require(each.get_num_dims() == rank, f"{cls.name} needs operands of one rank, found {q} and {each}")
        perms = {"q_perm": q_perm, "k_perm": k_perm, "v_perm": v_perm, "result_perm": result_perm}
        for name, perm in perms.items():
            require(
                perm is None or sorted(perm) == list(range(rank)),
                f"{name} {perm and list(perm)} is no permutation of {rank} dimensions",
            )
        (*batch, m, d), (*of_keys, n, width), (*of_values, count, e) = (
            _permuted(each.get_shape(), perm) for each, perm in zip((q, k, v), (q_perm, k_perm, v_perm), strict=True)
        )
        for other, what in ((of_keys, "keys"), (of_values, "values")):
            require(
                all(may_equal(mine, theirs) for mine, theirs in zip(batch, other, strict=True)),
                f"the queries have the batch {batch}, the {what} {other}",
            )
        require(may_equal(d, width), f"queries have {d} elements, keys {width}")
        require(may_equal(n, count), f"there are {n} keys and {count} values")
        if mask is not None:
            scores = (*batch, m, n)
            require(may_broadcast_to(mask.get_shape(), scores), f"the mask {mask} does not broadcast to {scores}")
        return tensor_type(v.element_type, _permuted((*batch, m, e), result_perm))

    def verify_(self) -> None:
        super().verify_()
        blocks = None if self.blocks is None else self.blocks.get_values()
        require(
            blocks is None or (len(blocks) == 2 and min(blocks) >= 1),
            f"blocks {blocks and list(blocks)} must be a number of queries and one of keys",
        )


def _permuted(shape: Sequence[int], perm: Sequence[int] | None) -> list[int]:
    return list(shape) if perm is None else [shape[dim] for dim in perm]
