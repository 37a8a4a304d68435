"""Operators that map each element of one operand on its own."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from xdsl.dialects.builtin import Float32Type, Float64Type, FloatAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import (
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)

from penstock.dialects.graph.base import (
    ANY_ELEMENTS,
    BOOLS,
    FLOATS,
    NUMBERS,
    SIGNED_NUMBERS,
    TENSOR,
    Elements,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    Value,
    require,
    single,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.number import Number


class UnaryOp(GraphOp, ABC):
    """An op that maps each element of `x` on its own; the result has the type of `x`."""

    ACCEPTS: ClassVar[Elements] = FLOATS
    """The element types it is defined on."""

    T: ClassVar = VarConstraint("T", TENSOR)

    x = operand_def(T)
    result = result_def(T)

    traits = traits_def(HasPatternKind(PatternKind.ELEMENTWISE))
    assembly_format = "$x attr-dict `:` type($x)"

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """The type of `x`."""
        cls.ACCEPTS.check(x, cls.name)
        return x


@irdl_op_definition
class AbsOp(UnaryOp):
    """The absolute value."""

    name = "graph.abs"
    ACCEPTS: ClassVar[Elements] = NUMBERS


@irdl_op_definition
class NegOp(UnaryOp):
    """The negative; integers wrap."""

    name = "graph.neg"
    ACCEPTS: ClassVar[Elements] = SIGNED_NUMBERS


@irdl_op_definition
class ExpOp(UnaryOp):
    """e to the power of x."""

    name = "graph.exp"


@irdl_op_definition
class LogOp(UnaryOp):
    """The natural logarithm."""

    name = "graph.log"


@irdl_op_definition
class SqrtOp(UnaryOp):
    """The square root."""

    name = "graph.sqrt"


@irdl_op_definition
class ReciprocalOp(UnaryOp):
    """1 / x."""

    name = "graph.reciprocal"


@irdl_op_definition
class FloorOp(UnaryOp):
    """The next integral number towards minus infinity."""

    name = "graph.floor"


@irdl_op_definition
class CeilOp(UnaryOp):
    """The next integral number towards plus infinity."""

    name = "graph.ceil"


@irdl_op_definition
class RoundOp(UnaryOp):
    """The nearest integral number; of two, the even one."""

    name = "graph.round"


@irdl_op_definition
class SignOp(UnaryOp):
    """-1, 0 or 1."""

    name = "graph.sign"
    ACCEPTS: ClassVar[Elements] = NUMBERS


@irdl_op_definition
class ErfOp(UnaryOp):
    """The error function."""

    name = "graph.erf"


@irdl_op_definition
class ReluOp(UnaryOp):
    """max(x, 0)."""

    name = "graph.relu"
    ACCEPTS: ClassVar[Elements] = SIGNED_NUMBERS


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x))."""

    name = "graph.sigmoid"


@irdl_op_definition
class TanhOp(UnaryOp):
    """The hyperbolic tangent."""

    name = "graph.tanh"


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """log(1 + exp(x))."""

    name = "graph.softplus"


@irdl_op_definition
class HardSwishOp(UnaryOp):
    """x * max(0, min(1, x / 6 + 1/2))."""

    name = "graph.hard_swish"


@irdl_op_definition
class IdentityOp(UnaryOp):
    """x itself."""

    name = "graph.identity"
    ACCEPTS: ClassVar[Elements] = ANY_ELEMENTS


@irdl_op_definition
class NotOp(UnaryOp):
    """The logical negation."""

    name = "graph.not"
    ACCEPTS: ClassVar[Elements] = BOOLS


@irdl_op_definition
class LeakyReluOp(UnaryOp):
    """x where x >= 0, else alpha * x."""

    name = "graph.leaky_relu"

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(0.01))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? attr-dict `:` type($x)"


@irdl_op_definition
class EluOp(UnaryOp):
    """x where x >= 0, else alpha * (exp(x) - 1)."""

    name = "graph.elu"

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? attr-dict `:` type($x)"


SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


@irdl_op_definition
class SeluOp(UnaryOp):
    """gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)."""

    name = "graph.selu"

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(SELU_ALPHA))
    gamma = prop_def(FloatAttr[Float32Type], default_value=single(SELU_GAMMA))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? (`gamma` custom<Number>($gamma)^)? attr-dict `:` type($x)"


@irdl_op_definition
class HardSigmoidOp(UnaryOp):
    """max(0, min(1, alpha * x + beta))."""

    name = "graph.hard_sigmoid"

    alpha = prop_def(FloatAttr[Float32Type], default_value=single(0.2))
    beta = prop_def(FloatAttr[Float32Type], default_value=single(0.5))
    custom_directives = (Number,)
    assembly_format = "$x (`alpha` custom<Number>($alpha)^)? (`beta` custom<Number>($beta)^)? attr-dict `:` type($x)"


@irdl_op_definition
class GeluOp(UnaryOp):
    """
    x * Phi(x), Phi the normal distribution function: by erf (`none`), or with `tanh` as
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    """

    name = "graph.gelu"

    approximate = prop_def(StringAttr, default_value=StringAttr("none"))
    assembly_format = "$x (`approximate` $approximate^)? attr-dict `:` type($x)"

    def verify_(self) -> None:
        super().verify_()
        require(
            self.approximate.data in ("none", "tanh"),
            f'approximate is "none" or "tanh", not "{self.approximate.data}"',
        )


@irdl_op_definition
class ClipOp(UnaryOp):
    """min(max(x, min), max) with constant bounds; a bound that is absent does not bind."""

    name = "graph.clip"
    ACCEPTS: ClassVar[Elements] = NUMBERS

    min = opt_prop_def(FloatAttr[Float64Type])
    max = opt_prop_def(FloatAttr[Float64Type])
    custom_directives = (Number,)
    assembly_format = "$x (`min` custom<Number>($min)^)? (`max` custom<Number>($max)^)? attr-dict `:` type($x)"


@irdl_op_definition
class CastOp(GraphOp):
    """
    The elements of `x` in the element type of the result.

    Floats to integers truncate towards zero; anything to i1 is `x != 0`.
    """

    name = "graph.cast"

    x = operand_def(TENSOR)

    traits = traits_def(HasPatternKind(PatternKind.ELEMENTWISE))
    assembly_format = "$x attr-dict `:` type($x) `->` type($result)"

    def __init__(self, x: Value, element_type: Attribute):
        super().__init__(x, result_type=self.infer(tensor_of(x), element_type))

    @staticmethod
    def infer(x: Tensor, element_type: Attribute) -> Tensor:
        """The shape of `x` with other elements."""
        return tensor_type(element_type, x.get_shape())

    def infer_type(self) -> Tensor:
        return self.infer(tensor_of(self.x), self.result_type.element_type)
